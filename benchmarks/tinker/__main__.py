"""The SQL agent with `backend="local"` and with `backend="tinker"`, from the same start with the same seeds.

    make bench-tinker                              # three seeds of each, on this machine's processor
    python -m benchmarks.tinker --seeds 1 --steps 4

`benchmarks.study` says how runs are made, kept and published.
"""

from benchmarks.study import main
from benchmarks.tinker.study import STUDIES

main(STUDIES, "benchmarks.tinker")
