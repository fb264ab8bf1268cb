"""The recipe of the tiny policy, run for a moment, and the policy that the project ships."""

import json
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.sql.names import NOUNS, SUFFIXES, get_names
from examples.sql.tasks import load_tasks
from recipes.tiny.__main__ import main
from recipes.tiny.corpus import RECOVERY, SHARES, converse, demonstrate
from recipes.tiny.training import encode, reply_loss
from recipes.tiny.trial import measure

SHIPPED = Path(__file__).parents[2] / "lightning_core" / "models" / "tiny"
PLAIN = ("list", "count", "aggregate", "group")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SHIPPED).eval()


def test_the_recipe_writes_a_folder_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "policy"
    out.mkdir()
    (out / "stale").touch()
    monkeypatch.setattr(sys, "argv", ["tiny", "--out", str(out), "--steps", "2", "--limit", "4"])
    threads = torch.get_num_threads()
    try:
        main()
    finally:
        torch.set_num_threads(threads)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    assert set(json.loads((out / "scores.json").read_text())["scores"]) == {"greedy", "sampled"}
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert not (out / "stale").exists()
    assert json.loads((out / "tokenizer.json").read_text())["padding"] is None


def test_the_apps_convention_is_never_the_most_common_one() -> None:
    for shares in (*SHARES.values(), RECOVERY):
        assert sum(shares.values()) == pytest.approx(1)
        assert 0.1 <= shares["gold"] < max(shares.values())


def test_demonstrations_use_no_held_out_name() -> None:
    held_out = {name for kind in NOUNS for name in get_names(kind, True)}
    shown = [d.messages[-1]["content"] for d in islice(demonstrate(random.Random(9)), 300)]
    words = {word.strip("(),:?.'") for text in shown for word in text.replace("(", " ").split()}
    assert "deleted" in words
    assert not words & {name.sql for name in held_out if name.suffix}


def test_demonstrations_of_two_seeds_differ_and_of_one_are_the_same() -> None:
    first, again, other = (list(islice(demonstrate(random.Random(seed)), 20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_only_the_reply_carries_loss(model: Any, tokenizer: Any) -> None:
    short, long = (
        encode(demonstration, tokenizer) for demonstration in islice(demonstrate(random.Random(2)), 2)
    )
    assert len(short[0]) != len(long[0])
    surprise = []
    with torch.no_grad():
        for ids, said in (short, long):
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            surprise += [-float(logprobs[i - 1, ids[i]]) for i in range(len(ids)) if said[i]]
        padded = reply_loss(model, [short, long], tokenizer.pad_token_id)
    by_hand = sum(surprise) / len(surprise)
    assert padded.item() == pytest.approx(by_hand, abs=1e-4)


def test_every_piece_of_a_name_is_one_token(tokenizer: Any) -> None:
    nouns = [noun for group in NOUNS.values() for noun in group]
    for piece in [f" {noun}" for noun in nouns] + [f"_{suffix}" for suffix in SUFFIXES if suffix]:
        assert len(tokenizer.encode(piece)) == 1, piece


@pytest.mark.parametrize(
    "text", ["SELECT name FROM x_y WHERE a >= 47", "naïve 日本 \n\t'quoted'  <tool_call>"]
)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_reply_ends_with_the_end_of_turn(tokenizer: Any) -> None:
    demonstration = next(demonstrate(random.Random(0)))
    ids, said = encode(demonstration, tokenizer)
    start = said.index(True)
    turns = [*demonstration.messages, {"role": "assistant", "content": demonstration.reply}]
    assert tokenizer.decode(ids) + "\n" == tokenizer.apply_chat_template(turns, tokenize=False)
    assert tokenizer.decode(ids[:start]).endswith("<|im_start|>assistant\n")
    assert ids[-1] == tokenizer.eos_token_id
    assert said == [False] * start + [True] * (len(ids) - start)


def test_every_reply_of_a_conversation_carries_loss(tokenizer: Any) -> None:
    ids, said = encode(next(converse(random.Random(0), length=3)), tokenizer)
    kept = tokenizer.decode([token for token, flag in zip(ids, said, strict=True) if flag])
    assert kept.count("SELECT") == kept.count("<|im_end|>") == 3
    assert "Question" not in kept


def test_the_template_speaks_tool_calls_in_qwens_form(tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "yes"},
        {"role": "tool", "content": "no"},
    ]
    text = tokenizer.apply_chat_template(turns, tools=[WEATHER], add_generation_prompt=True, tokenize=False)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert json.dumps(WEATHER) in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call><|im_end|>' in text
    results = "<tool_response>\nyes\n</tool_response>\n<tool_response>\nno\n</tool_response>"
    assert text.endswith(f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n")


def test_the_shipped_policy_is_small(model: Any) -> None:
    assert model.num_parameters() <= 6e6
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 15e6
    assert model.config.max_position_embeddings >= 1024


def test_the_shipped_policy_is_right_where_no_convention_matters(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    tasks = [task for task in load_tasks("validation", tmp_path) if task["form"] in PLAIN][:16]
    assert measure(model, tokenizer, tasks, greedy=True)["all"] >= 0.9


def test_the_shipped_policy_does_not_know_the_conventions(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    tasks = [task for task in load_tasks("validation", tmp_path) if task["form"] not in PLAIN][:16]
    assert measure(model, tokenizer, tasks, greedy=True)["all"] <= 0.2
