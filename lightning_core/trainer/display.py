"""The progress display of a run, on the terminal's standard error."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lightning_core.backends.no_weights import NONE
from lightning_core.insight.failures import FailureReason, kind_of, reason_of
from lightning_core.insight.rewards import WIDTH, end_width
from lightning_core.insight.verdict import Verdict, say
from lightning_core.records.types import Alert, Metrics, Rollout, Run, Status
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.observers import Observer
from lightning_core.trainer.plan import EVALUATIONS
from lightning_core.trainer.report import NO_PLOTS, task_name
from lightning_core.trainer.summary import Evaluation, PhaseSummary, Summary, describe_policies, exported_note

KINDS = 3
"""Kinds of failure whose first one is told at once; the end and `show` have them all."""

TOLD_SECONDS = 30.0
"""Between two lines about rollouts that are waited for, where no bar moves."""

LISTED = 5
"""Reasons of failures that are listed."""


class Display(Observer):
    """Progress of a run; says nothing where it is not enabled."""

    def __init__(self, *, enabled: bool, steps: int, console: Console | None = None) -> None:
        self.console = console or Terminal(stderr=True, quiet=not enabled)
        self._steps = steps
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not enabled,
        )
        self._training: TaskID | None = None
        self._phase: TaskID | None = None
        self._recent: list[float] = []
        self._resumed: int | None = None
        """The first step after a resume: its rollouts may be older, so it has no rate."""
        self._ended: set[str] = set()
        """Rollouts that have ended before they were waited for."""
        self._awaited: set[str] = set()
        self._collected = ("", 0, 0)
        """The rollouts waited for: their name, how many of them have ended, and how many there are."""
        self._said_at = 0.0
        """When the last line about them was printed."""
        self._told: set[tuple[str, str]] = set()
        """Kinds of failure that were told of."""

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._print(escape(text))

    def _print(self, text: str | Text) -> None:
        """A line above the bars."""
        self._progress.console.print(text, soft_wrap=True)  # commands are copied from here

    def alert(self, alert: Alert) -> None:
        self._print(alert_line(alert))

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        first = len(history)
        if first:
            self.note(f"resuming after step {first}")
            self._resumed = history[-1].step + 1
            self._recent = [one.values["reward"] for one in history if "reward" in one.values][-WIDTH:]
        self._training = self._progress.add_task("training", total=self._steps, completed=first, note="")
        self._phase = self._progress.add_task("", total=None, note="")

    def collecting(self, what: str, rollouts: Sequence[Rollout]) -> None:
        self._awaited = {rollout.id for rollout in rollouts}
        done, total = len(self._ended & self._awaited), len(rollouts)
        self._ended -= self._awaited
        self._collected, self._said_at = (what, done, total), time.monotonic()
        if self._phase is not None:
            if rollouts and rollouts[0].split == "validation":
                self._say_line(f"after step {rollouts[0].step}: {what} begins, {total} rollouts")
            what = f"  {what}"
            self._progress.reset(self._phase, total=total, completed=done, description=what, note="rollouts")

    def rollout_ended(self, rollout: Rollout) -> None:
        if rollout.status is Status.FAILED:
            self._tell_failure(rollout)
        if rollout.id not in self._awaited:
            self._ended.add(rollout.id)
        elif self._phase is not None:
            self._progress.advance(self._phase)
            self._say_progress()

    def _say_progress(self) -> None:
        """Count a rollout that has ended, and say now and then how many have."""
        what, done, total = self._collected
        self._collected = what, done + 1, total
        if time.monotonic() - self._said_at >= TOLD_SECONDS:
            self._said_at = time.monotonic()
            self._say_line(f"{what}: {done + 1} of {total} rollouts have ended")

    def _say_line(self, text: str) -> None:
        """Print a line where no bar moves, as in a log."""
        if not self.console.is_terminal:
            self.note(text)

    def _tell_failure(self, rollout: Rollout) -> None:
        """The first of each kind, with its frames; one line where a hint says what led to it."""
        reason = reason_of(rollout)
        kind = kind_of(reason)
        if kind in self._told or len(self._told) == KINDS:
            return
        self._told.add(kind)
        which = "the first rollout failed" if len(self._told) == 1 else "a rollout failed in another way"
        said = f"{rollout.error or ''}" if reason.hint is None else reason.text
        self._print(
            Text.assemble(
                (f"{which}: {rollout.id}, task {task_name(rollout.task)}\n", "bold red"), (said, "red")
            )
        )

    def updating(self, step: int) -> None:
        if self._phase is not None:
            self._progress.update(self._phase, description=f"  step {step + 1}", note="update")

    async def step_ended(self, metrics: Metrics) -> None:
        """Show the mean reward of the step and of the last five, tokens per second and failures."""
        values, reward, note = metrics.values, "", ""
        if "reward" in values:
            self._recent = [*self._recent[1 - WIDTH :], values["reward"]]
            reward = f"training reward {say(values['reward'])}"
            if metrics.step != self._resumed or values.get("staleness_bound"):
                note = f"  {_rate(values):,.0f} tok/s"
        if stale := describe_staleness(values.get("staleness_mean", 0.0), values.get("staleness_max", 0.0)):
            note += f"  {stale}"
        if policies := describe_policies(values):
            note += f"  {policies}"
        if paid := service_total(values):
            note += f"  {paid:,.0f} service tokens"
        if failures := values.get("failures"):
            note += f"  [red]{failures:.0f} failed[/red]"
        if self._training is not None:
            self._progress.update(self._training, advance=1, note=reward + note)
            if not self.console.is_terminal:  # where no bar moves, as in a log
                done = round(self._progress.tasks[self._training].completed)
                if reward and len(self._recent) > 1:
                    reward += f" (mean of {len(self._recent)} steps {say(fmean(self._recent))})"
                self._print(f"step {done} of {self._steps}  {reward}{note}".rstrip())

    def evaluated(self, result: Evaluation) -> None:
        tasks = result.detail["sampled"].tasks
        self.note(
            f"after step {result.step}: held-out reward {say(result.sampled)} sampled, "
            f"{say(result.greedy)} greedy ({tasks} tasks)"
        )

    def report(self, summary: Summary, folder: Path, curve: str, transcripts: str) -> None:
        """The closing page: curve, what changed, one task before and after, and where everything lies."""
        console = self.console
        if curve:
            console.print(curve, markup=False, highlight=False)
        if transcripts:
            console.print(transcripts)
        if summary.held_out:
            console.print(held_out_table(summary.held_out))
        show_searches(summary, console)
        if summary.agents:
            console.print(agent_table(summary))
        if summary.spent:
            console.print(spent_line(summary.spent), highlight=False)
        if len(summary.phases) > 1:
            console.print(phase_line(summary.phases, summary.steps), highlight=False)
        if summary.reasons:
            console.print(failure_lines(summary.reasons, folder), soft_wrap=True)
        console.print(_left(summary, RunFolder(folder, resume=True)), soft_wrap=True)
        if summary.verdict:
            console.print(verdict_lines(summary.verdict), soft_wrap=True)


def _left(summary: Summary, run: RunFolder) -> Text:
    """Names the contents of the folder and the next step to take; a run without a model has no policy."""
    folder, adapters = run.path, run.has_adapters_alone
    picture = folder / "curve.png"
    exported = exported_note(summary)
    what = "LoRA adapters: merge them to serve them" if adapters else "a transformers folder"
    lines = [
        f"policy      {folder / 'policy'}   ({what})",
        *([f"            {exported}"] if exported else []),
        *(f"            {path}" for path in sorted(folder.glob("policies/*/policy"))),
        f"summary     {folder / 'summary.json'}",
        f"curve       {picture if picture.exists() else NO_PLOTS}",
        f"next        agentlightning show {folder}",
        *([] if adapters else [f"            agentlightning serve {folder / 'policy'}"]),
    ]
    kept = [line for line in lines if line.startswith("summary")] if summary.model == NONE else lines
    return Text("\n".join(kept))


def _rate(values: Mapping[str, float]) -> float:
    """Tokens sampled per second of collecting; of the whole step where rollouts go on during the update."""
    tokens = sum(value for name, value in values.items() if name.endswith("/completion_tokens"))
    seconds = values["step_seconds" if values.get("staleness_bound") else "collect_seconds"]
    return tokens / seconds if seconds else 0.0


def describe_staleness(mean: float, most: float) -> str:
    """The staleness of a step or a run in words; "" where everything was on-policy."""
    return f"staleness {mean:.2f}, at most {most:.0f}" if most else ""


def service_total(values: Mapping[str, float]) -> float:
    """Tokens that a training service was paid for so far; 0 without one."""
    return sum(value for name, value in values.items() if name.startswith("service_"))


def spent_line(spent: Mapping[str, float]) -> str:
    """Tokens that a training service was paid for, by what it did with them."""
    parts = [f"{value:,.0f} {name.split('_')[1]}" for name, value in spent.items()]
    return f"tokens at the service: {', '.join(parts)}"


def alert_line(alert: Alert) -> Text:
    """An alert in a line or two."""
    colour = "red" if alert.level == "critical" else "yellow"
    after = "" if alert.step is None else f"after step {alert.step + 1}, "
    return Text.assemble(
        (f"{alert.level}: ", f"bold {colour}"), (f"{after}{alert.rule}: ", colour), alert.message
    )


COLOURS = {"improved": "green", "flat": "yellow", "untold": "yellow"}


def verdict_lines(verdict: Verdict) -> Text:
    """The verdict, and under it what else there is to say."""
    lines = Text(verdict.sentence, f"bold {COLOURS.get(verdict.kind, 'red')}")
    return lines.append("".join(f"\n{also}" for also in verdict.also), "not bold default")


def failure_lines(reasons: Sequence[FailureReason], folder: Path) -> Text:
    """How often rollouts failed for which reason, and how to look at one."""
    lines = Text("failed rollouts", "bold red")
    for reason in reasons[:LISTED]:
        lines.append(f"\n{reason.count:>6}  {reason.text}", "not bold red")
    if more := sum(reason.count for reason in reasons[LISTED:]):
        lines.append(f"\n{more:>6}  for other reasons", "not bold red")
    return lines.append(f"\n        agentlightning show {folder} --rollout failed", "not bold default")


def held_out_table(evaluations: Sequence[Evaluation]) -> Table:
    """Held-out reward at the first and the last evaluation, or at the only one: over all tasks, for each
    value of the group_by field, and of several agents for each."""
    ends = [evaluations[0], *evaluations[1:][-1:]]
    updates = " and ".join(str(end.step) for end in ends)
    table = Table(title=f"held-out reward after {updates} updates")
    table.add_column("")
    places = [" before", " after"] if len(ends) > 1 else [""]
    for column in ("tasks", *(f"{kind}{place}" for kind in EVALUATIONS for place in places)):
        table.add_column(column, justify="right")
    scores = [end.detail[kind] for kind in EVALUATIONS for end in ends]
    table.add_row("all", str(scores[-1].tasks), *(say(each.success) for each in scores))
    for name in sorted({name for each in scores for name in each.by}):
        table.add_row(Text(name), "", *(say(each.by.get(name, 0.0)) for each in scores))
    agents = sorted({name for each in scores for name in each.agents})
    for name in agents if len(agents) > 1 else ():
        acted = [each.agents.get(name) for each in scores]
        cells = ["-" if one is None else say(one.success) for one in acted]
        last = acted[-1]
        table.add_row(Text(f"agent {name}"), "0" if last is None else str(last.rollouts), *cells)
    return table


def show_searches(summary: Summary, console: Console) -> None:
    """Prints each search's scores, its changes to the prompts, and the tasks they changed."""
    for search in summary.searches:
        changed = f"tasks won: {', '.join(search.won) or '-'}; lost: {', '.join(search.lost) or '-'}"
        left_out = [
            f"the prompt of {name!r} was left as it is: {why}" for name, why in search.left_out.items()
        ]
        for text in filter(None, (search.said(), search.differences(), changed, *left_out)):
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def phase_line(phases: Sequence[PhaseSummary], steps: int) -> str:
    """Which algorithm made which of so many steps."""
    ends = [*(phase.first for phase in phases[1:]), steps]
    return "phases: " + ", ".join(
        f"{phase.algorithm} steps {phase.first + 1} to {min(end, steps)}"
        for phase, end in zip(phases, ends, strict=True)
        if phase.first < steps
    )


