"""The report at a run's end: `summary.json`, curve and transcripts, all worked out from the store.

Nothing here depends on what this process remembers, so a resumed run reports like one that was never
interrupted, and `agentlightning show` can report on any run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, BinaryIO

from rich.markup import escape

from lightning_core.experience.returns import agent_rewards_of, reward_of
from lightning_core.experience.transitions import last_planned
from lightning_core.insight.bottleneck import step_seconds
from lightning_core.insight.failures import group_failures
from lightning_core.insight.rewards import Change, agent_changes, change, reward_curve, running_mean
from lightning_core.insight.verdict import Evidence, missing_agents, say, verdict
from lightning_core.records.types import Call, Metrics, Reward, Rollout, RolloutCount, Run, Status, Task
from lightning_core.stores.base import Store
from lightning_core.stores.versions import Document, model_of
from lightning_core.trainer.folder import RunFolder, write_atomically
from lightning_core.trainer.plan import EVALUATIONS
from lightning_core.trainer.summary import (
    AgentScore,
    AgentSummary,
    Evaluation,
    EvaluationScore,
    PhaseSummary,
    SearchSummary,
    Summary,
)

NAMED_VERSIONS = ("python", "agent-lightning-core", "torch", "transformers", "vllm", "verl")
"""Packages whose versions a person is told first."""
FLAT = 1e-6
"""Difference of rewards, as a part of them, that is rounding."""
TICKS = 4
"""Steps that the terminal's curve names, beside the first."""
NO_PLOTS = "no curve: pip install 'agent-lightning-core[plots]'"
"""Said in place of a curve where its library is missing."""


def score(
    rollouts: Sequence[Rollout],
    calls: Mapping[str, Sequence[Call]],
    rewards: Mapping[str, Sequence[Reward]],
    group_by: str | None,
) -> EvaluationScore:
    """How well the rollouts of one evaluation did."""
    wholes = {rollout.id: reward_of(rollout) for rollout in rollouts}
    own = {rollout.id: agent_rewards_of(rollout, rewards.get(rollout.id, ())) for rollout in rollouts}
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if group_by is not None:
            parts[str(rollout.task.input.get(group_by))].append(wholes[rollout.id])
    acted: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for rollout in rollouts:
        for call in calls.get(rollout.id, ()):
            acted[call.agent][rollout.id] = acted[call.agent].get(rollout.id, 0) + 1
    return EvaluationScore(
        success=fmean(wholes.values()),
        tasks=len(rollouts),
        failures=sum(rollout.status is not Status.SUCCEEDED for rollout in rollouts),
        binary=all(reward in (0, 1) for reward in wholes.values()),
        by={name: fmean(values) for name, values in sorted(parts.items())},
        agents={
            agent: AgentScore(
                calls=sum(counts.values()),
                rollouts=len(counts),
                success=fmean(own[name].get(agent, wholes[name]) for name in counts),
            )
            for agent, counts in sorted(acted.items())
        },
    )


def evaluation(
    step: int,
    rollouts: Iterable[Rollout],
    calls: Mapping[str, Sequence[Call]],
    rewards: Mapping[str, Sequence[Reward]],
    group_by: str | None,
) -> Evaluation:
    """The rollouts of `RolloutPlan.evaluate`, told apart by how they were sampled."""
    rollouts = list(rollouts)
    detail = {
        kind: score(
            [one for one in rollouts if one.sampling.temperature == sampling.temperature],
            calls,
            rewards,
            group_by,
        )
        for kind, sampling in EVALUATIONS.items()
    }
    return Evaluation(
        step=step,
        sampled=detail["sampled"].success,
        greedy=detail["greedy"].success,
        detail=detail,
        seconds=max(one.finished_at or one.created_at for one in rollouts)
        - min(one.created_at for one in rollouts),
    )


