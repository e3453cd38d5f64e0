"""PyMC's names of parameters in unconstrained space: tau_log__ is log tau."""

# What the name of a transform does to that of a parameter; others make it "unconstrained".
_LABELS = {"": "{}", "log": "log {}", "logodds": "logit {}"}
_SAME_AXES = ("interval", "ordered", "circular", "log_exp_m1")
_OTHER_AXES = ("simplex", "sumto1", "zerosum", "cholesky-cov-packed", "chain")


def label_of(parameter: str, transform: str) -> str:
    """What a parameter is called after a transform of that name, "" for none."""
    return _LABELS.get(transform, "unconstrained {}").format(parameter)


def keeps_axes(transform: str) -> bool:
    """Whether entries of a parameter correspond to those of the value variable one by one."""
    return transform in (*_LABELS, *_SAME_AXES)


def split_value_name(name: str) -> tuple[str, str]:
    """The parameter that a value variable stands for, and what to call it in unconstrained space."""
    for transform in (*_LABELS, *_SAME_AXES, *_OTHER_AXES):
        ending = f"_{transform}__"
        if transform and name.endswith(ending) and len(name) > len(ending):
            parameter = name.removesuffix(ending)
            return parameter, label_of(parameter, transform)
    return name, name
