"""How long `import jaxpsd` takes beyond `import jax`, and all of its names beyond that, in processes of their own.

Names are imported when they are asked for first. Times are of the processor, which other processes hardly change.

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
start = time.process_time()
import jax, jax.numpy
between = time.process_time()
import jaxpsd
imported = time.process_time()
names = [getattr(jaxpsd, name) for name in jaxpsd.__all__]
print(json.dumps([between - start, imported - between, time.process_time() - imported]))
"""


def run(smoke: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # The first one compiles all modules, as `pip install` does.
        times = [_once(folder) for _ in range(2 if smoke else 10)][1:]
    parts = dict(zip(("jax", "jaxpsd", "names"), map(sorted, zip(*times, strict=True)), strict=True))
    medians = {name: part[len(part) // 2] for name, part in parts.items()}
    least = {f"least_{name}": part[0] for name, part in parts.items()}
    return {"seconds": {"repeats": len(times), **medians, **least}}


def _once(folder: str) -> list[float]:
    command = [sys.executable, "-X", f"pycache_prefix={folder}", "-c", _SCRIPT]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


def render(result: dict[str, Any]) -> str:
    columns = {
        "repeats": "processes",
        "jax": "import jax (processor s, median)",
        "least_jax": "least",
        "jaxpsd": "import jaxpsd after it (s, median)",
        "least_jaxpsd": "least",
        "names": "all of its names (s, median)",
        "least_names": "least",
    }
    return "# Time of importing\n\n" + table(columns, [result["seconds"]])


if __name__ == "__main__":
    main("import_time", run, render)
