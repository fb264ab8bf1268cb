"""GEPA: prompts rewritten by a model that is shown what went wrong (Agrawal et al., arXiv 2507.19457).

A parent is drawn from the front of candidates that are best on some task. It runs a few training tasks, the
reflecting model reads what happened and rewrites one prompt, and a child that is better on the same
tasks is tried on all tasks that choose. The search is the package `gepa`; here is what joins it to a bench.

The package swallows what its proposer raises and goes on spending. So the first failure is kept here, stops
it, and is raised once it has ended. Its own state is never saved: the bench answers from the store what it
asked before, so it is begun again from its start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from lightning_core.algorithms.search import Bench, Candidate, Reflective, Trial, evidence
from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range
from lightning_core.records.types import Task

log = logging.getLogger(__name__)

T = TypeVar("T")
IDLE: Final = 20
"""Rounds in a row without a new rollout after which nothing more is to be expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GEPA(Reflective):
    """Reflective prompt evolution."""

    minibatch: int = 4
    """Training tasks on which a child must be better than its parent."""
    at_once: int = 1
    """Children that are proposed and tried together."""

    def __post_init__(self) -> None:
        Reflective.__post_init__(self)
        for option in ("minibatch", "at_once"):
            check_range(option, getattr(self, option), of="GEPA", least=1, whole=True)
        if find_spec("gepa") is None:
            raise ConfigError("GEPA needs the package gepa: pip install 'agent-lightning-core[apo]'")

    async def search(self, bench: Bench) -> Candidate:
        adapter = _Adapter(self, bench, asyncio.get_running_loop())
        work = asyncio.create_task(asyncio.to_thread(partial(_optimize, self, bench, adapter)))
        try:
            best: Candidate = await asyncio.shield(work)
        except asyncio.CancelledError as stopped:
            adapter.stop(stopped)
            await asyncio.wait({work})
            raise
        except Exception:
            if adapter.failure is None:
                raise
        if adapter.failure is not None:
            raise adapter.failure
        return best


def _optimize(options: GEPA, bench: Bench, adapter: _Adapter) -> dict[str, str]:
    from gepa import optimize
    from gepa.strategies.proposal_sampling import IndependentSampling

    result = optimize(
        seed_candidate=dict(bench.seed),
        trainset=list(bench.train),
        valset=list(bench.choosing),
        adapter=adapter,
        reflection_minibatch_size=min(options.minibatch, len(bench.train)),
        skip_perfect_score=False,  # a reward may be more than 1
        sampling_strategy=IndependentSampling(options.at_once) if options.at_once > 1 else None,
        use_merge=len(bench.seed) > 1,
        stop_callbacks=adapter.is_over,
        seed=bench.random_seed,
        logger=_Log(),
        track_best_outputs=False,
        raise_on_exception=True,
    )
    best: dict[str, str] = result.best_candidate
    return best


class _Log:
    def log(self, message: str) -> None:
        log.debug("%s", message)


class _Adapter:
    """Answers gepa's questions, in its own thread, through the bench on the trainer's loop."""

    def __init__(self, options: GEPA, bench: Bench, loop: asyncio.AbstractEventLoop) -> None:
        self.failure: BaseException | None = None
        self._options = options
        self._bench = bench
        self._loop = loop
        self._left = bench.left
        self._idle = 0
        self._awaited: Future[Any] | None = None
        """The answer that gepa's thread waits for."""

    def stop(self, why: BaseException) -> None:
        """End the search, whatever is waited for."""
        self.failure = why
        if self._awaited is not None:
            self._awaited.cancel()

    def is_over(self, state: object) -> bool:
        """Whether another round might go beyond the budget, or would find nothing new."""
        bench, options = self._bench, self._options
        tried = 2 * options.minibatch + len(bench.choosing)
        self._idle = self._idle + 1 if bench.left == self._left else 0
        self._left = bench.left
        return (
            self.failure is not None
            or self._idle > IDLE
            or bench.left < tried * options.at_once * options.repeats
            or options.has_asked_enough(bench)
        )

    def evaluate(self, batch: list[Task], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: list[tuple[dict[str, str], list[Task]]]) -> list[Any]:
        from gepa import EvaluationBatch

        return [
            EvaluationBatch(
                outputs=[None] * len(trials), scores=[trial.reward for trial in trials], trajectories=trials
            )
            for trials in self._wait(self._bench.evaluate(items))
        ]

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, str]]]:
        trials: list[Trial] = eval_batch.trajectories
        each = max(1, self._options.shown // len(trials))
        return {name: [evidence(trial, name, each) for trial in trials] for name in components_to_update}

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """The texts of the next child. A child that is refused equals its parent: trying it costs nothing,
        and it is not better."""
        if self.failure is not None:  # gepa asks again what has failed
            raise RuntimeError("the search has ended")
        texts = {name: self._ask(candidate, name, reflective_dataset[name]) for name in components_to_update}
        child = self._wait(self._bench.propose(candidate, texts))
        return {name: (child or candidate)[name] for name in components_to_update}

    def _ask(self, candidate: Candidate, name: str, shown: Sequence[Mapping[str, Any]]) -> str:
        from gepa.strategies.instruction_proposal import InstructionProposalSignature as Signature

        placeholders = self._bench.prompts[name].placeholders
        kept = (
            f"\n\nKeep these placeholders, each exactly so: {', '.join(placeholders)}" if placeholders else ""
        )
        question = Signature.prompt_renderer(
            {
                "current_instruction_doc": candidate[name],
                "dataset_with_feedback": shown,
                "prompt_template": None,
            }
        )
        answer = self._wait(self._bench.reflect(f"{question}{kept}"))
        return str(Signature.output_extractor(answer.strip())["new_instruction"])

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._awaited = asyncio.run_coroutine_threadsafe(work, self._loop)
            result: T = self._awaited.result()
            return result
        except BaseException as error:
            self.failure = self.failure or error
            raise
