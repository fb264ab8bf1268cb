"""The results of the examples: held-out success before and after training, over several seeds.

    python -m benchmarks.results             # every example
    python -m benchmarks.results sql plain   # these two
    python -m benchmarks.results calc --seeds 3 --tasks 200

Each example is a study of one variant; `benchmarks.study` says how those are made and published.
"""

from __future__ import annotations

from benchmarks.examples import EXAMPLES
from benchmarks.study import main

if __name__ == "__main__":
    main(EXAMPLES, "benchmarks.results")
