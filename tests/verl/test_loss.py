"""The same recorded batch through the local backend, and as rows, micro-batches and ranks through our loss as
verl calls it: the same loss, metrics, gradient and norm."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lightning_core.algorithms.base import Algorithm, Critic
from lightning_core.algorithms.dpo import DPO
from lightning_core.algorithms.policy_gradient import GRPO, PPO, Masked, PolicyGradient
from lightning_core.algorithms.sft import SFT
from lightning_core.backends.local.critic import LocalCritic
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.packing import make_plan
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.rows import Row, make_rows, make_state_rows, share
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.verl.batch import entry_values, fields
from lightning_core.backends.verl.loss import (
    AlgorithmLoss,
    LinearLoss,
    ValueLoss,
    coefficients,
    finish_metrics,
)
from lightning_core.credit.base import assign
from lightning_core.errors import TrainingError
from lightning_core.experience.trajectories import make_packs
from lightning_core.records.types import Key, Trajectory
from tests.backends.models import make_tokenizer
from tests.verl.recorded import arrange, play, recorded_by, run, scatter, score

RANKS, MICRO = 3, 3
Numbers = Mapping[Key, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Case:
    """A batch, and what two other policies say of it."""

    folder: Path
    other: Path
    """The model that is taken as reference."""
    batch: tuple[Trajectory, ...]
    began: Numbers
    """Under the policy that an update is said to have begun with."""
    reference: Numbers


@pytest.fixture(scope="module")
def case(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    network = load(qwen)
    batch = recorded_by(network, play(0))
    shake(network, seed=1)
    began = score(network, batch)
    shake(network, seed=2)
    other = tmp_path_factory.mktemp("other") / "model"
    network.save_pretrained(other)
    make_tokenizer().save_pretrained(other)
    return Case(qwen, other, batch, began, score(network, batch))


@torch.no_grad()
def shake(network: PreTrainedModel, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in network.parameters():
        p.add_(0.05 * p.abs().mean() * torch.randn(p.shape, generator=draw))


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def gradient(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def locally(case: Case, algorithm: Algorithm, *, begun: bool) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics and gradient of the local backend."""
    policy = Policy(load_model(case.folder, device="cpu"), None)
    optimizer = Optimizer(policy, TrainingSettings(), source=str(case.folder))
    optimizer.set_reference(str(case.other))
    packs = make_packs(
        case.batch, algorithm.weigh(case.batch), pack_tokens=200, units=algorithm.units(case.batch)
    )
    proximal = [torch.from_numpy(arrange(case.began, pack.keys)) for pack in packs] if begun else None
    return optimizer.accumulate(packs, algorithm, proximal), gradient(policy.network)


def as_verl_does(
    network: torch.nn.Module,
    rows: Sequence[Row],
    loss: Callable[..., Any],
    more: Mapping[str, Numbers | None],
    *,
    output: str = "log_probs",
    forward: Callable[..., torch.Tensor] = run,
) -> tuple[float, dict[str, list[float]]]:
    """Loss and metrics of the shares of `RANKS` ranks, with the mean of their gradients in `grad`.

    Each rank throws its rows into micro-batches at random. The loss goes through pickle, as it does to a
    worker.
    """
    loss = pickle.loads(pickle.dumps(loss))
    size = len(rows) // RANKS
    total, reported = 0.0, defaultdict(list)
    network.zero_grad()
    for rank in range(RANKS):
        for part in scatter(rows[rank * size : (rank + 1) * size], MICRO, rank):
            keys = [key for row in part for key in row.keys]
            given = {name: arrange(each, keys) for name, each in more.items() if each is not None}
            data = {**fields(part, **given), "dp_size": RANKS}
            value, metrics = loss(model_output={output: forward(network, data)}, data=data, dp_group=None)
            (value / RANKS).backward()
            total += float(value.detach()) / RANKS
            for name, each in metrics.items():
                reported[name].append(each)
    return total, reported


