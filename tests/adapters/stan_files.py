"""Files as CmdStan writes them."""

import numpy as np

SAMPLER = ("lp__", "accept_stat__", "stepsize__", "treedepth__", "n_leapfrog__", "divergent__", "energy__")

HEAD = """# stan_version_major = 2
# stan_version_minor = 36
# stan_version_patch = 0
# model = eight_schools_model
# method = sample (Default)
#   sample
#     num_samples = {num_samples}
#     num_warmup = {num_warmup}
#     save_warmup = {save_warmup}
# data
#   file = eight_schools.json
# output
#   file = {output} (Default)
#   diagnostic_file = eight_schools_diagnostic.csv
"""

ADAPTED = """# Adaptation terminated
# Step size = 0.5
# Diagonal elements of inverse mass matrix:
# {}
"""

TAIL = """#\x20
#  Elapsed Time: 0.01 seconds (Warm-up)
#                0.01 seconds (Sampling)
#                0.02 seconds (Total)
#\x20
"""


def write_diagnostics(path, names, draws, scores, *, warmup=None, divergent=(), sign=-1, output="output.csv"):
    """A diagnostic file of one chain: unconstrained parameters, momenta, and gradients of the potential."""
    dim = len(names)
    columns = [*SAMPLER, *names, *(f"p_{name}" for name in names), *(f"g_{name}" for name in names)]
    momenta = np.random.default_rng(0).normal(size=np.shape(draws))

    def rows(x, gradients, momenta, diverged=()):
        for k in range(len(x)):
            stats = (-40.0, 0.9, 0.5, 3, 7, int(k in diverged), 45.0)
            yield ",".join(f"{value:.10g}" for value in (*stats, *x[k], *momenta[k], *gradients[k])) + "\n"

    num_warmup = 0 if warmup is None else len(warmup)
    text = HEAD.format(
        num_samples=f"{len(draws)} (Default)",
        num_warmup=num_warmup or 1000,
        save_warmup="true" if num_warmup else "false",
        output=output,
    )
    text += ",".join(columns) + "\n"
    if warmup is not None:
        text += "".join(rows(warmup, np.zeros_like(warmup), np.zeros_like(warmup)))
    text += ADAPTED.format(", ".join(["1"] * dim))
    text += "".join(rows(draws, sign * scores, momenta, divergent)) + TAIL
    path.write_text(text)


def write_output(path, names, draws):
    """The output file of a chain: constrained parameters, with the six digits that CmdStan gives them."""
    text = HEAD.format(num_samples=len(draws), num_warmup=1000, save_warmup="false", output=path.name)
    text += ",".join((*SAMPLER, *names)) + "\n" + ADAPTED.format("1")
    rows = (",".join(f"{value:.6g}" for value in (-40.0, 0.9, 0.5, 3, 7, 0, 45.0, *row)) for row in draws)
    path.write_text(text + "\n".join(rows) + "\n" + TAIL)