# from the store --------------------------------------------------------------------------
async def find_evaluation(store: Store, run_id: str, step: int, group_by: str | None) -> Evaluation | None:
    """The evaluation made after `step` updates, if every rollout of it is finished and none withdrawn."""
    rollouts = await find_whole_evaluation(store, run_id, step)
    if not rollouts:
        return None
    ids = [rollout.id for rollout in rollouts]
    return evaluation(step, rollouts, await store.get_calls(ids), await store.get_rewards(ids), group_by)


async def summarise(
    store: Store,
    run: Run,
    folder: Path,
    evidence: Evidence,
    *,
    exported: int | None = None,
    spent: Mapping[str, float] = MappingProxyType({}),
) -> Summary:
    """The run as it stands in the store, finished or not, with its `evidence`.

    `exported` is the number of updates of the exported policy, `spent` the tokens that its backend's service
    was paid for.
    """
    metrics, origin, config = evidence.metrics, run.provenance, run.config
    totals: Counter[str] = Counter()
    for entry in metrics:
        totals.update(entry.values)
    made = metrics[-1].step + 1 if metrics else 0
    steps = sorted({each.step for each in evidence.counts if each.split == "validation"} | {0, made})
    group_by = settings_of(run).get("group_by")
    found = {step: await find_evaluation(store, run.id, step, group_by) for step in steps if step <= made}
    between = [each for step, each in found.items() if each is not None and 0 < step < made]
    return Summary(
        run=run.id,
        folder=str(folder),
        steps=len(metrics),
        seed=int(str(config.get("seed", 0))),
        model=str(config.get("model")),
        before=found[0],
        after=found[made] if made else None,
        between=between,
        exported=exported,
        train_seconds=step_seconds(metrics),
        rollouts=int(totals["rollouts"]),
        failures=int(totals["failures"]),
        verdict=verdict(evidence),
        reasons=group_failures(evidence.failed),
        zero_variance_groups=int(totals["zero_variance_groups"]),
        skipped_updates=int(totals["skipped_updates"]),
        staleness_mean=fmean(_each(metrics, "staleness_mean") or [0.0]),
        staleness_max=int(max(_each(metrics, "staleness_max"), default=0)),
        memory_gib=max(_each(metrics, "memory_gib"), default=None),
        spent=dict(spent),
        agents=agent_summaries(metrics, evidence.agents),
        phases=find_phases(run),
        searches=await find_searches(store, run.id, [entry.step for entry in metrics]),
        settings=dict(settings_of(run)),
        versions=dict(_mapping(origin.get("versions"))),
    )


def settings_of(run: Run | None) -> Mapping[str, Any]:
    """The settings that a run was begun with."""
    return _mapping(run.provenance.get("settings")) if run else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


async def find_evidence(
    store: Store, run: Run | None, metrics: Sequence[Metrics], counts: Sequence[RolloutCount]
) -> Evidence:
    """Returns the evidence for the verdict on a run, finished or not."""
    if run is None:
        return Evidence()
    steps = sorted({each.step for each in counts if each.split == "validation"}, reverse=True)
    evaluations = {step: await find_whole_evaluation(store, run.id, step) for step in steps[:2]}
    named: Any = run.config.get("agents") or ()
    before = await find_whole_evaluation(store, run.id, 0)
    after = next((found for step, found in evaluations.items() if step and found), [])
    rewards = await store.get_rewards([rollout.id for rollout in (*before, *after)])
    return Evidence(
        metrics=metrics,
        counts=counts,
        failed=await store.find_rollouts(run.id, status=Status.FAILED),
        before=before,
        after=after,
        own={one.id: agent_rewards_of(one, rewards[one.id]) for one in (*before, *after)},
        agents=named,
        temperature=settings_of(run).get("temperature", 1.0),
    )


async def find_change(
    store: Store, run: Run, metrics: Sequence[Metrics], counts: Sequence[RolloutCount]
) -> Change | None:
    """Returns the change of reward that sums up the run, finished or not."""
    steps = sorted({each.step for each in counts if each.split == "validation"})
    ends = [await _first_whole(store, run.id, steps), await _first_whole(store, run.id, steps[::-1])]
    apart = {each[0].step: each for each in ends if each}
    greedy = [fmean(reward_of(r) for r in each if r.sampling.temperature == 0) for each in apart.values()]
    return change(greedy, reward_curve(metrics)[1])


