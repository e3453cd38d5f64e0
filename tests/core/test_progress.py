"""What a call that takes longer shows while one waits."""

import io
import time

import pytest

from jaxpsd._core import progress
from jaxpsd._core.progress import showing


class Terminal(io.StringIO):
    """Somebody reads it."""

    def isatty(self):
        return True


def set_up(monkeypatch, stream, patience):
    """A standard error of one's own; not by a fixture, after which pytest puts another in its place."""
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    return stream


def wait_for(text, terminal):
    deadline = time.monotonic() + 20
    while text not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert text in terminal.getvalue()


def test_what_takes_long_is_named_and_wiped_away(monkeypatch):
    terminal = set_up(monkeypatch, Terminal(), 0.05)
    with showing("diagnose", progress=True) as show:
        show("testing")
        wait_for("diagnose: testing", terminal)
        show("moments")
        wait_for("diagnose: moments", terminal)
    assert terminal.getvalue().endswith(" \r")


def test_what_is_quick_shows_nothing(monkeypatch):
    terminal = set_up(monkeypatch, Terminal(), 1000)
    with showing("diagnose", progress=True) as show:
        show("testing")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO, True), (Terminal, False)], ids=["piped", "silenced"])
def test_nothing_is_shown_to_nobody_or_against_their_will(monkeypatch, stream, wanted):
    stream = set_up(monkeypatch, stream(), 0.0)
    with showing("rank", progress=wanted) as show:
        show("replicates")
        time.sleep(0.05)
    assert stream.getvalue() == ""
