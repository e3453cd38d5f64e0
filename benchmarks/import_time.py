"""How long `import jaxpsd` takes beyond `import jax`, in processes of their own.

Run with `python -m benchmarks.import_time`.
"""

import json
import subprocess
import sys
from typing import Any

from benchmarks._harness import main, table

_SCRIPT = """
import json, time
start = time.perf_counter()
import jax, jax.numpy
between = time.perf_counter()
import jaxpsd
print(json.dumps([between - start, time.perf_counter() - between]))
"""


def run(smoke: bool) -> dict[str, Any]:
    # The first one finds nothing in the system's cache of files.
    times = [_once() for _ in range(2 if smoke else 21)][1:]
    jax, jaxpsd = (sorted(part) for part in zip(*times, strict=True))
    row = {"repeats": len(times), "jax": jax[len(jax) // 2], "jaxpsd": jaxpsd[len(jaxpsd) // 2], "least": jaxpsd[0]}
    return {"seconds": row}


def _once() -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True)
    jax, jaxpsd = json.loads(done.stdout)
    return jax, jaxpsd


def render(result: dict[str, Any]) -> str:
    columns = {
        "repeats": "processes",
        "jax": "import jax (s, median)",
        "jaxpsd": "import jaxpsd after it (s, median)",
        "least": "least",
    }
    return "# Time of importing\n\n" + table(columns, [result["seconds"]])


if __name__ == "__main__":
    main("import_time", run, render)