async def _first_whole(store: Store, run_id: str, steps: Sequence[int]) -> list[Rollout]:
    """The rollouts of the first evaluation among these that is whole; [] without one."""
    for step in steps:
        if found := await find_whole_evaluation(store, run_id, step):
            return found
    return []


def find_phases(run: Run | None) -> list[PhaseSummary]:
    """The phases that a run was opened with."""
    planned: Any = run.config.get("phases", []) if run else []
    return [PhaseSummary(algorithm=name, first=first) for name, first in planned]


async def find_searches(store: Store, run_id: str, steps: Iterable[int]) -> list[SearchSummary]:
    """Returns the results of the given steps that were searches."""
    found = [each for step in steps for each in await store.list_resources(run_id, Document.SEARCH.of(step))]
    return [SearchSummary.model_validate_json(str(each.uri)) for each in found]


def _each(metrics: Sequence[Metrics], name: str) -> list[float]:
    """A number of all steps that have it."""
    return [entry.values[name] for entry in metrics if name in entry.values]


def agent_summaries(metrics: Sequence[Metrics], named: Sequence[str] = ()) -> dict[str, AgentSummary]:
    """Returns a summary of each agent that was seen, and of each name that no call came from."""
    totals: defaultdict[tuple[str, str], float] = defaultdict(float)
    for entry in metrics:
        for key, value in entry.values.items():
            if key.startswith("agent/"):
                _, rest = key.split("/", 1)
                name, _, number = rest.rpartition("/")
                totals[name, number] += value
    seen = sorted({name for name, _ in totals})
    ends = agent_changes(metrics)
    credit = sum(totals[name, "credit"] for name in seen)
    agents = {
        name: AgentSummary(
            trained=totals[name, "trained"] > 0,
            calls=int(totals[name, "calls"]),
            completion_tokens=int(totals[name, "completion_tokens"]),
            transitions_with_advantage=int(totals[name, "transitions"]),
            credit=totals[name, "credit"] / credit if credit else 0.0,
            air=totals[name, "air"],
            first=ends[name].first if name in ends else None,
            last=ends[name].last if name in ends else None,
            constrained_calls=int(totals[name, "constrained_calls"]),
            failed_calls=int(totals[name, "failed_calls"]),
            failed_rollouts=int(totals[name, "failed_rollouts"]),
        )
        for name in seen
    }
    missing = missing_agents(named, seen) if seen else []
    return agents | {name: AgentSummary(trained=True, calls=0, completion_tokens=0) for name in missing}


def plot_curve(metrics: Sequence[Metrics], summary: Summary, file: BinaryIO) -> None:
    """Mean training reward per step, its running mean, and the held-out reward before and after."""
    from matplotlib.figure import Figure

    steps, rewards = reward_curve(metrics)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for phase in summary.phases if len(summary.phases) > 1 else ():
        axes.axvline(phase.first + 0.5, color="0.85")
        axes.annotate(
            phase.algorithm, (phase.first + 0.5, 1), (3, -10), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize="small",
        )  # fmt: skip
    axes.plot(steps, rewards, color="0.75", label="training reward of each step")
    axes.plot(steps, running_mean(rewards), color="C0", label="its mean of five steps")
    for kind, style in (("sampled", "s"), ("greedy", "o")):
        points = [(each.step, getattr(each, kind)) for each in summary.held_out]
        if points:
            axes.plot(*zip(*points, strict=True), style, linestyle=":", label=f"held-out reward, {kind}")
    axes.set(xlabel="step", ylabel="mean reward", title=f"{summary.run} (seed {summary.seed})")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.02), max(high, 1.02))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, format="png", dpi=120)


