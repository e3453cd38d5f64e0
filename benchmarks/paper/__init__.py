"""The paper's experiments, each by one command: `python -m benchmarks.paper NAME`."""
