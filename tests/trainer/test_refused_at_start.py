"""Options that can't go together are refused before any rollout, by name: docs/capabilities.md."""

from __future__ import annotations

import pytest

import lightning_core as lightning
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.trainer.launch import Launch
from lightning_core.trainer.parts import make_backend

JUDGE = lightning.Judge(model="m", base_url="http://h/v1")
SHOWN = ({"messages": [{"role": "user", "content": "1 + 1?"}], "reply": "2"},)


def never(task: lightning.Task) -> float:
    raise AssertionError("a rollout was run")


@pytest.fixture(autouse=True)
def graphics(monkeypatch):
    """As on a machine with GPUs: on a processor verl does not serve and train in turn."""
    monkeypatch.delenv("VERL_PLATFORM", raising=False)


@pytest.mark.parametrize(
    ("named", "make"),
    [
        ("credit='gae' reads a critic", lambda: {"algorithm": lightning.GRPO(credit="gae")}),
        ("credit='gae' reads a critic", lambda: {"algorithm": lightning.RLOO(credit="gae")}),
        ("credit='uniform' does not read", lambda: {"algorithm": lightning.PPO(credit="uniform")}),
        ("credit='anchor' adds", lambda: {"algorithm": lightning.ReinforcePP(credit="anchor")}),
        ("credit='state' compares", lambda: {"algorithm": lightning.ReinforcePP(credit="state")}),
        ("group_size=1", lambda: {"algorithm": lightning.GRPO(group_size=1)}),
        ("group_size=1", lambda: {"algorithm": lightning.DPO(group_size=1)}),
        ("least_return", lambda: {"algorithm": lightning.SFT(group_size=1)}),
        ("dynamic_sampling=1", lambda: {"algorithm": lightning.PPO(dynamic_sampling=1)}),
        ("dynamic_sampling=1", lambda: {"algorithm": lightning.ReinforcePP(dynamic_sampling=1)}),
        ("curriculum='kind' is not a field", lambda: {"algorithm": lightning.GRPO(curriculum="kind")}),
        (
            "curriculum='question' goes by the app's own rewards",
            lambda: {"algorithm": lightning.GRPO(curriculum="question"), "judge": JUDGE},
        ),
        ("scale='mean'", lambda: {"algorithm": lightning.PPO(scale="mean")}),
        ("scale='mean'", lambda: {"algorithm": lightning.ReinforcePP(scale="mean")}),
        ("replay=1", lambda: {"algorithm": lightning.PPO(replay=1)}),
        (
            "baseline='leave_one_out'",
            lambda: {"algorithm": lightning.GRPO(credit="state", baseline="leave_one_out")},
        ),
        ("clip=0.1", lambda: {"algorithm": lightning.GRPO(clip=0.1)}),
        ("aggregation=0.5", lambda: {"algorithm": lightning.GRPO(aggregation=0.5)}),
        ("batch_size", lambda: {"algorithm": lightning.SFT(batch_size=1)}),
        ("a judge compares", lambda: {"algorithm": lightning.PPO(), "judge": JUDGE}),
        ("a judge compares", lambda: {"algorithm": lightning.ReinforcePP(), "judge": JUDGE}),
        ("air=", lambda: {"algorithm": lightning.SFT(demonstrations=SHOWN), "air": True}),
        ("judge=", lambda: {"algorithm": lightning.SFT(demonstrations=SHOWN), "judge": JUDGE}),
        (
            "staleness=1",
            lambda: {"algorithm": lightning.GRPO(staleness=1), "backend": VerlBackend("tiny")},
        ),
    ],
)
def test_a_combination_is_refused_at_the_start_by_name(named, make, tmp_path):
    with pytest.raises(ConfigError) as refused:
        lightning.Trainer(model="tiny", folder=tmp_path / "run", progress=False, **make()).fit(
            never, train=[{"question": "?"}], validation=[]
        )
    assert named in str(refused.value)


NAMES = [
    'model="smollm2"', "a transformers folder", "a .gguf file", '"Qwen/Qwen3-0.6B"', '"tiny"', "--set model=",
    "docs/own-model.md",
]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"backend": "verl"},
        {"agents": ["writer"]},
        {"steps": 0},  # evaluates the policy
        {"algorithm": [lightning.Phase(lightning.Bootstrap(), 1), lightning.Phase("grpo", 2)]},
    ],
    ids=["local", "verl", "agents", "evaluation", "search and training"],
)
def test_a_run_with_weights_and_no_model_is_refused_with_what_can_be_named(settings, tmp_path):
    given = {"prompts": {"writer": "Write."}, "progress": False, "folder": tmp_path / "run", **settings}
    many = [{"question": str(number)} for number in range(40)]
    for run in (lightning.Trainer.fit, lambda trainer, _, **tasks: trainer.plan(**tasks)):
        with pytest.raises(ConfigError, match="no model is named") as refused:
            run(lightning.Trainer(**given), never, train=many[:20], validation=many[20:])
        assert [name for name in NAMES if name not in str(refused.value)] == []
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_setting_of_the_backend_alone_names_no_model():
    changes = Launch(backend={"learning_rate": 1e-4})
    with pytest.raises(ConfigError, match="no model is named: give model="):
        changes.apply(lightning.Trainer())
    searching = lightning.Trainer(prompts="all", algorithm=lightning.Bootstrap())
    with pytest.raises(ConfigError, match=r"backend\.learning_rate=\.\.\. needs a model: give model="):
        changes.apply(searching)


def test_a_model_of_the_command_line_takes_the_script_s_place(tmp_path):
    both = lightning.Trainer(model="tiny", backend=lightning.LocalBackend("tiny"))
    for launch in (Launch({"model": "smollm2"}), Launch(backend={"model": "smollm2"})):
        for trainer in (both, lightning.Trainer(model="tiny"), lightning.Trainer()):
            assert launch.apply(trainer).served_model == "smollm2"
            assert make_backend(launch.apply(trainer), load_plugins()).model == "smollm2"


@pytest.mark.parametrize("backend", ["local", lightning.LocalBackend("smollm2")], ids=["name", "object"])
def test_two_models_are_refused_by_both_names(backend):
    launch = Launch({"model": "tiny"}, {"model": "smollm2"})
    with pytest.raises(ConfigError, match="model='tiny' and a backend object with model 'smollm2'"):
        make_backend(launch.apply(lightning.Trainer(backend=backend)), load_plugins())
    with pytest.raises(ConfigError, match="model='tiny' and a backend object with model 'smollm2'"):
        make_backend(
            lightning.Trainer(model="tiny", backend=lightning.LocalBackend("smollm2")), load_plugins()
        )
