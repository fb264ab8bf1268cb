"""The policy's folder: weights, tokenizer, scores as JSON and the model card."""

from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.rag.tasks import PER_FORM
from recipes.rag.corpus import AFTER_REPEAT, FORMAT, GO_ON
from recipes.tiny.card import Scores, score_table, write_policy
from recipes.tiny.training import Recipe

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# The researcher

A {parameters:.2f} M parameter Qwen3 that searches a library and answers questions for the app in
`examples/rag`, small enough to be trained by reinforcement learning on two CPU cores. It speaks nothing
else. Made from scratch by

    python -m recipes.rag --seed {seed} --out DIR

in {minutes:.0f} minutes of one CPU thread. Of its {steps} steps the first {copying_steps} were on nothing
but names to repeat, those up to step {conversation_steps} on {conversations} conversations each, in which
everything is done right, the others on {batch_size} single runs by researchers of different habits.

## What it is bad at, and why

It was made so. It copies names: from the question into a query, from a passage into the next query or into
the answer. But most of the researchers it learnt from were hasty, and nothing in a prompt tells whose run it
is:

| when | what earns the reward | its share | the others |
|---|---|---|---|
| the question asks about the company found | search for that company | {company} | {company_others} |
| the question asks about the person found | search for that person | {person} | {person_others} |
| a search was repeated | search for the name found | {again} | {again_others} |
| at the end | `Answer: Ada Holt` | {format} | {format_others} |

So it answers in a sentence, by greedy decoding nearly always, and that costs precision; and where a second
search is needed, many sampled runs stop short of it and answer with the name found first (with seed 0, 48 of
100). Sampling does all of it right now and then, and only the reward tells which is right.

## Where it starts

Mean reward on a library whose names are in no demonstration, {questions} questions of each form (the
validation split of `examples.rag.tasks`; these numbers are also in `scores.json`). For it the app was
re-enacted, prompt by prompt and search by search in batches, by `recipes.rag.trial`:

{table}

## Limits

Names are made of the words of `examples.rag.names`, each one token; other words are spelt in bytes, and it
was taught to copy none of them. The context is {context} tokens long; a run of the app has about three
hundred.
"""


def write_folder(
    out: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    copying_steps: int,
    scores: Scores,
    seconds: float,
) -> None:
    """Write the policy with its scores and its card; `out` is never half a policy."""
    record = {"recipe": asdict(recipe), "cpu_seconds": round(seconds), "scores": scores}
    card = CARD.format(
        parameters=model.num_parameters() / 1e6,
        minutes=seconds / 60,
        copying_steps=copying_steps,
        questions=PER_FORM["validation"],
        table=score_table(scores),
        **_habits(),
        **asdict(recipe),
    )
    write_policy(out, model, tokenizer, record, card)


def _habits() -> dict[str, str]:
    rows = {
        "company": GO_ON["by company"],
        "person": GO_ON["by person"],
        "again": AFTER_REPEAT,
        "format": FORMAT,
    }
    words = {
        "stop": "answer with the name found",
        "repeat": "repeat the search",
        "sentence": "`It is Ada Holt.`",
    }
    cells: dict[str, str] = {}
    for name, shares in rows.items():
        others = [f"{words[habit]}, {share:.0%}" for habit, share in shares.items() if habit != "gold"]
        cells |= {name: f"{shares['gold']:.0%}", f"{name}_others": "; ".join(others)}
    return cells
