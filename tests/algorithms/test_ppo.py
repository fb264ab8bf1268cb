"""PPO: what is its own beside the policy gradient, and a whole run of it."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Critic, Phase
from lightning_core.credit.base import assign
from lightning_core.credit.gae import Gae
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Trajectory, Transition
from lightning_core.trainer.parts import resolve_phases
from lightning_core.trainer.updating import value_numbers

TASKS = [{"question": f"List the boats with speed above {n}.", "number": n} for n in range(8)]


def turn(rollout: str, number: int, value: float | None, target: float | None = None) -> Transition:
    return Transition(
        rollout, f"c{number}", 0, "a", True, [1], [2], [0.0], 0, value=value, target=target, advantage=1.0
    )


def test_one_rollout_of_a_task_is_enough_and_is_credited_against_its_values():
    assert lightning.PPO(group_size=1).group_size == 1
    with pytest.raises(ConfigError, match="group_size"):
        lightning.PPO(group_size=0)
    with pytest.raises(ConfigError, match="group_size"):
        lightning.GRPO(group_size=1)
    ppo = lightning.PPO()
    alone = [
        Trajectory(name, name, "t", reward, (turn(name, 0, value),))
        for name, reward, value in (("good", 1.0, 0.5), ("bad", 0.0, 0.5), ("as thought", 1.0, 1.0))
    ]
    credited, _ = assign(alone, Gae(), ppo.baseline, ppo.scale)
    # R - V is .5, -.5 and 0: mean 0, variance .5 / 3
    assert {t.rollout_id: t.advantage for each in credited for t in each.transitions} == pytest.approx(
        {"good": 1.5**0.5, "bad": -(1.5**0.5), "as thought": 0.0}
    )
    assert [t.target for each in credited for t in each.transitions] == [1.0, 0.0, 1.0]


def test_what_the_values_explain():
    def batch(*pairs: tuple[float, float]) -> list[Trajectory]:
        steps = tuple(turn("r", i, value, target) for i, (value, target) in enumerate(pairs))
        return [Trajectory("r", "g", "t", 0.0, steps)]

    # targets 0, 2, 4 have variance 8/3; what is left, 0, 1, 2, has 2/3
    assert value_numbers(batch((0.0, 0.0), (1.0, 2.0), (2.0, 4.0))) == pytest.approx(
        {"value_mean": 1.0, "explained_variance": 0.75}
    )
    assert value_numbers(batch((7.0, 0.0), (7.0, 2.0)))["explained_variance"] == 0
    assert value_numbers(batch((1.0, 0.0), (0.0, 1.0)))["explained_variance"] == pytest.approx(1 - 4)
    assert "explained_variance" not in value_numbers(batch((0.0, 1.0), (0.5, 1.001)))
    assert value_numbers([Trajectory("r", "g", "t", 0.0, (turn("r", 0, None),))]) == {}


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        (lightning.GRPO(credit="gae"), "'grpo' has no critic"),
        (lightning.PPO(credit="per_agent"), "does not read its values"),
    ],
)
def test_a_critic_and_credit_that_do_not_fit_are_refused_by_name(algorithm, says):
    with pytest.raises(ConfigError, match=says):
        resolve_phases([Phase(algorithm, 1)], load_plugins())


@pytest.mark.parametrize("option", [{"learning_rate": 0.0}, {"epochs": 0}])
def test_an_option_of_the_critic_out_of_range_is_refused_by_name(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        Critic(**option)


async def two_agents(task: lightning.Task) -> float:
    """One call each; the reward is as good as the task is even."""
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in ("writer", "editor"):
            with lightning.agent(name):
                await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": f"{name}: {task.input['question']}"}],
                    max_completion_tokens=5,
                )
    return float(int(str(task.input["number"])) % 2 == 0)


def fit(folder: Path, algorithm: object, **settings: object) -> list[dict[str, float]]:
    """Train; returns the numbers of each step."""
    import asyncio

    from lightning_core.stores.sqlite import SqliteStore

    trainer = lightning.Trainer(
        algorithm=algorithm,
        backend=lightning.LocalBackend("tiny"),
        folder=folder,
        progress=False,
        **settings,
    )
    trainer.fit(two_agents, train=TASKS)

    async def read() -> list[dict[str, float]]:
        async with SqliteStore(f"sqlite:///{folder}/store.db") as store:
            runs = await store.list_runs()
            return [entry.values for entry in await store.list_metrics(runs[0].id)]

    return asyncio.run(read())


def test_ppo_trains_a_job_and_goes_on_where_it_stopped(tmp_path):
    ppo = lightning.PPO(group_size=1, tasks_per_step=6)
    fit(tmp_path / "run", ppo, steps=2)
    steps = fit(tmp_path / "run", ppo, steps=4, resume=True)
    assert len(steps) == 4
    for number, values in enumerate(steps):
        assert values["policy_version"] == number + 1
        assert values["groups"] == values["rollouts"] == 6
        assert values["value_loss"] > 0
        assert values["value_seconds"] > 0
    means = [values["value_mean"] for values in steps]
    assert means[0] == 0.0
    assert 0 not in means[1:]  # a resumed run has the critic it was saved with


def test_a_critic_joins_in_a_later_phase(tmp_path):
    phases = [
        Phase(lightning.GRPO(group_size=3, tasks_per_step=2), 1),
        Phase(lightning.PPO(group_size=1, tasks_per_step=6), 2),
    ]
    first, second, third = fit(tmp_path / "run", phases)
    assert "value_loss" not in first
    assert second["value_mean"] == 0.0
    assert third["value_mean"] != 0.0