def time_line(summary: Summary) -> str:
    """How long the steps took, and the evaluations, with how much memory."""
    steps = f"{summary.steps} steps in {summary.train_seconds:.0f} s"
    steps += f", evaluations in {summary.evaluation_seconds:.0f} s" * bool(summary.held_out)
    return steps if summary.memory_gib is None else f"{steps}, {summary.memory_gib:.1f} GiB at most"


def agent_table(summary: Summary) -> Table:
    """Who was trained, and what each agent did."""
    width = end_width(summary.steps)
    ends = "first step" if width == 1 else f"first {width} steps"
    table = Table(
        title=f"agents · {time_line(summary)}",
        caption="reward: of the training rollouts in which the agent acted, "
        f"{ends} → {ends.replace('first', 'last')}; credit: its share of all advantages",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    columns = ["agent", "trained", "calls", "tokens", "reward", "credit", "failed"]
    automatic = any(agent.air for agent in summary.agents.values())
    for column in (*columns, *(["AIR"] if automatic else [])):
        side: JustifyMethod = "left" if column in ("agent", "trained") else "right"
        table.add_column(column, justify=side, no_wrap=column in ("agent", "reward"), overflow="fold")
    for name, agent in summary.agents.items():
        acted = agent.calls > 0 or agent.transitions_with_advantage > 0
        table.add_row(
            Text(name),
            "no" if not agent.trained else "yes" if acted else "never called",
            f"{agent.calls:,}",
            f"{agent.completion_tokens:,}",
            "-" if agent.first is None or agent.last is None else f"{say(agent.first)} → {say(agent.last)}",
            f"{agent.credit:.0%}" if agent.trained else "-",
            f"{agent.failed_calls + agent.failed_rollouts:,}",
            *([f"{agent.air:+.2f}"] if automatic else []),
            style=None if acted else "red",
        )
    return table
