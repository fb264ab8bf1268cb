"""The model card of an exported policy says what the run's summary says, and the hub can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
from huggingface_hub import ModelCard

import lightning_core as lightning
from lightning_core.cli.serving import _notes
from lightning_core.trainer.summary import card

BOATS = [{"question": f"List the boats with speed above {n}."} for n in range(3)]


async def solve(task: lightning.Task, **form: Any) -> float:
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            said = [{"role": "user", "content": str(task.input["question"])}]
            reply = await client.chat.completions.create(
                model="policy",
                messages=said,  # type: ignore[arg-type]
                max_completion_tokens=6,
                **form,
            )
    return float(len(reply.choices[0].message.content or ""))


async def solve_in_json(task: lightning.Task) -> float:
    return await solve(task, response_format={"type": "json_object"})


def test_the_card_says_how_the_policy_must_be_asked(tmp_path: Path) -> None:
    algorithm = lightning.GRPO(group_size=2, tasks_per_step=2)
    for name, app in (("plain", solve), ("held", solve_in_json)):
        lightning.Trainer(
            model="tiny",
            agents=["writer"],
            algorithm=algorithm,
            steps=1,
            folder=tmp_path / name,
            progress=False,
        ).fit(app, train=BOATS[:2])
        text = (tmp_path / name / "policy" / "README.md").read_text()
        assert "`temperature: 0`" in text
        assert ("Replies of `writer` were held to a form" in text) == (name == "held")
        assert _notes(tmp_path / name) == _notes(tmp_path / name / "policy") != []
    assert _notes(tmp_path) == []


def test_the_card_has_the_figures_of_the_summary(tmp_path: Path) -> None:
    algorithm = lightning.GRPO(group_size=2, tasks_per_step=2)
    trainer = lightning.Trainer(
        model="tiny", agents=["writer"], algorithm=algorithm, steps=1, folder=tmp_path / "run", progress=False
    )
    summary = trainer.fit(solve, train=BOATS[:2], validation=BOATS[2:])
    text = (tmp_path / "run" / "policy" / "README.md").read_text()
    assert ModelCard(text).data.to_dict() == {"library_name": "transformers"}
    assert "agents are `writer`" in text
    assert "4 rollouts in 1 updates, seed 0" in text
    assert summary.before is not None
    assert summary.after is not None
    assert f"| 0 | {summary.before.sampled:.3f} | {summary.before.greedy:.3f} |" in text
    assert f"| 1 | {summary.after.sampled:.3f} | {summary.after.greedy:.3f} |" in text
    assert ("curve.png" in text) == (tmp_path / "run" / "policy" / "curve.png").exists()

    known = ModelCard(card(summary.model_copy(update={"model": "smollm2"}), curve=False)).data
    assert known.to_dict()["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert known.to_dict()["license"] == "apache-2.0"

    folder = ModelCard(card(summary.model_copy(update={"model": str(tmp_path / "run")}), curve=False)).data
    assert "base_model" not in folder.to_dict()

    content = "LoRA adapters in PEFT's format"
    alone = card(summary, curve=False, adapters=True)
    assert (ModelCard(alone).data.to_dict()["library_name"], content in alone) == ("peft", True)
    assert content not in text
