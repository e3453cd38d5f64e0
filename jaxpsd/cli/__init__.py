"""The command line: `jaxpsd demo | diagnose | test | moments | rank | tune`."""

from jaxpsd.cli.commands import main

__all__ = ["main"]
