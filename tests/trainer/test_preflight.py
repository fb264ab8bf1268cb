"""A dry run tells what a run would be, and neither runs nor writes anything."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lightning_core as lightning
from lightning_core.backends.preflight import MemoryUse, RunPlan, gib
from lightning_core.backends.settings import LoraOptions, Schedule
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.weights.sizes import measure
from lightning_core.cli.training import read_launch
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.trainer.launch import Launch
from lightning_core.trainer.parts import make_backend
from lightning_core.trainer.plan import make_tasks
from lightning_core.trainer.preflight import plan_run, show_plan
from tests.backends.models import save_model

TASKS = [{"question": str(n)} for n in range(6)]


def tell(**settings: Any) -> RunPlan:
    named = {"model": "tiny"} if isinstance(settings.get("backend", "local"), str) else {}
    trainer = lightning.Trainer(**{"steps": 9, **named, **settings})
    return plan_run(trainer, make_tasks(TASKS[:4], "train"), make_tasks(TASKS[4:], "validation"))


def facts(found: RunPlan) -> dict[str, str]:
    return dict(found.facts)


def verdicts(found: RunPlan) -> dict[str, str]:
    return {check.name: check.verdict for check in found.checks}


def test_a_plan_is_shown_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console = Console(file=io.StringIO(), width=160)
    show_plan(lightning.Trainer(model="tiny", steps=3).plan(train=TASKS, validation=TASKS), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "64 rollouts: 8 tasks, 8 of each" in printed
    assert "nothing was started or written" in printed
    assert list(tmp_path.iterdir()) == []


def test_the_numbers_of_a_step_follow_from_the_algorithm():
    algorithm = lightning.GRPO(group_size=4, tasks_per_step=2, dynamic_sampling=1)
    found = facts(tell(algorithm=algorithm, evaluate_every=4))
    assert found["a step"] == "8 rollouts: 2 tasks, 4 of each, up to 1 times as many again"
    assert found["tasks"] == "4 to train on, each used 4.5 times; 2 held out"
    assert found["evaluations"].startswith("4 of 4 rollouts")  # before, after steps 4 and 8, after
    assert found["learning rate"] == "0.0004 after 3 steps"
    assert "1.5 M parameters" in found["model"]


def test_demonstrations_have_no_rollouts_to_count():
    shown = [{"messages": [{"role": "user", "content": "go"}], "reply": "gone"}] * 3
    found = facts(tell(algorithm=lightning.SFT(demonstrations=shown, batch_size=2)))
    assert found["a step"] == "2 of 3 demonstrations"


def test_phases_are_told_one_by_one():
    phases = [lightning.Phase(lightning.GRPO(), 2), lightning.Phase("rloo", 3)]
    found = [value for _, value in tell(algorithm=phases, steps=None).facts]
    assert any("grpo" in value and "updates 1 to 2" in value for value in found)
    assert any("rloo" in value and "updates 3 to 5" in value for value in found)


def test_what_would_be_refused_is_a_check_that_fails():
    found = tell(algorithm=lightning.GRPO(staleness=1), backend=VerlBackend("tiny"))
    assert verdicts(found)["options"] == "fails"
    (options,) = (check.told for check in found.checks if check.name == "options")
    assert "staleness=1" in options


def test_a_model_too_large_for_this_machine_fails_its_check(monkeypatch):
    from lightning_core.backends.local import preflight

    monkeypatch.setattr(preflight, "memory_bytes", lambda device: 100 << 20)
    (memory,) = (check for check in tell().checks if check.name == "memory")
    assert memory.verdict == "fails"
    assert "context=1024 with pack_tokens=1024" in memory.told


def test_a_backend_that_tells_nothing_still_has_a_plan():
    class Silent(lightning.LocalBackend):
        name = "silent"
        plan_run = None  # type: ignore[assignment]

    found = facts(tell(backend=Silent("tiny")))
    assert found["backend"] == "silent"
    assert "model" not in found


def test_the_page_explains_every_line_and_check():
    page = (Path(__file__).parents[2] / "docs" / "dry-run.md").read_text()
    for backend in ("local", VerlBackend("tiny")):
        for fact, _ in tell(backend=backend).facts:
            name = "machine(s)" if fact.startswith("machine") else fact
            assert re.search(rf"[|,] ({re.escape(name)})[,| ]", page), fact


# what the command line changes --------------------------------------------------------------
def test_a_backend_object_of_the_name_asked_for_keeps_its_settings():
    own = VerlBackend("tiny", gpus=3)
    trainer = lightning.Trainer(backend=own)
    assert Launch({"backend": "verl"}).apply(trainer).backend is own
    joined = Launch({"backend": "verl"}, {"address": "10.0.0.5:6379"}).apply(trainer).backend
    assert (joined.gpus, joined.address, type(joined)) == (3, "10.0.0.5:6379", VerlBackend)
    assert own.address is None


def test_a_backend_s_name_and_its_settings_make_one():
    trainer = lightning.Trainer(model="tiny")
    chosen = Launch({"backend": "verl"}, {"address": "auto"}).apply(trainer).backend
    assert (chosen.name, chosen.model, chosen.address) == ("verl", "tiny", "auto")


def test_another_backend_takes_the_model_over(tmp_path):
    trainer = lightning.Trainer(backend=VerlBackend(str(tmp_path)))
    assert Launch({"backend": "local"}).apply(trainer).model == str(tmp_path)
    assert Launch({"backend": "local", "model": "tiny"}).apply(trainer).model == "tiny"


@pytest.mark.parametrize("algorithm", ["grpo", lightning.GRPO(group_size=4)], ids=["name", "object"])
def test_an_algorithm_takes_settings_over_its_own(algorithm):
    trainer = lightning.Trainer(model="tiny", algorithm=algorithm)
    changed = Launch(algorithm={"entropy": 0.1}).apply(trainer).algorithm
    assert (type(changed), changed.entropy) == (lightning.GRPO, 0.1)
    assert changed.group_size == (8 if algorithm == "grpo" else 4)
    with pytest.raises(ConfigError, match=r"algorithm 'grpo' has no setting 'entropi'; it has .*entropy"):
        Launch(algorithm={"entropi": 0.1}).apply(trainer)


def test_phases_keep_their_own_settings():
    trainer = lightning.Trainer(algorithm=[lightning.Phase(lightning.SFT(), steps=1)])
    with pytest.raises(ConfigError, match="change them in the script"):
        Launch(algorithm={"entropy": 0.1}).apply(trainer)


@pytest.mark.parametrize("backend", ["local", lightning.LocalBackend("tiny")], ids=["name", "object"])
def test_a_setting_that_there_is_not_is_refused_by_name(backend):
    with pytest.raises(ConfigError, match="backend 'local' has no setting 'address'"):
        Launch(backend={"address": "auto"}).apply(lightning.Trainer(backend=backend))
    with pytest.raises(ConfigError, match="a trainer has no setting stepps; it has model, agents"):
        Launch({"stepps": 3}).apply(lightning.Trainer(backend=backend))


@pytest.mark.parametrize(
    ("given", "goes"),
    [
        ({"learning_rate": 1e-5}, r"backend's: backend=lightning.LocalBackend\(MODEL, learning_rate=...\)"),
        ({"group_size": 4}, r"algorithm's: .*GRPO\(group_size=...\), or --set algorithm.group_size="),
        ({"stepps": 3}, "a trainer has no setting stepps; it has model, agents"),
    ],
)
def test_a_trainer_says_where_a_setting_of_another_part_goes(given, goes):
    with pytest.raises(ConfigError, match=goes):
        lightning.Trainer(**given)
    with pytest.raises(ConfigError, match=goes):
        Launch(given).apply(lightning.Trainer())


def test_a_trainer_of_ones_own_may_take_more():
    class Named(lightning.Trainer):
        def __init__(self, *, learning_rate: float, **settings):
            super().__init__(backend=lightning.LocalBackend("tiny", learning_rate=learning_rate), **settings)

    assert Named(learning_rate=1e-5, steps=3).backend.learning_rate == 1e-5
    with pytest.raises(TypeError, match="stepps"):
        Named(learning_rate=1e-5, stepps=3)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("on_failure=drop", "on_failure='drop': give FailurePolicy"),
        ('on_failure={"retris": 2}', r"on_failure={'retris': 2} can't be used: .*'retris'"),
        ('on_failure={"retries": "two"}', "on_failure={'retries': 'two'} can't be used"),
        ("judge=foo", r"judge='foo': give Judge"),
        ("judge={}", r"judge={} can't be used: .*'model'"),
        ("air=off", "air='off': give True, False or AIR"),
        ("progress=off", "progress='off': give True or False"),
        ("seed=abc", "seed='abc': give a whole number"),
        ("seed=1.5", "seed=1.5: give a whole number"),
        ("folder=5", "folder=5: give a path"),
        ("model=5", "model=5: give a model's name or a folder"),
        ("agents=5", "agents=5: give names"),
        ("backend.lora=true", "lora=True: give LoraOptions"),
        ('policies={"a": {"name": "b", "lora": 4}}', "lora=4: give LoraOptions"),
        ('policies={"a": {"name": "b", "learning_rate": 0}}', "PolicyOptions.*learning_rate=0"),
        (
            'policies={"a": {"name": "b", "algorithm": "sft"}}',
            r"policies\['a'\]=.* can't be used: .*'algorithm'",
        ),
        ('policies={"a": {"name": "../b"}}', "a policy's name of up to 64 letters"),
        ('backend.lora={"rang": 4}', "lora={'rang': 4} can't be used: .*'rang'"),
        ("backend.schedule=cosine", "schedule='cosine': give Schedule"),
        ("backend=5", "backend=5 is none: give a backend"),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused_by_name_with_what_it_takes(given, named):
    with pytest.raises(ConfigError, match=named):
        make_backend(read_launch([given], {}).apply(lightning.Trainer(model="tiny")), load_plugins())


def test_a_dict_becomes_the_dataclass_that_a_setting_takes():
    given = ['on_failure={"retries": 2}', 'judge={"model": "m"}', 'prompts={"writer": "Write."}']
    given += ['backend.lora={"rank": 4}', 'backend.schedule={"kind": "cosine", "steps": 9}']
    made = read_launch(given, {}).apply(lightning.Trainer(model="tiny"))
    assert made.on_failure == lightning.FailurePolicy(retries=2)
    assert made.judge == lightning.Judge(model="m")
    assert made.prompts == {"writer": "Write."}
    assert (made.backend.lora, made.backend.schedule) == (LoraOptions(rank=4), Schedule("cosine", steps=9))
    again = read_launch(['backend.lora={"rank": 2}'], {}).apply(made)
    assert again.backend.lora == LoraOptions(rank=2)


def test_a_dict_among_policies_becomes_its_options():
    given = ['policies={"writer": {"name": "a", "learning_rate": 1e-4, "lora": {"rank": 4}}, "critic": "b"}']
    made = read_launch(given, {}).apply(lightning.Trainer(model="tiny"))
    own = lightning.PolicyOptions("a", learning_rate=1e-4, lora=LoraOptions(rank=4))
    assert made.policies == {"writer": own, "critic": "b"}
    facts = dict(made.plan(train=[{}]).facts)
    assert facts["policies"] == "writer: a, critic: b"
    assert facts["policy a"].startswith("learning_rate=0.0001, lora=LoraOptions(rank=4")


def test_the_memory_of_all_policies_is_added_up_and_told_of_each(tmp_path, monkeypatch):
    from lightning_core.backends.local import preflight

    other = save_model(tmp_path / "qwen", "qwen3")
    policies = {"writer": lightning.PolicyOptions("a", model=other)}
    found = tell(policies=policies)
    assert str(other) in facts(found)["policy a, model"]
    assert "policy a, machine" not in facts(found), "it is the run's"
    own, beside = (memory_of(lightning.LocalBackend(of)) for of in ("tiny", other))
    passes = max(own.need - own.held, beside.need - beside.held)  # one after the other
    told = (
        f"{gib(own.held + beside.held + passes)} of {gib(own.there)} of memory for all of them; one by one: "
    )
    told += f"policy {gib(own.need)}, a {gib(beside.need)}"
    assert told in [check.told for check in found.checks if check.name == "policies"]
    monkeypatch.setattr(preflight, "memory_bytes", lambda device: 200 << 20)
    found = verdicts(tell(policies={"writer": lightning.PolicyOptions("a", model="tiny")}))
    assert (found["memory"], found["policies"]) == ("ok", "fails")


def test_frozen_weights_are_counted_once_where_policies_share_them():
    own = lightning.LocalBackend("tiny", lora=LoraOptions(rank=4))
    alike, apart = (
        memory_of(own.another(lightning.PolicyOptions("a", **more))) for more in ({}, {"lora": PACKED})
    )
    weights = measure("tiny", None).weight_bytes(own.lora)
    assert memory_of(own).need - alike.need == memory_of(own).held - alike.held == weights
    assert apart.need == memory_of(lightning.LocalBackend("tiny", lora=PACKED)).need


def test_a_policy_whose_model_can_t_be_read_fails_by_its_name(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = verdicts(tell(policies={"writer": lightning.PolicyOptions("a", model=tmp_path)}))
    assert (found["policy a"], found["policies"]) == ("fails", "unknown")


PACKED = LoraOptions(rank=4, load_in_4bit=True)


def memory_of(backend: lightning.LocalBackend) -> MemoryUse:
    """The memory of a run with this backend."""
    found = backend.plan_run([lightning.GRPO()]).memory
    assert found is not None
    return found.uses[0]