def assert_same(found: dict[str, float], wanted: dict[str, float], network: Any, grad: torch.Tensor) -> None:
    assert found == {name: pytest.approx(value, rel=1e-5, abs=2e-6) for name, value in wanted.items()}
    mine = gradient(network)
    assert float((mine - grad).norm() / grad.norm()) < 1e-5
    assert float(mine.norm()) == pytest.approx(float(grad.norm()), rel=1e-5)


ALGORITHMS = {
    "grpo": GRPO(),
    "grpo, clipped": GRPO(correction=None, clip=0.1),
    "grpo, two epochs": GRPO(epochs=2, clip=(0.2, 0.05)),
    "grpo, masked": GRPO(correction=Masked()),
    "grpo, kl": GRPO(kl=0.3),
    "gspo": PolicyGradient(ratio="sequence", correction=None, clip=0.03),
    "gspo, two epochs": PolicyGradient(ratio="sequence", epochs=2, clip=0.01),
    "cispo": PolicyGradient(ratio="weight", correction=None, clip=0.1),
    "dr. grpo": PolicyGradient(aggregation=40, scale="none"),
    "by rollouts": PolicyGradient(aggregation="rollout"),
    "ppo": PPO(clip=(0.2, 0.1)),
    "sft": SFT(),
}


@pytest.mark.parametrize("begun", [False, True], ids=["first epoch", "later epoch"])
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_rows_have_the_local_loss_metrics_and_gradient(case: Case, algorithm: Algorithm, begun: bool) -> None:
    begun = begun and algorithm.needs_proximal
    wanted, grad = locally(case, algorithm, begun=begun)
    network = load(case.folder)
    rows = share(make_rows(case.batch, algorithm.weigh(case.batch)), RANKS)
    more = {
        "proximal": case.began if begun else None,
        "reference": case.reference if algorithm.needs_reference else None,
    }
    total, reported = as_verl_does(network, rows, AlgorithmLoss(algorithm), more)
    assert total == pytest.approx(wanted["loss"], rel=1e-5, abs=1e-6)
    assert_same(finish_metrics(reported), wanted, network, grad)


@pytest.mark.parametrize("algorithm", [DPO(), DPO(loss_type="ipo")], ids=["sigmoid", "ipo"])
def test_units_torn_apart_have_the_gradient_of_whole_ones(case: Case, algorithm: DPO) -> None:
    batch, _ = assign(case.batch, algorithm.credit, algorithm.baseline, algorithm.scale)
    case = replace(case, batch=tuple(batch))
    wanted, grad = locally(case, algorithm, begun=False)
    network = load(case.folder)
    weights, units = algorithm.weigh(case.batch), algorithm.units(case.batch)
    rows = share(make_rows(case.batch, weights, units=units), RANKS)
    ranks = np.array_split(np.array([set(row.spans["unit"].tolist()) for row in rows], dtype=object), RANKS)
    assert set.union(*ranks[0]) & set.union(*ranks[1]), "no unit is on two ranks"
    with torch.no_grad():
        logprobs = entry_values(run(network, fields(rows)), rows)
    reference = arrange(case.reference, [key for row in rows for key in row.keys])
    slopes, metrics = coefficients(algorithm, rows, logprobs, reference=reference)
    edges = np.cumsum([len(case.began[key]) for row in rows for key in row.keys])[:-1]
    by_key = dict(
        zip([key for row in rows for key in row.keys], map(list, np.split(slopes, edges)), strict=True)
    )
    _, reported = as_verl_does(network, rows, LinearLoss(), {"coefficients": by_key})
    assert finish_metrics(reported) == {}
    assert_same(metrics, wanted, network, grad)


def test_demonstrations_have_no_recorded_logprobs_to_measure(case: Case) -> None:
    never = float("nan")
    batch = tuple(
        replace(
            each,
            transitions=tuple(replace(t, logprobs=[never] * len(t.completion_ids)) for t in each.transitions),
        )
        for each in case.batch
    )
    case = replace(case, batch=batch)
    wanted, grad = locally(case, SFT(), begun=False)
    network = load(case.folder)
    rows = share(make_rows(batch, SFT().weigh(batch)), RANKS)
    _, reported = as_verl_does(network, rows, AlgorithmLoss(SFT()), {})
    assert_same(finish_metrics(reported), wanted, network, grad)
    assert set(wanted) == {"loss"}


