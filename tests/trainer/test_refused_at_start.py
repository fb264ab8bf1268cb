"""Options that can't go together are refused before any rollout, by name: docs/capabilities.md."""

from __future__ import annotations

import pytest

import lightning_core as lightning
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.errors import ConfigError

JUDGE = lightning.Judge(model="m", base_url="http://h/v1")
SHOWN = ({"messages": [{"role": "user", "content": "1 + 1?"}], "reply": "2"},)


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
        ("replay=1", lambda: {"algorithm": lightning.PPO(replay=1)}),
        ("baseline='leave_one_out'", lambda: {"algorithm": lightning.GRPO(baseline="leave_one_out")}),
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
    def solve(task: lightning.Task) -> float:
        raise AssertionError("a rollout was run")

    with pytest.raises(ConfigError) as refused:
        lightning.Trainer(folder=tmp_path / "run", progress=False, **make()).fit(
            solve, train=[{"question": "?"}], validation=[]
        )
    assert named in str(refused.value)
