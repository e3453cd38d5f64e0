"""How many digits of the PSD single precision keeps, against double precision on the same draws.

The draws are from the target, where the mean features are sums that nearly cancel: the hardest case. Run with
`python -m benchmarks.precision`.
"""

from itertools import product
from typing import Any

import jax
import numpy as np

import jaxpsd
from benchmarks._harness import main, table


def relative_error(n: int, dim: int, order: int, transform: str | None) -> dict[str, Any]:
    x = np.random.default_rng(n + dim).standard_normal((n, dim), dtype=np.float32)
    psd = jaxpsd.PSD(order, transform=transform, form="primal")
    single = float(psd(-x, x))
    with jax.enable_x64(True):
        double = float(psd(-x.astype(np.float64), x.astype(np.float64)))
    return {"n": n, "dim": dim, "order": order, "transform": transform, "relative_error": abs(single / double - 1)}


def run(smoke: bool) -> dict[str, Any]:
    sizes = (10**2, 10**3) if smoke else (10**3, 10**4, 10**5, 10**6, 10**7)
    rows = []
    for n, dim, order, transform in product(sizes, (1, 10), (1, 2, 3, 4), (None, "standardize")):
        # Ten minutes and several GB in double precision for nothing new.
        if n * dim <= 10**7 or order <= 2:
            rows.append(relative_error(n, dim, order, transform))
    return {"rows": rows}


def render(result: dict[str, Any]) -> str:
    worst = {}
    for row in result["rows"]:
        key = row["n"], row["order"]
        worst[key] = max(worst.get(key, 0.0), row["relative_error"])
    orders = sorted({order for _, order in worst})
    rows = [
        {"n": f"{n:,}"} | {str(order): worst.get((n, order)) for order in orders} for n in sorted({n for n, _ in worst})
    ]
    columns = {"n": "n"} | {str(order): f"r = {order}" for order in orders}
    return (
        "# Single against double precision\n\nLargest relative error of the PSD over d = 1 and 10, raw and "
        f"standardised, draws from the target; jax {result['versions']['jax']}, {result['date']}.\n\n"
        + table(columns, rows)
    )


if __name__ == "__main__":
    main("precision", run, render)