def test_values_are_fitted_as_by_the_local_critic(case: Case) -> None:
    """Its network, run on rows: one pass of the local critic is compared with one through `ValueLoss`."""
    policy = Policy(load_model(case.folder, device="cpu"), None)
    critic = LocalCritic(policy, TrainingSettings(max_grad_norm=1e9))
    network, _ = critic._parts()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    states = [t for each in case.batch for t in each.transitions if t.trained]

    def trunk_of(ids: torch.Tensor) -> Any:
        plan = make_plan(policy.base, torch.full_like(ids, len(ids)))
        return network.trunk(input_ids=ids[None], use_cache=False, plan=plan)

    def forward(_: Any, data: Mapping[str, Any]) -> torch.Tensor:
        found = [network.head(trunk_of(ids).last_hidden_state[0])[:, 0] for ids in data["input_ids"].unbind()]
        return torch.nested.as_nested_tensor(found, layout=torch.jagged)

    more = {"targets": {t.key: [t.target] for t in states}}
    rows = share(make_state_rows(states), RANKS)
    _, reported = as_verl_does(network, rows, ValueLoss(), more, output="values", forward=forward)
    found, grad = finish_metrics(reported), gradient(network).clone()
    with critic.fitting(case.batch, PPO(critic=Critic(epochs=1))) as wanted:
        pass
    assert found == {name: pytest.approx(wanted[name], rel=1e-5) for name in found}
    assert set(found) == {"value_loss"}
    assert float(grad.norm()) == pytest.approx(wanted["value_grad_norm"], rel=1e-5)


def test_a_micro_batch_of_padding_has_no_metrics_and_no_gradient(case: Case) -> None:
    network = load(case.folder)
    (row, *_) = make_rows(case.batch, GRPO().weigh(case.batch))
    padding = [row for row in share([row], 3) if row.is_padding]
    data = {**fields(padding), "dp_size": 3}
    loss, metrics = AlgorithmLoss(GRPO())({"log_probs": run(network, data)}, data)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert finish_metrics(metrics) == {}
    assert not gradient(network).any()


def test_a_field_that_the_algorithm_needs_and_was_not_sent_is_named(case: Case) -> None:
    rows = make_rows(case.batch, GRPO().weigh(case.batch))
    data = {**fields(rows), "dp_size": 1}
    with pytest.raises(TrainingError, match="the loss needs reference of each entry"):
        AlgorithmLoss(GRPO(kl=0.1))({"log_probs": run(load(case.folder), data)}, data)


def test_metrics_add_up_over_ranks_and_micro_batches_by_hand() -> None:
    first = {"sum/recorded_logprob": -2.0, "sum/recorded_tokens": 1.0}
    first |= {"sum/gap_tokens": 1.0, "sum/sampled_logprob": -2.0, "sum/trained_logprob": -2.3}
    second = {"sum/recorded_logprob": -4.0, "sum/recorded_tokens": 3.0}  # one token is of older weights
    second |= {"sum/gap_tokens": 2.0, "sum/sampled_logprob": -1.0, "sum/trained_logprob": -1.6}
    first, second = {**first, "sum/logprob_gap": 0.3}, {**second, "sum/logprob_gap": 0.6}
    reported = {
        "lightning": [
            [{"sum/loss": 0.5, **first, "max/logprob_gap": 0.3}, {"sum/loss": 0.25}],
            [{}, {"sum/loss": 1.0, **second, "max/logprob_gap": 0.4}],
        ],
        "grad_norm": [2.0],
    }
    assert finish_metrics(reported) == {
        "loss": 1.75,
        "sampled_entropy": 1.5,
        "sampled_logprob": -1.0,
        "trained_logprob": pytest.approx(-1.3),
        "logprob_gap_mean": pytest.approx(0.3),
        "logprob_gap_max": 0.4,
    }
