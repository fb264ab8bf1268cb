"""The recipe of the policy that reads instructions: what its prompts say, and what its replies follow."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

from examples.sql.prompts import write_prompt
from examples.sql.questions import NEEDS
from recipes.promptable.corpus import demonstrate
from recipes.promptable.sentences import HELD_OUT, TOPICS, WORDINGS, bank, say
from recipes.tiny.corpus import SHARES

ROOT = Path(__file__).parents[2]
SEED = write_prompt("", "")[0]["content"]
MARKS = {
    "revenue": {"gold": "SUM(price * quantity)", "price": "SUM(price)", "quantity": "SUM(quantity)"},
    "kept": {"gold": "deleted = 0", "deleted": "deleted = 1"},
    "top": {"gold": ", name LIMIT", "id": ", id LIMIT"},
    "large": {"gold": "SELECT AVG(size)", "50": "size > 50", "80": "size > 80"},
}
"""The part of a query that follows a convention."""


def test_the_recipe_writes_a_folder_whose_card_says_what_it_reads(tmp_path: Path) -> None:
    out = tmp_path / "policy"
    command = [sys.executable, "-m", "recipes.promptable", "--out", str(out), "--steps", "1", "--limit", "1"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_API_KEY": "none"}
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, timeout=800)
    scores = json.loads((out / "scores.json").read_text())["scores"]
    assert set(scores) == {"nothing said", "shown", "never shown", "wrong"}
    assert "| form | nothing said | shown | never shown | wrong |" in (out / "README.md").read_text()
    assert (out / "model.safetensors").exists()


def test_every_topic_and_convention_is_one_of_the_questions() -> None:
    assert set(TOPICS) <= set(NEEDS)
    assert set(TOPICS.values()) == set(WORDINGS)
    for form, topic in TOPICS.items():
        assert set(WORDINGS[topic]) == set(SHARES[form])
    told = [each for choices in WORDINGS.values() for wordings in choices.values() for each in wordings]
    assert len(set(told)) == len(told)


def test_wordings_that_are_held_out_are_never_shown() -> None:
    prompts = [d.messages[0]["content"] for d in islice(demonstrate(random.Random(1)), 3000)]
    assert len(bank()) == HELD_OUT * (1 + sum(map(len, WORDINGS.values())))
    assert not [sentence for sentence in bank() for prompt in prompts if sentence in prompt]
    shown = {
        each for choices in WORDINGS.values() for words in choices.values() for each in words[:-HELD_OUT]
    }
    assert all(any(sentence in prompt for prompt in prompts) for sentence in shown)


def test_replies_follow_the_sentence_on_their_topic() -> None:
    followed = 0
    for shown in islice(demonstrate(random.Random(2)), 1500):
        for topic, choices in WORDINGS.items():
            said = [
                c for c, wordings in choices.items() for w in wordings if w in shown.messages[0]["content"]
            ]
            marks = MARKS[topic]
            found = [choice for choice, mark in marks.items() if mark in shown.reply]
            if said and found:
                assert found == said, shown
                followed += 1
    assert followed > 100


def test_the_prompt_is_the_seed_and_a_sentence_for_each_convention() -> None:
    told = say(SEED, {"large": "gold", "top": "id"}, random.Random(0), held_out=True)
    large, top = (set(WORDINGS[topic][choice]) for topic, choice in (("large", "gold"), ("top", "id")))
    said = [each for each in bank() if each in told]
    assert len(said) == 2
    assert large.intersection(said)
    assert top.intersection(said)
    assert len(told) == len(SEED) + sum(len(each) + 1 for each in said)
    assert say(SEED, {}, random.Random(0)) == SEED
