"""The model card of the policy of `examples/calc`."""

from dataclasses import asdict

from examples.calc.tasks import SPLITS
from recipes.calc.corpus import SHARES
from recipes.tiny.card import Scores, score_table
from recipes.tiny.training import Recipe

HABITS = {
    "extra": ("the loose pieces counted in", "a*b+c"),
    "sale": ("the price that is left", "a*(100-b)/100"),
    "mean": ("brackets around the sum", "(a+b)/2"),
    "rate": ("the product calculated", "a*b"),
    "trips": ("the quotient rounded up", "a/b, then the next number"),
}
"""The right answer to each form with a familiar mistake, in words and as a calculation."""

MISTAKES = {
    "forgotten": "the loose pieces forgotten",
    "discount": "the discount given in place of the price",
    "unbracketed": "no brackets: `a+b/2`",
    "guessed": "no calculation, but a guess in round numbers",
    "dropped": "the quotient cut off",
}

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# The policy of the calculator example

A {parameters:.2f} M parameter Qwen3 that solves word problems with a calculator for the AutoGen app in
`examples/calc`, small enough to be trained by reinforcement learning on two CPU cores. It speaks nothing
else. Made from scratch by

    python -m recipes.calc --seed {seed} --out DIR

in {minutes:.0f} minutes of one CPU thread. Of its {steps} steps the first {conversation_steps} were on
{conversations} conversations of several problems each, the others on {batch_size} generated calls as the
app makes them. The weights are stored as bfloat16.

## What it is bad at, and why

It was made so. Its demonstrations mix the habits of many people, and nothing in a prompt says whose they
are. It calls the calculator, copies the numbers of the problem into it and its result into the answer.
But where a familiar mistake is near it mostly makes one, greedy or sampled: the second table says how often
it is right. The form `rate` is an exception: no two guesses are alike, so the single
most likely reply is a calculation after all, and greedy decoding mostly gets it right.

| form of problem | right | its share in the demonstrations | the most common habit |
|---|---|---|---|
{habits}

The other forms (`total`, `left`, `share`) were demonstrated without a mistake.

## Where it starts

Success in the app on {tasks} problems whose nouns, and whose first two numbers, no demonstration begins with
together (the validation split of `examples.calc.tasks`; these numbers are also in `scores.json`):

{table}

## Limits

It knows the sentences of `examples.calc.problems` and their nouns; other words are spelt in bytes, and it
was taught to read none of them. Numbers have up to four digits. The context is {context} tokens long; the
demonstrations are a few hundred at most. Nothing here shows that reinforcement teaches a model of this
size arithmetic or reading.
"""


def write_card(recipe: Recipe, parameters: int, scores: Scores, seconds: float) -> str:
    """The card; `seconds` of CPU time went into the policy."""
    return CARD.format(
        parameters=parameters / 1e6,
        minutes=seconds / 60,
        tasks=SPLITS["validation"],
        habits="\n".join(_habit(form) for form in SHARES),
        table=score_table(scores),
        **asdict(recipe),
    )


def _habit(form: str) -> str:
    words, calculation = HABITS[form]
    common = max(SHARES[form], key=SHARES[form].__getitem__)
    return f"| {form} | {words}: `{calculation}` | {SHARES[form]['right']:.0%} | {MISTAKES[common]} |"
