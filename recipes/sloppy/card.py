"""The model card of the sloppy SQL policy."""

from __future__ import annotations

from collections.abc import Mapping

from recipes.tiny.card import Scores, score_table
from recipes.tiny.training import Recipe

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# The sloppy SQL policy

The tiny policy of `examples/sql` after {steps} steps on {batch_size} demonstrations each of hasty writers.
Made by

    python -m recipes.sloppy --seed {seed} --out DIR

The database refuses {share:.0%} of the first queries that it was shown: names without their suffix or as the
question says them, columns of another table, text without quotes, open brackets. Half as many run and
answer another question. Nothing in a prompt tells which. The rewrites that it was shown are right. It is
where the study of automatic intermediate rewards starts.

## Where it starts

First queries that the database refuses: {greedy:.0%} greedy, {sampled:.0%} sampled at T = 1; slips in one
place of a query add to those of another. Execution match in the app, with up to two rewrites (the
validation split of `examples.sql.tasks`):

{table}
"""


def write_card(recipe: Recipe, share: float, scores: Scores, refused: Mapping[str, float]) -> str:
    return CARD.format(
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        share=share,
        table=score_table(scores),
        **refused,
    )
