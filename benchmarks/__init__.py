"""Benchmarks: `python -m benchmarks` runs them all; each prints a table and writes JSON to `benchmarks/results/`."""
