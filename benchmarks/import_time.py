"""How long `import jaxpsd` takes beyond `import jax`, in processes of their own.

Run with `python -m benchmarks.import_time`.
"""

import json
import os
import subprocess
import sys
import tempfile
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
    with tempfile.TemporaryDirectory() as folder:
        # The first one compiles all modules, as `pip install` does.
        times = [_once(folder) for _ in range(2 if smoke else 21)][1:]
    jax, jaxpsd = (sorted(part) for part in zip(*times, strict=True))
    row = {"repeats": len(times), "jax": jax[len(jax) // 2], "jaxpsd": jaxpsd[len(jaxpsd) // 2], "least": jaxpsd[0]}
    return {"seconds": row}


def _once(folder: str) -> tuple[float, float]:
    command = [sys.executable, "-X", f"pycache_prefix={folder}", "-c", _SCRIPT]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
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
