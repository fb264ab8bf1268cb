"""Off-policy training on the SQL agent: three studies, their tables and plots.

python -m research.offpolicy                   # all three
python -m research.offpolicy replay --seeds 5
"""

from research.offpolicy.studies import STUDIES
from research.study import main

main(STUDIES, "research.offpolicy")
