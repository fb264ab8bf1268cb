"""The crew's policy reads CrewAI's phrases as one token each, and is the shipped policy in all else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crewai")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.crew.app import build_crew, read_schema
from examples.crew.policy import SHIPPED, Listener, overhear_phrases, write_policy
from examples.sql.prompts import Messages, write_prompt
from examples.sql.tasks import load_tasks

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of CrewAI's own fields


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("crew"))


def crew_prompts(task: dict[str, str]) -> list[Messages]:
    """Returns the crew's real prompts: of its writer and, after a failure, of its reviewer."""
    llm = Listener(model="listener")
    inputs = {"schema": read_schema(task["database"]), "question": task["question"]}
    build_crew(task["database"], llm).kickoff(inputs=inputs)
    return llm.asked


def encode(folder: Path, messages: Messages) -> list[int]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def answer(folder: Path, messages: Messages) -> str:
    """The greedy reply."""
    ids = torch.tensor([encode(folder, messages)])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64)
    text: str = AutoTokenizer.from_pretrained(folder).decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    return text


def test_each_phrase_is_one_token(policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    phrases = overhear_phrases()
    assert any("You are SQL writer." in phrase for phrase in phrases)
    assert [len(tokenizer.encode(phrase, add_special_tokens=False)) for phrase in phrases] == [1] * len(
        phrases
    )


def test_a_prompt_of_the_crew_is_as_short_as_that_of_the_sql_app(policy: Path, tmp_path: Path) -> None:
    for task in load_tasks("validation", tmp_path, limit=3):
        writer, _ = crew_prompts(task)
        plain = write_prompt(read_schema(task["database"]), task["question"])
        assert len(encode(policy, writer)) <= len(encode(SHIPPED, plain))
        assert len(encode(SHIPPED, writer)) > 2 * len(encode(SHIPPED, plain))


def test_no_other_weight_is_touched(policy: Path) -> None:
    ours, shipped = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        for folder in (policy, SHIPPED)
    )
    assert ours.keys() == shipped.keys()
    assert all(torch.equal(ours[name][: len(weight)], weight) for name, weight in shipped.items())


def test_it_writes_for_the_crew_what_the_shipped_policy_writes_for_the_sql_app(
    policy: Path, tmp_path: Path
) -> None:
    tasks = [t for t in load_tasks("validation", tmp_path) if t["form"] in ("list", "count", "group")][:8]
    pairs = [
        (
            answer(policy, crew_prompts(task)[0]),
            answer(SHIPPED, write_prompt(read_schema(task["database"]), task["question"])),
        )
        for task in tasks
    ]
    assert sum(ours == shipped for ours, shipped in pairs) >= 7


@pytest.mark.parametrize(("file", "ending"), [("model.safetensors", b"\0"), ("tokenizer.json", b"}\n")])
def test_another_shipped_policy_is_another_folder(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, ending: bytes
) -> None:
    newer = tmp_path / "tiny"
    shutil.copytree(SHIPPED, newer)
    (newer / file).write_bytes((SHIPPED / file).read_bytes()[:-1] + ending)
    monkeypatch.setattr("examples.crew.policy.SHIPPED", newer)
    assert write_policy(tmp_path).name != policy.name


def test_a_policy_that_is_there_is_not_written_again(policy: Path) -> None:
    before = (policy / "model.safetensors").stat().st_mtime_ns
    assert write_policy(policy.parent) == policy
    assert (policy / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in policy.parent.iterdir()] == [policy.name]
