"""Games drawn at random: their gradient is that of their success, and a seed gives the same game."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PhiForCausalLM

from benchmarks.intervals import Interval
from benchmarks.page import insert
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.credit.tabular import Tabular
from lightning_core.credit.whole import uniform
from research.credit.drawn import Drawn, draw, paid_turns, two_calls
from research.credit.family import Found, Record, measure, written
from research.credit.learning import Drawing, WholeRecord, table
from research.credit.learning import Record as Learnings
from research.credit.truth import Truth
from research.credit.whole import Game, train_whole
from research.page import PAGE, RECORDS


def nudged(game: Drawn, place: tuple[int, ...], by: float) -> Drawn:
    """The game with one logit changed, for all kinds if the prompt does not tell them."""
    logits = np.log(np.maximum(game.policy, 1e-300))
    logits[(place[0] if game.told else slice(None), *place[1:])] += by
    raised = np.exp(logits)
    return replace(game, policy=raised / raised.sum(-1, keepdims=True))


@pytest.mark.parametrize("seed", [1, 5, 7, 31])  # results shown, kinds hidden, paid turns, progress shown
def test_the_gradient_is_how_the_success_changes_with_a_logit(seed: int):
    game = draw(seed)
    random = np.random.default_rng(0)
    for _ in range(5):
        place = tuple(int(random.integers(size)) for size in game.shape)
        change = (nudged(game, place, 1e-5).success - nudged(game, place, -1e-5).success) / 2e-5
        times = 1 if game.told else game.shape[0]
        assert times * game.gradient[place] == pytest.approx(change, abs=1e-8)


def test_rollouts_earn_what_the_success_says():
    game = draw(7)
    played = game.play(300, np.random.default_rng(0))
    returns = played.final + played.pay.sum(-1)
    assert returns.mean() == pytest.approx(game.success, abs=4 * returns.std() / np.sqrt(returns.size))


def test_two_right_replies_of_eight_and_one_of_eight_succeed_once_in_32():
    assert two_calls(0.0, 0.0).success == pytest.approx(2 / 8 * 1 / 8)


def test_a_seed_gives_one_game():
    assert np.array_equal(draw(3).policy, draw(3).policy)


def test_a_method_is_measured_on_the_batches_of_the_base():
    found = measure(
        paid_turns("same"), {"uniform": uniform, "again": uniform, "state": Tabular(1.0)}, calls=1
    )
    assert (found.ratios["again"].value, found.ratios["again"].high) == (1.0, 1.0)
    assert found.ratios["state"].value < 1


def test_a_bound_without_limit_is_read_as_it_was_written():
    found = Found(about="", calls=2, success=0.1, cost=1.0, ratios={"state": Interval(1.0, 0.0, math.inf)})
    record = Record(set="report", games={"drawn 1": found})
    assert Record.model_validate_json(written(record)) == record


@pytest.mark.parametrize("seed", [10_081, 10_000, 10_165])
def test_a_game_as_an_environment_has_the_success_that_the_game_counts(seed):
    game = draw(seed)
    even = replace(game, policy=np.full(game.shape, 1 / game.shape[3]))
    truth = Truth(Drawing(game, tasks=game.shape[0]))
    assert truth.success(truth.even) == pytest.approx(even.success)
    assert truth.optimum <= 1


def test_a_fresh_network_gives_each_reply_the_same_chance_and_trains_through_trainer(tmp_path):
    game = replace(draw(10_096), group_size=2, groups=2)
    truth = Truth(Drawing(game))
    app = Game(truth)
    app.save_model(tmp_path, seed=0)
    network = PhiForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = network(torch.tensor([app.tokens(0)])).logits[0, -1]
    chances = torch.softmax(logits, 0)[2 : 2 + len(app.replies)]
    assert chances.tolist() == pytest.approx([1 / len(app.replies)] * len(app.replies))
    algorithm = GRPO(group_size=2, tasks_per_step=2, credit="relevance")
    success = train_whole(truth, algorithm, rate=0.02, seed=0, steps=2, aim=1.0)
    assert len(success) == 2
    assert success[-1] != truth.success(truth.even)


def test_the_published_learning_tables_are_what_the_records_say():
    for kind in (Learnings, WholeRecord):
        record = kind.model_validate_json((RECORDS / f"{kind().name}.json").read_bytes())
        assert len(record.games) >= 10
        assert insert(PAGE.read_text(), record, table(record)) == PAGE.read_text()
