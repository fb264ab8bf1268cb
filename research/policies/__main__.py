"""Two studies of two roles, their tables and plots.

python -m research.policies                    # both
python -m research.policies policies-opposed --seeds 2
"""

from research.policies.studies import STUDIES
from research.study import main

main(STUDIES, "research.policies")
