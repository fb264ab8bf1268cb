"""Run every benchmark that takes minutes at most; training has its own: `python -m benchmarks.results`."""

from __future__ import annotations

from benchmarks import engine, gateway, imports, merging, store, tagging

for benchmark in (imports, tagging, gateway, engine, merging, store):
    print(f"\n== {benchmark.__name__} ==", flush=True)
    benchmark.main()
