import json
import subprocess
import sys

import jax
import pytest

from jaxpsd.cli import main


def test_the_demo_ranks_step_sizes(capsys):
    assert main(["demo", "--draws", "4000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("The step size to use: 0.0")
    assert [line.split()[0] for line in lines if line[:4].strip().isdigit()] == [str(k) for k in range(1, 9)]


def test_the_demo_agrees_with_the_known_errors(capsys):
    main(["demo", "--json", "--seed", "1"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["psd"] for row in rows] == sorted(row["psd"] for row in rows)
    worst = max(row["largest_sd_error"] for row in rows)
    assert rows[0]["largest_sd_error"] < 0.05 < worst
    assert rows[0]["step_size"] in (0.02, 0.05, 0.1)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["demo", "--draws", "0"],
        ["demo", "--order", "40"],
        ["demo", "--draws", "many"],
        ["demo", "--seed", "-1"],
        ["unknown"],
    ],
)
def test_mistakes_exit_with_a_message(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: jaxpsd" in capsys.readouterr().err


def test_the_demo_runs_in_double_precision(capsys):
    with jax.enable_x64(True):
        assert main(["demo", "--draws", "1000"]) == 0
    assert "The step size to use" in capsys.readouterr().out


def test_the_package_is_a_program():
    done = subprocess.run([sys.executable, "-m", "jaxpsd", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("jaxpsd ")
