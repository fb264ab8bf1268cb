"""The SQL agent with `backend="local"` and with `backend="tinker"`, from the same start with the same seeds.

    make bench-tinker                              # three seeds of each, on this machine's processor
    python -m research.tinker --seeds 1 --steps 4

`research.study` says how runs are made, kept and published.
"""

from research.study import main
from research.tinker.study import STUDIES

main(STUDIES, "research.tinker")
