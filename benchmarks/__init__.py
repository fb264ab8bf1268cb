"""Benchmarks, run by `python -m benchmarks`: each prints a table and writes JSON to `benchmarks/results/`."""
