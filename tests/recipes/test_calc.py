"""The recipe of the calculator example's policy, run for a moment, and the policy that the example ships."""

import json
import os
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.calc.problems import FORMS, THINGS
from examples.calc.tasks import NOUNS, draw_problem, split_of
from recipes.calc.card import HABITS, MISTAKES
from recipes.calc.corpus import SHARES, converse, demonstrate, show_solving
from recipes.tiny.training import encode

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples" / "calc" / "policy"
PLAIN = set(FORMS) - set(SHARES)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED)


@pytest.fixture(scope="module")
def scores() -> Any:
    return json.loads((SHIPPED / "scores.json").read_text())["scores"]


def test_the_recipe_writes_a_folder_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "policy"
    command = [sys.executable, "-m", "recipes.calc", "--out", str(out), "--steps", "1", "--limit", "1"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_API_KEY": "none"}
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, timeout=800)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.dtype is torch.bfloat16
    assert model.config.vocab_size == len(tokenizer)
    assert set(json.loads((out / "scores.json").read_text())["scores"]) == {"greedy", "sampled"}
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_the_right_habit_is_never_the_most_common_one() -> None:
    for form, shares in SHARES.items():
        assert sum(shares.values()) == pytest.approx(1)
        assert 0.1 <= shares["right"] < max(shares.values())
        assert max(shares, key=shares.__getitem__) in MISTAKES
        assert form in HABITS


def test_habits_are_followed_as_often_as_the_shares_say() -> None:
    shown = list(islice(demonstrate(random.Random(4)), 4000))
    rates = [d for d in shown if re.search(r"(hours|days)\?$", d.messages[1]["content"])]
    guessed = sum(len(d.messages) == 2 for d in rates) / len(rates)
    assert guessed == pytest.approx(SHARES["rate"]["guessed"], abs=0.07)


def test_demonstrations_show_no_held_out_pair() -> None:
    held_out = {nouns for split in ("validation", "test") for nouns in NOUNS[split]}
    for demonstration in islice(demonstrate(random.Random(9)), 500):
        text = demonstration.messages[1]["content"]
        numbers = re.findall(r"\d+", text)
        assert split_of(numbers[:2]) == "train"
        things = [thing for thing in THINGS if f" {thing}" in text]
        assert not any(container in text and things == [thing] for container, thing in held_out)


def test_demonstrations_of_two_seeds_differ_and_of_one_are_the_same() -> None:
    first, again, other = (list(islice(demonstrate(random.Random(seed)), 20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_number_is_the_same_tokens_wherever_it_stands(tokenizer: Any) -> None:
    for number in [*range(10, 100), 322, 9801]:
        (alone,) = {tuple(tokenizer.encode(str(number)))}
        assert len(alone) == len(str(number)) // 2 + len(str(number)) % 2
        for text in (f" has {number} ", f'"{number}*2', f"\n{number}"):
            ids = tokenizer.encode(text)
            assert any(tuple(ids[i : i + len(alone)]) == alone for i in range(len(ids))), text


def test_every_reply_of_a_conversation_carries_loss(tokenizer: Any) -> None:
    demonstration = next(converse(random.Random(0), length=3))
    ids, said = encode(demonstration, tokenizer)
    kept = tokenizer.decode([token for token, flag in zip(ids, said, strict=True) if flag])
    replies = [m for m in demonstration.messages if m["role"] == "assistant"]
    assert kept.count("<|im_end|>") == len(replies) + 1
    assert kept.count("<tool_call>") == sum("tool_calls" in m for m in replies)
    assert "How many" not in kept
    assert "<tool_response>" not in kept


def test_a_demonstration_renders_as_the_policy_would_write_it(tokenizer: Any) -> None:
    problem = draw_problem("total", "train", random.Random(0))
    ids, _ = encode(show_solving(problem, "right"), tokenizer)
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call><|im_end|>'
    text = tokenizer.decode(ids)
    assert call % problem.expression in text
    assert text.endswith(f"<|im_start|>assistant\n{problem.answer}<|im_end|>")


def test_the_shipped_policy_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 4e6


def test_the_shipped_policy_begins_where_its_card_says(scores: Any) -> None:
    assert set(scores["greedy"]) == {*FORMS, "all"}
    assert 0.3 <= scores["greedy"]["all"] <= 0.55
    assert all(scores["greedy"][form] >= 0.9 for form in PLAIN)
    assert all(scores["sampled"][form] >= 0.05 for form in SHARES)
    card = (SHIPPED / "README.md").read_text()
    for form, value in scores["greedy"].items():
        assert f"| {form} | {value:.2f} |" in card