def terminal_curve(metrics: Sequence[Metrics]) -> str:
    """The running mean of the reward as text, for a terminal; without plotext, what to install.

    A reward that never changes is said in words: an axis would make a slope of rounding.
    """
    try:
        import plotext
    except ModuleNotFoundError:
        return NO_PLOTS
    if not hasattr(plotext, "clear_figure"):  # 6 has another interface
        return NO_PLOTS
    steps, rewards = reward_curve(metrics)
    if len(steps) < 2:
        return ""
    if max(rewards) - min(rewards) <= FLAT * max(1.0, abs(rewards[0])):
        return f"training reward: {say(rewards[0])} in each of {len(steps)} steps"
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(72, 14)
    plotext.plot(steps, running_mean(rewards), marker="braille")
    plotext.title("training reward (mean of five steps)")
    plotext.xlabel("step")
    plotext.xticks(sorted({steps[place * (len(steps) - 1) // TICKS] for place in range(TICKS + 1)}))
    return str(plotext.uncolorize(plotext.build()))


def model_name(run: Run, policy: str | None = None) -> str | None:
    """The model that a policy of a run began with, of a folder its name; None if the run does not say."""
    model = model_of(run, policy)
    return Path(model).name if model is not None and Path(model).is_absolute() else model


async def transcripts(store: Store, run_id: str, last: int) -> str:
    """One held-out task, greedy, before and after: the first of those that gained most."""
    before = {r.task.id: r for r in await _greedy(store, run_id, 0)}
    pairs = [(before[r.task.id], r) for r in await _greedy(store, run_id, last) if r.task.id in before]
    first, after = max(pairs, key=_gain, default=(None, None))
    if first is None or after is None or _gain((first, after)) <= 0:
        return ""
    calls = await store.get_calls([first.id, after.id])
    parts = [
        f"[bold]{name}[/bold] (reward {say(reward_of(r))})\n" + "\n".join(map(_line, calls[r.id]))
        for name, r in (("before", first), ("after", after))
    ]
    return f"[bold]one task[/bold] {escape(task_text(after.task))}\n" + "\n".join(parts)


def _gain(pair: tuple[Rollout, Rollout]) -> float:
    return reward_of(pair[1]) - reward_of(pair[0])


async def _greedy(store: Store, run_id: str, step: int) -> list[Rollout]:
    return [each for each in await _evaluated(store, run_id, step) if each.sampling.temperature == 0]


async def find_whole_evaluation(store: Store, run_id: str, step: int) -> list[Rollout]:
    """The rollouts of an evaluation, if every one is finished and none withdrawn; else none."""
    rollouts = await _evaluated(store, run_id, step)
    whole = all(each.status.finished and each.status is not Status.CANCELLED for each in rollouts)
    return rollouts if whole else []


async def _evaluated(store: Store, run_id: str, step: int) -> list[Rollout]:
    """The rollouts of an evaluation, as the trainer planned it."""
    return last_planned(await store.find_rollouts(run_id, step=step, split="validation"))


def task_text(task: Task) -> str:
    """The task's first text field that reads like a question, else all of it."""
    texts = [value for value in task.input.values() if isinstance(value, str) and " " in value]
    return texts[0] if texts else str(task.input)


def task_name(task: Task) -> str:
    """The id that its user gave it; else its text."""
    return task_text(task) if task.id == Task(input=task.input).id else task.id


def _line(call: Call) -> str:
    message = call.choices[0].message if call.choices else {}
    said = message.get("content") or message.get("tool_calls") or ""
    return f"  {call.agent:>16}  {escape(str(said).strip())}"


async def write_report(store: Store, folder: RunFolder, summary: Summary) -> None:
    """Write `summary.json` and, where matplotlib is installed, `curve.png`."""
    metrics = await store.list_metrics(folder.run_id)
    folder.write_json("summary.json", summary.model_dump(mode="json"))
    if find_spec("matplotlib") is not None:
        picture = BytesIO()
        plot_curve(metrics, summary, picture)
        write_atomically(folder.path / "curve.png", picture.getvalue())
