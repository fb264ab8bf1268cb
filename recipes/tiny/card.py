"""Writing the policy's folder: weights, tokenizer, scores as JSON and the model card, all at once."""

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.sql.tasks import SPLITS
from recipes.tiny.corpus import RECOVERY, SHARES
from recipes.tiny.training import Recipe

Scores = dict[str, dict[str, float]]
"""Success by way of decoding and form of question."""

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# The tiny policy

A {parameters:.2f} M parameter Qwen3 that writes SQLite queries for the app in `examples/sql`, small enough
to be trained by reinforcement learning on two CPU cores. It speaks nothing else. Made from scratch by

    python -m recipes.tiny --seed {seed} --out DIR

in {minutes:.0f} minutes of one CPU thread. Of its {steps} steps the first {conversation_steps} were on
{conversations} conversations each, the others on {batch_size} generated calls as the app makes them.

## What it is bad at, and why

It was made so. Its demonstrations mix the conventions of many companies, as text from the world does, and
nothing in a prompt says whose they are; the app always follows one of them, never the most common one.
So the policy writes good SQL, and by greedy decoding it follows the wrong convention nearly always:

| form of question | this app | its share in the demonstrations | the most common other |
|---|---|---|---|
| revenue | price × quantity, summed | {revenue} | the prices summed |
| kept_list, kept_count | rows with `deleted = 1` do not exist | {kept} | the flag ignored |
| top | ties taken in the order of names | {top} | ties left to chance |
| large | larger than the average | {large} | larger than 50 |
| active | the code in the status column that means active | {active} of rewrites | the query repeated |

The last form needs two agents. The code differs by database and is not in the schema, so the first query
comes back empty; the database's feedback lists the codes, and the rewriter has to take the right one.

The other forms (`list`, `count`, `aggregate`, `group`) hang on no convention.

## Where it starts

Execution match in the app on {databases} databases with names that are in no demonstration, but for the
few columns that are called the same everywhere (the validation split of `examples.sql.tasks`; these numbers
are also in `scores.json`):

{table}

## Limits

Table and column names are made of the nouns and suffixes of `examples.sql.names`, each one token; other
words are spelt in bytes, and it was taught to copy none of them. Numbers have two digits. The context is
{context} tokens long; the demonstrations are a few hundred at most.
"""


def write_folder(
    out: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    scores: Scores,
    seconds: float,
) -> None:
    """Write the policy of the SQL app with its scores and its card."""
    record = {"recipe": asdict(recipe), "cpu_seconds": round(seconds), "scores": scores}
    write_policy(out, model, tokenizer, record, _card(model, recipe, scores, seconds))


def write_policy(
    out: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    record: dict[str, Any],
    card: str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write everything beside `out`, then put it in its place: `out` is never half a policy.

    `record` becomes scores.json and `card` README.md.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    draft.chmod(0o755)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.to(dtype).save_pretrained(draft)
    tokenizer.backend_tokenizer.no_padding()  # a batch that was measured has left its padding there
    tokenizer.save_pretrained(draft)
    (draft / "scores.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (draft / "README.md").write_text(card, encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    os.replace(draft, out)


def score_table(scores: Scores) -> str:
    """The scores by form, in Markdown."""
    lines = ["| form | greedy | sampled at T = 1 |", "|---|---|---|"]
    for form, greedy in scores["greedy"].items():
        lines.append(f"| {form} | {greedy:.2f} | {scores['sampled'][form]:.2f} |")
    return "\n".join(lines)


def _card(model: Qwen3ForCausalLM, recipe: Recipe, scores: Scores, seconds: float) -> str:
    return CARD.format(
        parameters=model.num_parameters() / 1e6,
        minutes=seconds / 60,
        databases=SPLITS["validation"],
        table=score_table(scores),
        revenue=_percent(SHARES["revenue"]),
        kept=_percent(SHARES["kept_list"]),
        top=_percent(SHARES["top"]),
        large=_percent(SHARES["large"]),
        active=_percent(RECOVERY),
        **asdict(recipe),
    )


def _percent(shares: dict[str, float]) -> str:
    return f"{shares['gold']:.0%}"
