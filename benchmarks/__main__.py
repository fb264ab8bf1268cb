"""Run the benchmarks of `make bench`; those that are run by hand are modules of their own."""

from __future__ import annotations

from benchmarks import constrained, engine, gateway, imports, merging, rows, served, tagging, verl_rows
from benchmarks.stores import __main__ as stores

for benchmark in (imports, tagging, gateway, served, engine, constrained, merging, rows, verl_rows, stores):
    print(f"\n== {benchmark.__name__} ==", flush=True)
    benchmark.main()
