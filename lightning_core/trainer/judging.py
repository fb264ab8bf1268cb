"""Judging the rollouts of a step: which groups, what is known already, and where the scores are kept.

A score is a final reward of its rollout, given by "judge", which counts as the last one given. What a judge
has answered lies in the run's folder as well (`judge/`, one file for each question), so that a resumed run,
or a group that went the same way as another, asks nothing again. Evaluations are not judged: they have no
groups.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from lightning_core.errors import ConfigError, TrainingError
from lightning_core.judge.dialogue import Dialogue, dialogue
from lightning_core.judge.endpoint import Endpoint, JudgeError, address_of
from lightning_core.judge.judge import Judge
from lightning_core.judge.question import Question, Score, make_question
from lightning_core.stores.base import Store
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.parts import ResolvedPhase
from lightning_core.types import Call, Reward, Rollout, Status

log = logging.getLogger(__name__)

SOURCE = "judge"
Rewards = dict[str, list[Reward]]
"""By rollout id."""


def check_judge(judge: Judge | None, phases: Sequence[ResolvedPhase]) -> None:
    """Raise ConfigError where a judge would have nothing to compare, or can't be asked."""
    if judge is None:
        return
    address_of(judge)
    for phase in phases:
        algorithm = phase.algorithm
        if algorithm.learns_from is None and algorithm.group_size < 2:
            raise ConfigError(
                f"a judge compares the rollouts of a group, and {algorithm.name!r} has groups of one: "
                "give it group_size=2 or more"
            )


class Judging:
    """Has the rollouts of a run judged; without a judge it changes nothing."""

    def __init__(self, judge: Judge | None, store: Store, folder: RunFolder) -> None:
        self.judge = judge
        self.store = store
        self.folder = folder

    async def score(
        self, rollouts: Sequence[Rollout], calls: Mapping[str, Sequence[Call]], rewards: Rewards
    ) -> Rewards:
        """All rewards, those of the judge among them.

        Raises TrainingError if the judge can't score a group; all scores that it gave are stored.
        """
        if self.judge is None:
            return rewards
        groups: defaultdict[str, list[Rollout]] = defaultdict(list)
        for rollout in rollouts:
            if rollout.status is Status.SUCCEEDED:
                groups[rollout.group_id].append(rollout)
        waiting = [group for group in groups.values() if not all(_judged(rewards[one.id]) for one in group)]
        async with Endpoint(self.judge) as endpoint:
            judging = (self._judge(self.judge, endpoint, group, calls) for group in waiting)
            given = await asyncio.gather(*judging, return_exceptions=True)
        for part in given:
            if isinstance(part, BaseException):
                raise part
            rewards = {**rewards, **{one.rollout_id: [*rewards[one.rollout_id], one] for one in part}}
        return rewards

    async def _judge(
        self, judge: Judge, endpoint: Endpoint, group: list[Rollout], calls: Mapping[str, Sequence[Call]]
    ) -> list[Reward]:
        """The rewards of one group, stored."""
        # a thread: 0.8 s for 8 rollouts of 100 calls, in which the gateway would not answer
        told, different, question = await asyncio.to_thread(_tell, judge, group, calls)
        if question.shortened:
            log.warning(
                "group %s: %d characters of its transcripts are left out before the judge, to keep within "
                "Judge(budget=%d)",
                group[0].group_id,
                question.shortened,
                judge.budget,
            )
        try:
            scores = await self._ask(judge, endpoint, question)
        except JudgeError as problem:
            raise TrainingError(
                f"judge {judge.model!r} at {endpoint.shown} gave no scores for group {group[0].group_id!r} "
                f"(task {group[0].task.id!r}): {problem}. Every rollout and all scores so far are kept: mend "
                "the cause, then resume"
            ) from problem
        by_dialogue = dict(zip(different, scores, strict=True))
        rewards = [_reward(judge, rollout, by_dialogue[told[rollout.id]]) for rollout in group]
        await self.store.add_rewards(rewards)
        return rewards

    async def _ask(self, judge: Judge, endpoint: Endpoint, question: Question) -> list[Score]:
        """The judge's scores, from the run's folder if it was asked the same before."""
        name = f"judge/{question.digest(judge.model)}.json"
        path = self.folder.path / name
        if path.exists():
            return [Score.model_validate(one) for one in json.loads(path.read_bytes())["scores"]]
        scores = await endpoint.ask(question)
        path.parent.mkdir(exist_ok=True)
        content = {"model": judge.model, "scores": [one.model_dump() for one in scores]}
        await asyncio.to_thread(self.folder.write_json, name, content)  # a busy disk takes 20 ms
        return scores


def _tell(
    judge: Judge, group: Sequence[Rollout], calls: Mapping[str, Sequence[Call]]
) -> tuple[dict[str, Dialogue], list[Dialogue], Question]:
    """(what happened in each rollout, those that differ, the question about them)."""
    told = {rollout.id: dialogue(calls[rollout.id]) for rollout in group}
    different = sorted(set(told.values()), key=_digest)
    return told, different, make_question(judge, group[0].task, different)


def _reward(judge: Judge, rollout: Rollout, score: Score) -> Reward:
    own = rollout.reward if rollout.reward is not None else 0.0
    return Reward(
        rollout_id=rollout.id,
        attempt=rollout.attempts,
        value=judge.weight * score.score + (1 - judge.weight) * own,
        source=SOURCE,
        reason=score.reason,
    )


def _judged(rewards: Sequence[Reward]) -> bool:
    return any(reward.source == SOURCE for reward in rewards)


def _digest(lines: Dialogue) -> str:
    return blake2b(repr(lines).encode(errors="replace")).hexdigest()
