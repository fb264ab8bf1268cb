"""The results of the examples: held-out success before and after training, over several seeds.

    python -m research.results             # every example
    python -m research.results sql plain   # these two
    python -m research.results calc --seeds 3 --tasks 200

Each example is a study of one variant; `research.study` says how those are made and published.
"""

from __future__ import annotations

from research.examples import EXAMPLES
from research.study import main

if __name__ == "__main__":
    main(EXAMPLES, "research.results")
