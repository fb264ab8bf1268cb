"""`Trainer.fit` on the shipped policy: what a run promises when things go wrong, and when they go on."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import openai
import pytest
from transformers import AutoModelForCausalLM

import lightning_core as lightning
from lightning_core.errors import ConfigError, StoreError, TrainingError
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.summary import Summary

TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(8)]
SMALL = lightning.GRPO(group_size=3, tasks_per_step=2)


class App:
    """An app of one agent; `broken` makes it fail before it calls anybody."""

    def __init__(self) -> None:
        self.broken = False

    async def solve(self, task: lightning.Task) -> float:
        if self.broken:
            raise FileNotFoundError("the database is not where it was")
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                reply = await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": str(task.input["question"])}],
                    max_completion_tokens=5,
                )
        return float(len(reply.choices[0].message.content or "") % 4)


def fit(folder: Path, app: App | None = None, *, validation: list = TASKS[6:], **settings) -> Summary:
    trainer = lightning.Trainer(
        **{
            "model": "tiny",
            "agents": ["writer"],
            "algorithm": SMALL,
            "steps": 2,
            "folder": folder,
            "progress": False,
            "on_failure": lightning.FailurePolicy(retries=0),
            **settings,
        }
    )
    return trainer.fit((app or App()).solve, train=TASKS[:6], validation=validation)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit") / "run"
    fit(folder, evaluate_every=1)
    return folder


def test_evaluations_between_steps_are_in_the_summary(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert [found["step"] for found in summary["between"]] == [1]
    assert (summary["before"]["step"], summary["after"]["step"]) == (0, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 9}, "seed"),
        ({"temperature": 0.7}, "differ from before: temperature;"),
        ({"validation": TASKS[5:]}, "validation tasks"),
        ({"algorithm": lightning.GRPO(group_size=4, tasks_per_step=2)}, "group_size"),
        (
            {"algorithm": lightning.GRPO(group_size=3, tasks_per_step=2, kl=0.1)},
            "differ from before: algorithm;",
        ),
        (
            {"algorithm": lightning.RLOO(group_size=3, tasks_per_step=2)},
            "differ from before: algorithm, credit, phases",
        ),
        ({"air": True}, "differ from before: air;"),
        (
            {"judge": lightning.Judge(model="m", base_url="http://localhost:1/v1")},
            "differ from before: judge;",
        ),
        ({"steps": 1}, "steps=2 or more"),
        ({"store": "memory://"}, "store"),
    ],
)
def test_a_run_is_not_resumed_as_another_run(finished, change, named):
    async def record() -> object:
        async with SqliteStore(f"sqlite:///{finished / 'store.db'}") as store:
            return await store.find_run("run")

    before = asyncio.run(record())
    with pytest.raises(ConfigError, match=named):
        fit(finished, resume=True, **change)
    assert asyncio.run(record()) == before


def test_a_finished_run_is_resumed_with_more_steps(finished):
    assert fit(finished, resume=True, steps=3).steps == 3


def test_settings_say_the_same_in_another_process_and_without_what_does_not_count(tmp_path):
    def settings(port: int) -> dict[str, object]:
        where = {"base_url": f"http://localhost:{port}/v1", "api_key": f"secret-{port}"}
        judge = lightning.Judge(model="gpt", rubric=lambda task: "", **where)
        return {"air": lightning.AIR(functions=[lambda records: []]), "judge": judge, "steps": 0}

    fit(tmp_path / "run", **settings(1))
    assert fit(tmp_path / "run", resume=True, **settings(2)).steps == 0


def test_a_store_s_run_is_not_taken_over_by_a_new_one(tmp_path):
    store = f"sqlite:///{tmp_path / 'shared.db'}"
    fit(tmp_path / "run", store=store, steps=0)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ConfigError, match="already holds a run"):
        fit(tmp_path / "run", store=store, steps=0)


def test_a_typo_in_the_model_does_not_use_up_the_folder(tmp_path):
    with pytest.raises(lightning.LightningError, match="tinny"):
        fit(tmp_path / "run", model=tmp_path / "tinny", steps=0)
    assert fit(tmp_path / "run", steps=0).steps == 0


@pytest.mark.parametrize("validation", [[], TASKS[6:]])
def test_an_app_that_never_works_is_an_error_with_its_own_words(tmp_path, validation):
    app = App()
    app.broken = True
    with pytest.raises(TrainingError, match="the database is not where it was"):
        fit(tmp_path / "run", app, validation=validation)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (FileNotFoundError(errno.ENOENT, "there is none", "rubric.txt"), FileNotFoundError),
        (OSError(errno.ENOSPC, "it is full"), StoreError),
    ],
)
def test_a_file_that_a_function_of_the_user_can_t_read_is_not_told_as_a_full_disk(tmp_path, problem, told):
    def credit(group):
        raise problem

    algorithm = lightning.GRPO(group_size=3, tasks_per_step=2, credit=credit)
    with pytest.raises(told, match=problem.strerror):
        fit(tmp_path / "run", algorithm=algorithm, validation=[])


def test_a_step_that_failed_as_a_whole_is_made_anew_on_resume(tmp_path):
    app = App()
    fit(tmp_path / "run", app, steps=1)
    app.broken = True
    with pytest.raises(TrainingError, match="step 2; fix the cause and resume"):
        fit(tmp_path / "run", app, resume=True, steps=2)
    app.broken = False
    summary = fit(tmp_path / "run", app, resume=True, steps=2)
    assert (summary.steps, summary.failures) == (2, 0)


def test_one_backend_object_serves_two_runs(tmp_path):
    backend = lightning.LocalBackend("tiny", learning_rate=1e-3)
    for name in ("one", "two"):
        assert fit(tmp_path / name, backend=backend).steps == 2


def test_fit_runs_inside_a_running_event_loop(tmp_path):
    async def notebook() -> Summary:
        return fit(tmp_path / "run", steps=1)

    assert asyncio.run(notebook()).steps == 1


def test_with_lora_the_policy_is_still_a_plain_transformers_folder(tmp_path):
    backend = lightning.LocalBackend("tiny", lora=lightning.LoraOptions(rank=4))
    fit(tmp_path / "run", backend=backend)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "policy")
    assert not any("lora" in name for name in model.state_dict())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"algorithm": lightning.GRPO(credit="per_agnet")}, "per_agnet"),
        ({"algorithm": "grop"}, "grop"),
        ({"group_by": "kind"}, "kind"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"agents": []}, "agents"),
    ],
)
def test_a_setting_that_can_not_be_honoured_is_refused_at_start(tmp_path, settings, named):
    with pytest.raises(ConfigError, match=named):
        fit(tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "run.json").exists()
