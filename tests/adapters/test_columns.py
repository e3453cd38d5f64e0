import numpy as np
import pytest

from jaxpsd.adapters.columns import draws_of_columns


@pytest.mark.parametrize(
    ("names", "shapes"),
    [
        (("mu", "beta[0]", "beta[1]"), {"beta": (2,), "mu": ()}),
        (("beta[2]", "mu", "beta[1]"), {"beta": (2,), "mu": ()}),
        (("w.1.1", "w.2.1", "w.1.2", "w.2.2"), {"w": (2, 2)}),
        (("w[0, 0]", "w[0,1]"), {"w": (1, 2)}),
        # What does not fill an array stays as it is.
        (("beta[0]", "beta[2]"), {"beta[0]": (), "beta[2]": ()}),
        (("beta.5", "beta.6"), {"beta.5": (), "beta.6": ()}),
        (("b", "b.1"), {"b": (), "b.1": ()}),
        (("beta[Choate]", "x.y"), {"beta[Choate]": (), "x.y": ()}),
    ],
)
def test_entries_are_put_together(names, shapes):
    rows = np.arange(5.0 * len(names)).reshape(5, len(names))
    draws = draws_of_columns(rows, names)
    assert draws.shapes == shapes
    flat = {name.replace(" ", ""): k for k, name in enumerate(draws.names)}
    for column, name in enumerate(names):
        variable, _, entry = name.replace(" ", "").partition(".")
        stored = name.replace(" ", "") if name in shapes or not entry else f"{variable}[{entry.replace('.', ',')}]"
        values = np.concatenate([np.asarray(values).reshape(5, -1) for values in draws.values()], axis=1)
        np.testing.assert_array_equal(values[:, flat[stored]], rows[:, column])


def test_prefixes_go_before_names():
    assert draws_of_columns(np.zeros((5, 2)), ("tau.1", "tau.2"), prefixes={"tau": "log "}).names == (
        "log tau[1]",
        "log tau[2]",
    )
