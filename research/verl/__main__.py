"""The SQL agent with `backend="local"` and with `backend="verl"`, from the same start with the same seeds.

    make bench-verl                              # three seeds of each, on this machine's processor
    python -m research.verl --seeds 1 --steps 4

verl has two ranks here (FSDP2, gloo) and vLLM two servers. `research.study` says how runs are made, kept
and published.
"""

from research.study import main
from research.verl.study import STUDIES

main(STUDIES, "research.verl")
