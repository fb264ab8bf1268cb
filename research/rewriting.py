"""The worth of the rewriter: the share of questions solved at the first query, and after rewriting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_core.stores.base import Store
from lightning_core.trainer.summary import Summary
from research.tables import spread

Shares = dict[str, float]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The table of an example whose `agent` rewrites queries, about the form of question that needs it."""

    agent: str
    form: str = "active"

    async def measure(self, store: Store, summary: Summary) -> dict[str, Shares]:
        """The shares before and after a run, sampled. Raises ValueError if no task was of the form."""
        return {
            name: await self._shares(store, summary.run, step)
            for name, step in (("before", 0), ("after", summary.steps))
        }

    async def _shares(self, store: Store, run: str, step: int) -> Shares:
        rollouts = [
            r
            for r in await store.find_rollouts(run, step=step, split="validation")
            if r.task.input["form"] == self.form and r.sampling.temperature > 0
        ]
        if not rollouts:
            raise ValueError(f"run {run!r} was held to no task of the form {self.form!r}; take more tasks")
        calls = await store.get_calls([r.id for r in rollouts])
        rewritten = {r.id for r in rollouts if any(c.agent == self.agent for c in calls[r.id])}
        solved = {r.id for r in rollouts if r.reward == 1.0}
        return {
            "first query": len(solved - rewritten) / len(rollouts),
            "after rewriting": len(solved & rewritten) / len(rollouts),
        }

    def table(self, measured: Sequence[Mapping[str, Shares]]) -> str:
        """Mean ± standard deviation over the runs."""
        lines = [
            f"The form `{self.form}`, sampled: share solved at once, and by the rewriter.",
            "",
            "| | before | after |",
            "|---|---|---|",
        ]
        for how in ("first query", "after rewriting"):
            cells = [spread([run[when][how] for run in measured]) for when in ("before", "after")]
            lines.append(f"| {how} | {' | '.join(cells)} |")
        return "\n".join(lines)
