"""The same recorded batches through the local backend and through verl's workers: the same losses, metrics,
gradient norms and weights, with one rank and with two. (Of torch's two FSDPs only FSDP2 runs on a CPU.)"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")
pytest.importorskip("tensordict", reason="verl lives in an environment of its own: make test-verl")

from transformers import AutoModelForCausalLM

from lightning_core.algorithms.base import Algorithm, Critic
from lightning_core.algorithms.dpo import DPO
from lightning_core.algorithms.policy_gradient import GRPO, PPO, PolicyGradient
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.rows import make_rows, share
from lightning_core.backends.settings import Schedule, TrainingSettings
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.credit.base import assign
from lightning_core.records.types import Key, Trajectory
from tests.backends.serving import serving
from tests.backends.test_constraints import sample
from tests.verl.recorded import arrange, play, recorded_by, score

HERE = Path(__file__).parent
RATE, WARMUP = 1e-3, 3
SCHEDULE = Schedule("cosine", steps=10, least=0.2)
TOLERANCE = 1e-4
Updates = list[tuple[tuple[Trajectory, ...], Algorithm]]


@pytest.fixture
def updates(qwen: Path) -> Updates:
    """Seven in a row: with a reference, by sequences, in two epochs with a proximal policy, by pairs, of one
    reply alone, which leaves other ranks nothing but padding, in mini-batches with both clips and the
    divergence in the reward, and with a critic."""
    network = AutoModelForCausalLM.from_pretrained(qwen).eval()
    batches = [recorded_by(network, play(seed)) for seed in range(7)]
    pairs = DPO()
    batches[3] = tuple(assign(batches[3], pairs.credit, pairs.baseline, pairs.scale)[0])
    one = next(t for t in batches[4][0].transitions if t.trained)
    batches[4] = (replace(batches[4][0], transitions=(one,)),)
    algorithms: Sequence[Algorithm] = (
        GRPO(kl=0.2),
        PolicyGradient(ratio="sequence", correction=None, clip=0.03),
        GRPO(epochs=2),
        pairs,
        GRPO(),
        GRPO(mini_batch_size=1, clip=(0.2, 0.02, 1.05), kl=(0.1, "k1")),
        PPO(epochs=1, critic=Critic(epochs=1, learning_rate=1e-4)),
    )
    return list(zip(batches, algorithms, strict=True))


def by_workers(count: int, job: tuple[VerlSettings, bool, Updates], folder: Path) -> Any:
    """Returns the result of the first of so many ranks."""
    (folder / "job").write_bytes(pickle.dumps(job))
    path = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py"), str(folder / "job"), str(folder / "result")],
            env={
                **os.environ,
                "PYTHONPATH": path,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "0",
                "DIST_INIT_METHOD": f"file://{folder / 'meeting'}",
                "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
                "VERL_PLATFORM": "cpu",
                "VERL_ENGINE_DEVICE": "cuda",
                "OMP_NUM_THREADS": "1",
            },
            cwd=HERE.parent.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * count, said[0][-4000:]
    return pickle.loads((folder / "result").read_bytes())


@pytest.mark.parametrize(("count", "packed"), [(1, True), (2, False)], ids=["one, packed", "two, padded"])
def test_updates_through_verls_workers_are_the_local_ones(
    qwen: Path, updates: Updates, tmp_path: Path, count: int, packed: bool
) -> None:
    settings = VerlSettings(qwen, learning_rate=RATE, warmup_steps=WARMUP, schedule=SCHEDULE)
    found = by_workers(count, (settings, packed, updates), tmp_path)
    policy = Policy(load_model(qwen, device="cpu"), None)
    options = TrainingSettings(learning_rate=RATE, warmup_steps=WARMUP, schedule=SCHEDULE)
    optimizer = Optimizer(policy, options, source=str(qwen))
    for metrics, (batch, algorithm) in zip(found["metrics"], updates, strict=True):
        wanted = optimizer.update(batch, algorithm)
        counted = {"update_seconds", "forward_tokens", "unmerged_tokens", "merge_ratio"}
        for name in wanted.keys() - counted:
            assert metrics[name] == pytest.approx(wanted[name], rel=TOLERANCE, abs=1e-6), (algorithm, name)
    assert_same_weights(policy, qwen, updates[0][0], found["logprobs"], count)
    assert_critic_learns(found, updates[-1][0])


@pytest.mark.parametrize(("count", "packed"), [(1, True), (2, False)], ids=["one, packed", "two, padded"])
async def test_at_the_first_pass_every_ratio_is_one_under_masks(
    qwen: Path, tmp_path: Path, count: int, packed: bool
) -> None:
    """Replies that are free, held to each kind of form, forced to call tools, and go on from one another."""
    async with serving(qwen) as backend:
        batch = await sample(backend, temperature=0.6)
    algorithm, settings = GRPO(kl=0.1), VerlSettings(qwen, learning_rate=RATE)
    found = by_workers(count, (settings, packed, [(batch, algorithm)]), tmp_path)["metrics"][0]
    assert found["logprob_gap_max"] < TOLERANCE
    assert found["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    policy, options = Policy(load_model(qwen, device="cpu"), None), TrainingSettings(learning_rate=RATE)
    wanted = Optimizer(policy, options, source=str(qwen)).update(batch, algorithm)
    for name in ("loss", "grad_norm", "sampled_entropy"):
        assert found[name] == pytest.approx(wanted[name], rel=TOLERANCE, abs=1e-6), name


def assert_same_weights(
    policy: Policy, folder: Path, batch: tuple[Trajectory, ...], logprobs: Any, count: int
) -> None:
    """Compares their log-probabilities on a batch, and checks that they have changed."""
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    rows = share(make_rows(batch, {t.key: 1.0 for each in batch for t in each.transitions}), count)
    keys = [key for row in rows for key in row.keys]
    before = arrange(score(network, batch), keys)
    network.load_state_dict(policy.serving_weights())
    after = arrange(score(network, batch), keys)
    moved = abs(after - before).max()
    assert moved > 0.05
    assert abs(logprobs - after).max() < TOLERANCE


def assert_critic_learns(found: Any, batch: tuple[Trajectory, ...]) -> None:
    """The loss that was reported is that of its values before, and one step makes it smaller. (The local
    critic begins with another head, so its values are not compared.)"""
    states = {t.key: t for each in batch for t in each.transitions if t.trained}
    assert found["before"].keys() == found["after"].keys() == states.keys()

    def loss(values: dict[Key, float]) -> float:
        return sum((values[key] - t.target) ** 2 for key, t in states.items()) / 2 / len(states)

    assert found["metrics"][-1]["value_loss"] == pytest.approx(loss(found["before"]), rel=1e-5)
    assert loss(found["after"]) < loss(found["before"])
    assert all("value_loss" not in metrics for metrics in found["metrics"][:-1])
