"""What a call that takes longer shows while one waits: what it is doing, and for how long."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

# Seconds before anything is shown: most calls are over by then.
_PATIENCE = 2.0


@contextmanager
def showing(name: str, *, progress: bool) -> Iterator[Callable[[str], None]]:
    """Give a function to say what is being done. It shows on a terminal or in a notebook, and is gone at the end."""
    if not progress or not _has_reader():
        yield lambda doing: None
        return
    from tqdm import tqdm  # Not needed by most, and slow to import. Without widgets, which notebooks may not have.

    # Nothing is shown before it is refreshed.
    bar = tqdm(desc=name, delay=float("inf"), leave=False, bar_format="{desc} … {elapsed}")
    first = Timer(_PATIENCE, bar.refresh)
    first.daemon = True
    first.start()

    def show(doing: str) -> None:
        bar.set_description_str(f"{name}: {doing}", refresh=not first.is_alive())

    try:
        yield show
    finally:
        if not first.is_alive():
            # Else tqdm takes it that there is nothing to wipe away.
            bar.delay = 0
        first.cancel()
        bar.close()


def _has_reader() -> bool:
    """Whether somebody sees what goes to the standard error: a terminal or a notebook, and no file or pipe."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel.zmqshell" in sys.modules)
