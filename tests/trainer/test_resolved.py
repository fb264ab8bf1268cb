"""Parts that don't go together are refused at the start, and a backend has the run's seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from lightning_core.algorithms.base import Phase
from lightning_core.algorithms.policy_gradient import GRPO, PPO, RLOO, ReinforcePP
from lightning_core.algorithms.sft import SFT
from lightning_core.credit.gae import Gae
from lightning_core.credit.tabular import Tabular
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.trainer.parts import check_signals, make_backend, resolve_phases
from lightning_core.trainer.settings import Settings
from tests.backends.scripted import ScriptedBackend


@dataclass(frozen=True)
class Reading:
    """A method of somebody else's that reads a critic's values."""

    needs_critic: ClassVar[bool] = True

    def __call__(self, group):
        return []


@pytest.mark.parametrize("credit", ["gae", Gae(lam=0.9), Reading()], ids=["name", "object", "somebody's own"])
def test_credit_that_reads_values_needs_an_algorithm_with_a_critic(credit):
    with pytest.raises(ConfigError, match="'grpo' has no critic; use PPO"):
        resolve_phases([Phase(GRPO(credit=credit), 1)], load_plugins([]))
    [phase] = resolve_phases([Phase(PPO(credit=credit), 1)], load_plugins([]))
    assert phase.credit.needs_critic


@pytest.mark.parametrize("credit", ["uniform", Tabular()], ids=["function", "object"])
def test_a_critic_that_nobody_reads_is_refused(credit):
    with pytest.raises(ConfigError, match='use credit="gae"'):
        resolve_phases([Phase(PPO(credit=credit), 1)], load_plugins([]))


def test_a_class_is_made_with_its_defaults():
    [phase] = resolve_phases([Phase(GRPO(credit="tabular"), 1)], load_plugins([]))
    assert phase.credit == Tabular()


@pytest.mark.parametrize("credit", ["tabular", Tabular(own=0.5)], ids=["name", "object"])
def test_credit_that_compares_rollouts_itself_is_refused_groups_of_one(credit):
    with pytest.raises(ConfigError, match=r"'reinforce\+\+' has groups of one"):
        resolve_phases([Phase(ReinforcePP(credit=credit), 1)], load_plugins([]))
    resolve_phases([Phase(ReinforcePP(credit=credit, group_size=2), 1)], load_plugins([]))


@pytest.mark.parametrize("credit", ["anchor", "hierarchical"])
def test_credit_that_adds_comparisons_up_is_refused_without_a_baseline(credit):
    with pytest.raises(ConfigError, match=f"credit='{credit}' adds several comparisons up"):
        resolve_phases([Phase(ReinforcePP(credit=credit, group_size=4), 1)], load_plugins([]))
    resolve_phases([Phase(ReinforcePP(credit=credit, group_size=4, baseline="mean"), 1)], load_plugins([]))


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(credit="tabular", baseline="leave_one_out"),
        GRPO(credit="state", baseline="leave_one_out"),
        PPO(baseline="mean"),
        ReinforcePP(credit=Tabular(own=0.5), group_size=4, baseline="mean"),
    ],
    ids=["tabular", "state", "gae", "object"],
)
def test_a_baseline_that_would_do_nothing_is_refused(algorithm):
    with pytest.raises(ConfigError, match=rf"baseline='{algorithm.baseline}' would do nothing"):
        resolve_phases([Phase(algorithm, 1)], load_plugins([]))


def test_an_algorithm_s_own_baseline_is_no_option_that_somebody_gave():
    resolve_phases([Phase(RLOO(credit="state"), 1), Phase(GRPO(credit="tabular"), 1)], load_plugins([]))


def test_replay_beside_a_critic_is_refused():
    with pytest.raises(ConfigError, match=r"'ppo' has a critic and replay=1: .*leave replay out"):
        resolve_phases([Phase(PPO(replay=1), 1)], load_plugins([]))


@pytest.mark.parametrize("option", ["air", "judge"])
def test_signals_of_rollouts_are_refused_where_no_update_has_any(option):
    taught = SFT(demonstrations=[{"messages": [{"role": "user", "content": "go"}], "reply": "gone"}])
    given = {"air": False, "judge": False, option: True}
    with pytest.raises(ConfigError, match=f"{option}=... gives rewards to training rollouts"):
        check_signals(resolve_phases([Phase(taught, 1)], load_plugins([])), **given)
    check_signals(resolve_phases([Phase(taught, 1), Phase(GRPO(), 1)], load_plugins([])), **given)
    check_signals(resolve_phases([Phase(taught, 1)], load_plugins([])), air=False, judge=False)


def test_a_backend_has_the_run_s_seed_whether_named_or_given():
    given = ScriptedBackend()
    assert make_backend(Settings(backend=given, seed=7), load_plugins([])) is given
    assert given.seed == 7
    assert make_backend(Settings(model="tiny", backend="local", seed=7), load_plugins([])).seed == 7
