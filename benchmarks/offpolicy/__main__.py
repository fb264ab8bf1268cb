"""Off-policy training on the SQL agent: three studies, their tables and plots.

python -m benchmarks.offpolicy                   # all three
python -m benchmarks.offpolicy replay --seeds 5
"""

from benchmarks.offpolicy.studies import STUDIES
from benchmarks.study import main

main(STUDIES, "benchmarks.offpolicy")
