"""The recipe of the RAG policy, run for a moment, and the policy that ships with the example."""

import json
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.rag.names import POOLS
from examples.rag.reward import MARK, answer_reward
from examples.rag.tasks import load_tasks
from recipes.rag.__main__ import main
from recipes.rag.corpus import AFTER_REPEAT, FORMAT, GO_ON, converse, copy, demonstrate
from recipes.rag.trial import run_app
from recipes.tiny.training import encode

SHIPPED = Path(__file__).parents[2] / "examples" / "rag" / "policy"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SHIPPED).eval()


def test_the_recipe_writes_a_folder_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "policy"
    monkeypatch.setattr("recipes.rag.__main__.TOKENIZER_TEXTS", 60)
    monkeypatch.setattr(sys, "argv", ["rag", "--out", str(out), "--steps", "1", "--limit", "2"])
    threads = torch.get_num_threads()
    try:
        main()
    finally:
        torch.set_num_threads(threads)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    assert set(json.loads((out / "scores.json").read_text())["scores"]) == {"greedy", "sampled"}
    assert "| all |" in (out / "README.md").read_text()


def test_what_earns_the_reward_is_shown_now_and_then() -> None:
    for shares in (*GO_ON.values(), AFTER_REPEAT, FORMAT):
        assert sum(shares.values()) == pytest.approx(1)
        assert 0.2 <= shares["gold"] <= 0.6
    assert GO_ON["by company"]["gold"] < GO_ON["by company"]["stop"]
    assert FORMAT["gold"] < FORMAT["sentence"]


def test_demonstrations_of_two_seeds_differ_and_of_one_are_the_same() -> None:
    first, again, other = (list(islice(demonstrate(random.Random(seed)), 20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_habits_are_shown_as_often_as_they_say() -> None:
    shown = list(islice(demonstrate(random.Random(1)), 600))
    sentences = sum(d.reply.startswith("It is ") for d in shown)
    assert sentences / len(shown) == pytest.approx(FORMAT["sentence"], abs=0.06)
    by_company = [d for d in shown if " the company that " in d.messages[1]["content"]]
    once = sum(len(d.messages) == 4 for d in by_company)
    assert len(by_company) > 150
    assert once / len(by_company) == pytest.approx(GO_ON["by company"]["stop"], abs=0.12)


def test_a_conversation_is_right_throughout() -> None:
    (conversation,) = islice(converse(random.Random(0), length=9), 1)
    turns = [*conversation.messages, {"role": "assistant", "content": conversation.reply}]
    replies = [t["content"] for t in turns if t["role"] == "assistant" and "tool_calls" not in t]
    assert len(replies) == 9
    assert all(reply.startswith(f"{MARK} ") for reply in replies)


def test_every_call_and_answer_of_a_conversation_carries_loss(tokenizer: Any) -> None:
    ids, said = encode(next(converse(random.Random(0), length=3)), tokenizer)
    kept = tokenizer.decode([token for token, flag in zip(ids, said, strict=True) if flag])
    assert kept.count(MARK) == 3
    assert kept.count("<tool_call>") == tokenizer.decode(ids).count("<tool_response>")
    assert "Who" not in kept
    assert "tool_response" not in kept


def test_names_are_repeated_as_they_were_said(tokenizer: Any) -> None:
    ids, said = encode(next(copy(random.Random(0), length=2)), tokenizer)
    kept = tokenizer.decode([token for token, flag in zip(ids, said, strict=True) if flag])
    first, second = kept.split("<|im_end|>")[:2]
    assert tokenizer.decode(ids).count(first) == tokenizer.decode(ids).count(second) == 2


def test_a_name_has_the_same_two_tokens_wherever_it_stands(tokenizer: Any) -> None:
    for first, second in POOLS.values():
        for left, right in zip(first, second, strict=True):
            name = tokenizer.encode(f"{left} {right}")
            assert len(name) == 2, (left, right)
            for before, after in (
                ("the ship ", "?"),
                ('"', '"}}'),
                ("\n", ": A"),
                ("by ", "."),
                ("in ", ", "),
            ):
                start = len(tokenizer.encode(before))
                assert tokenizer.encode(before + f"{left} {right}" + after)[start : start + 2] == name


def test_the_shipped_policy_is_small(model: Any) -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 6e6
    assert model.config.max_position_embeddings >= 1024


def test_the_shipped_policy_is_right_but_for_the_format_where_one_search_is_enough(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    tasks = [task for task in load_tasks("validation", tmp_path) if task["form"] == "direct"][:16]
    runs = run_app(model, tokenizer, tasks, greedy=True)
    right = [task["answers"][0] in run[-1]["content"] for task, run in zip(tasks, runs, strict=True)]
    assert sum(right) >= 14
    assert not any(run[-1]["content"].startswith(MARK) for run in runs[:4])


def test_the_shipped_policy_stops_short_where_a_second_search_is_needed(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    tasks = [task for task in load_tasks("validation", tmp_path) if task["form"] != "direct"]
    runs = run_app(model, tokenizer, tasks, greedy=False)
    assert 0.35 <= sum(stops_short(run) for run in runs) / len(tasks) <= 0.6
    replies = [run[-1]["content"] for run in runs]
    right = [answer_reward(reply, t["answers"]) for reply, t in zip(replies, tasks, strict=True)]
    assert 0.02 <= sum(right) / len(right) <= 0.4


def test_the_shipped_policy_searches_twice_when_it_is_greedy(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    tasks = [task for task in load_tasks("validation", tmp_path) if task["form"] != "direct"][:32]
    assert not any(stops_short(run) for run in run_app(model, tokenizer, tasks, greedy=True))


def stops_short(run: list[dict[str, Any]]) -> bool:
    """Whether it answered after one search or none."""
    return sum("tool_calls" in turn for turn in run) <= 1
