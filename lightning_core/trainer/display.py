"""What a person sees while a run is going: one progress display on the terminal's standard error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lightning_core.backends.hosted import NONE
from lightning_core.trainer.observers import Observer
from lightning_core.trainer.report import NO_PLOTS, Evaluation, PhaseSummary, Summary
from lightning_core.types import Alert, Metrics, Rollout, Run


class Display(Observer):
    """Progress of a run; says nothing where it is not enabled."""

    def __init__(self, *, enabled: bool, steps: int, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, quiet=not enabled)
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
        self._ended: set[str] = set()
        """Rollouts that have ended before they were waited for."""
        self._awaited: set[str] = set()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str | Text) -> None:
        """A line above the bars."""
        self._progress.console.print(text, soft_wrap=True)  # commands are copied from here

    def alert(self, alert: Alert) -> None:
        self._print(alert_line(alert))

    def start(self, run: Run, history: Sequence[Metrics]) -> None:
        first = len(history)
        if first:
            self.note(f"resuming after step {first}")
        self._training = self._progress.add_task("training", total=self._steps, completed=first, note="")
        self._phase = self._progress.add_task("", total=None, note="")

    def collecting(self, what: str, rollouts: Sequence[Rollout]) -> None:
        self._awaited = {rollout.id for rollout in rollouts}
        done, total = len(self._ended & self._awaited), len(rollouts)
        self._ended -= self._awaited
        if self._phase is not None:
            what = f"  {what}"
            self._progress.reset(self._phase, total=total, completed=done, description=what, note="rollouts")

    def rollout_ended(self, rollout: Rollout) -> None:
        if rollout.id not in self._awaited:
            self._ended.add(rollout.id)
        elif self._phase is not None:
            self._progress.advance(self._phase)

    def updating(self, step: int) -> None:
        if self._phase is not None:
            self._progress.update(self._phase, description=f"  step {step + 1}", note="update")

    async def step_ended(self, metrics: Metrics) -> None:
        """Show the mean reward of the last five steps that had rollouts, tokens per second and failures."""
        values, note = metrics.values, ""
        if "reward" in values:
            self._recent = [*self._recent[-4:], values["reward"]]
            note = f"reward {sum(self._recent) / len(self._recent):.2f}  {_rate(values):,.0f} tok/s"
        if stale := describe_staleness(values.get("staleness_mean", 0.0), values.get("staleness_max", 0.0)):
            note += f"  {stale}"
        if failures := values.get("failures"):
            note += f"  [red]{failures:.0f} failed[/red]"
        if self._training is not None:
            self._progress.update(self._training, advance=1, note=note)

    def evaluated(self, result: Evaluation) -> None:
        tasks = result.detail["sampled"].tasks
        self.note(
            f"after step {result.step}: held-out success {result.sampled:.2f} sampled, "
            f"{result.greedy:.2f} greedy ({tasks} tasks)"
        )

    def report(self, summary: Summary, folder: Path, curve: str, transcripts: str) -> None:
        """The closing page: curve, what changed, one task before and after, and where everything lies."""
        console = self.console
        if curve:
            console.print(curve, markup=False, highlight=False)
        if transcripts:
            console.print(transcripts)
        if summary.before and summary.after:
            console.print(success_table(summary.before, summary.after))
        show_searches(summary, console)
        if summary.agents:
            console.print(agent_table(summary))
        if len(summary.phases) > 1:
            console.print(phase_line(summary.phases, summary.steps), highlight=False)
        if summary.model == NONE:
            console.print(f"summary     {folder / 'summary.json'}", markup=False, highlight=False)
            return
        picture = folder / "curve.png"
        console.print(
            f"policy      {folder / 'policy'}   (an ordinary transformers folder)\n"
            f"summary     {folder / 'summary.json'}\n"
            f"curve       {picture if picture.exists() else NO_PLOTS}\n"
            f"next        agentlightning show {folder}\n"
            f"            agentlightning serve {folder / 'policy'}",
            markup=False,
            highlight=False,
        )


def _rate(values: Mapping[str, float]) -> float:
    """Tokens sampled per second of collecting; of the whole step where rollouts go on during the update."""
    tokens = sum(value for name, value in values.items() if name.endswith("/completion_tokens"))
    seconds = values["step_seconds" if values.get("staleness_bound") else "collect_seconds"]
    return tokens / seconds if seconds else 0.0


def describe_staleness(mean: float, most: float) -> str:
    """The staleness of a step or a run in words; "" where everything was on-policy."""
    return f"staleness {mean:.2f}, at most {most:.0f}" if most else ""


def alert_line(alert: Alert) -> Text:
    """An alert in a line or two."""
    colour = "red" if alert.level == "critical" else "yellow"
    after = "" if alert.step is None else f"after step {alert.step + 1}, "
    return Text.assemble(
        (f"{alert.level}: ", f"bold {colour}"), (f"{after}{alert.rule}: ", colour), alert.message
    )


def success_table(before: Evaluation, after: Evaluation) -> Table:
    """Held-out success before and after, over all tasks and for each value of the group_by field."""
    table = Table(title="held-out success")
    for column in ("", "tasks", "sampled before", "after", "greedy before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    first, last = before.detail, after.detail
    names = sorted({*first["sampled"].by, *last["sampled"].by})
    rows = {"all": [before.sampled, after.sampled, before.greedy, after.greedy]} | {
        name: [part[kind].by.get(name, 0.0) for kind in ("sampled", "greedy") for part in (first, last)]
        for name in names
    }
    for name, values in rows.items():
        tasks = str(last["sampled"].tasks) if name == "all" else ""
        table.add_row(name, tasks, *(f"{value:.2f}" for value in values))
    return table


def show_searches(summary: Summary, console: Console) -> None:
    """What each search for better prompts found, how the prompts changed, and which tasks with them."""
    for search in summary.searches:
        changed = f"tasks won: {', '.join(search.won) or '-'}; lost: {', '.join(search.lost) or '-'}"
        for text in filter(None, (search.said(), search.differences(), changed)):
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def phase_line(phases: Sequence[PhaseSummary], steps: int) -> str:
    """Which algorithm made which of so many steps."""
    ends = [*(phase.first for phase in phases[1:]), steps]
    return "phases: " + ", ".join(
        f"{phase.algorithm} steps {phase.first + 1} to {min(end, steps)}"
        for phase, end in zip(phases, ends, strict=True)
        if phase.first < steps
    )


def agent_table(summary: Summary) -> Table:
    """Who was trained, and what each agent did."""
    table = Table(title=f"agents · {summary.steps} steps in {summary.train_seconds:.0f} s")
    for column in ("agent", "trained", "calls", "tokens", "calls with an advantage"):
        table.add_column(column, justify="left" if column in ("agent", "trained") else "right")
    for name, agent in summary.agents.items():
        table.add_row(
            name,
            "yes" if agent.trained else "no",
            f"{agent.calls:,}",
            f"{agent.completion_tokens:,}",
            f"{agent.transitions_with_advantage:,}" if agent.trained else "-",
        )
    return table
