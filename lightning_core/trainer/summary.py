"""The contents of `summary.json` and the model card: evaluations, agents, phases and searches of a run.

The card tells a stranger who is given the policy's folder what it is. The Hugging Face hub shows a folder's
README.md, and reads the YAML at its top.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import Field, JsonValue, ValidationError

from lightning_core.insight.failures import FailureReason
from lightning_core.insight.verdict import Verdict
from lightning_core.records.types import Record
from lightning_core.trainer.folder import RunFolder, write_atomically

_KNOWN: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}
)
"""Hub name and licence of the models that have a short name here and a page there."""


class AgentScore(Record):
    """One agent's part in an evaluation."""

    calls: int
    rollouts: int
    """Rollouts in which it acted."""
    success: float
    """Mean final reward of those rollouts: its own, where the app gives it one."""


class EvaluationScore(Record):
    """One evaluation: every task once. A rollout that failed, or whose reward can't be used, scores 0."""

    success: float
    """Mean final reward."""
    tasks: int
    failures: int
    binary: bool = True
    """Whether every reward is 0 or 1, so that the mean is a rate of success."""
    by: dict[str, float] = Field(default_factory=dict)
    """Mean final reward for each value of the `group_by` field."""
    agents: dict[str, AgentScore] = Field(default_factory=dict)

    @property
    def solved(self) -> bool:
        """Whether every task got the reward 1, and 1 is the most there is."""
        return self.binary and self.success == 1


class Evaluation(Record):
    """The policy at one step, sampled (T = 1) and greedy (T = 0)."""

    step: int
    sampled: float
    greedy: float
    detail: dict[str, EvaluationScore]
    """"sampled" and "greedy" in full."""
    seconds: float | None = None
    """From when its rollouts were asked for until the last had ended. None in a summary of an older
    version."""


class AgentSummary(Record):
    """One agent over the whole training, evaluations left out."""

    trained: bool
    calls: int
    """0 for a name or glob in `agents` that no call came from."""
    completion_tokens: int
    transitions_with_advantage: int = 0
    credit: float = 0.0
    """Its share of all advantages, taken as positive: how much of what the updates heard was about it."""
    air: float = 0.0
    """Sum of the automatic intermediate rewards for its calls."""
    first: float | None = None
    """Mean final reward of the rollouts in which it acted, over the first steps: its own, where the app gives
    it one. None in a summary of an older version, or of demonstrations."""
    last: float | None = None
    """The same over the last steps."""
    constrained_calls: int = 0
    """Calls whose replies were held to a form, such as a JSON Schema."""
    failed_calls: int = 0
    failed_rollouts: int = 0
    """Rollouts that failed after its call was the last."""


class PhaseSummary(Record):
    """A part of the run, by one algorithm."""

    algorithm: str
    first: int
    """Updates made before it."""


class SearchSummary(Record):
    """The result of a search for better prompts. In each pair the first is the seed's."""

    step: int
    search: str
    rollouts: int
    candidates: int
    """The seed among them."""
    refused: int
    """Proposals that lost a placeholder, were empty or changed nothing."""
    reflections: int
    tokens: int
    """Read and written by the reflecting model."""
    tasks: int
    """Number of tasks that report."""
    choosing: tuple[float, float]
    """Mean reward on the tasks that chose."""
    reporting: tuple[float, float]
    """Mean reward on tasks that no search has seen."""
    interval: tuple[float, float]
    """Interval of the gain on them, 95 %, bootstrapped over tasks."""
    versions: dict[str, tuple[int, int]]
    prompts: dict[str, tuple[str, str]]
    won: list[str]
    lost: list[str]
    """Ids of the reporting tasks that got better, and worse."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """With `prompts="all"`: the agents that keep their prompt, each with the reason."""

    @property
    def gain(self) -> float:
        return self.reporting[1] - self.reporting[0]

    @property
    def is_better(self) -> bool:
        """Whether what was chosen became current: its gain can be told from 0."""
        return self.interval[0] > 0

    @property
    def verdict(self) -> str:
        """In words."""
        if all(before == after for before, after in self.versions.values()):
            return "none of its candidates was better than the seed"
        return "better than the seed" if self.is_better else "no better than the seed, which stays current"

    def said(self) -> str:
        """One line."""
        low, high = self.interval
        return (
            f"{self.search}: {self.verdict}: {self.reporting[0]:.2f} to {self.reporting[1]:.2f} on "
            f"{self.tasks} tasks that report (95 % {low:+.2f} to {high:+.2f}), {self.choosing[0]:.2f} to "
            f"{self.choosing[1]:.2f} on those that chose; {self.candidates} candidates, {self.rollouts} "
            "rollouts"
        )

    def numbers(self) -> dict[str, float]:
        """As metrics of its step."""
        found = {
            **dict(zip(("choosing/seed", "choosing/chosen"), self.choosing, strict=True)),
            **dict(zip(("reporting/seed", "reporting/chosen"), self.reporting, strict=True)),
            **dict(zip(("gain/low", "gain/high"), self.interval, strict=True)),
            **{
                name: getattr(self, name)
                for name in ("candidates", "refused", "reflections", "tokens", "gain")
            },
        }
        return {f"search/{name}": float(value) for name, value in found.items()}

    def differences(self) -> str:
        """How each prompt changed, as a unified diff."""
        return "\n".join(
            line
            for name, (before, after) in self.prompts.items()
            for line in difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"{name} {self.versions[name][0]}",
                f"{name} {self.versions[name][1]}",
                lineterm="",
            )
        )


class Summary(Record):
    """The content of `summary.json`."""

    run: str
    folder: str
    steps: int
    """Updates asked for; each was made or counted as skipped."""
    seed: int
    model: str
    before: Evaluation | None = None
    after: Evaluation | None = None
    """The evaluation after the last update; None without an update."""
    between: list[Evaluation] = Field(default_factory=list)
    """Evaluations between updates."""
    exported: int | None = None
    """Updates that the exported policy had. None in a summary of an older version, or without a policy."""
    train_seconds: float
    """Wall time of all steps as last made: collecting, updating, saving; evaluations left out."""
    rollouts: int
    failures: int
    verdict: Verdict | None = None
    """The run's result in a sentence. None in a summary of an older version."""
    reasons: list[FailureReason] = Field(default_factory=list)
    """Why rollouts failed, those of evaluations too; the most frequent first."""
    zero_variance_groups: int
    skipped_updates: int
    staleness_mean: float = 0.0
    """Updates by which the weights that sampled a transition were behind those it was used to update: mean of
    the steps' means."""
    staleness_max: int = 0
    memory_gib: float | None = None
    """The most memory that the trainer's process held. None in a summary of an older version."""
    spent: dict[str, float] = Field(default_factory=dict)
    """Tokens that a training service was paid for, evaluations included; empty without one."""
    agents: dict[str, AgentSummary]
    phases: list[PhaseSummary] = Field(default_factory=list)
    """In turn; one, if the run has one algorithm."""
    searches: list[SearchSummary] = Field(default_factory=list)
    """Results of the steps that looked for better prompts."""
    settings: dict[str, JsonValue]
    """As the run was begun; so are the versions of the packages."""
    versions: dict[str, JsonValue]

    @property
    def held_out(self) -> list[Evaluation]:
        """All evaluations, the first one first."""
        return [each for each in (self.before, *self.between, self.after) if each is not None]

    @property
    def evaluation_seconds(self) -> float:
        """Wall time of the evaluations."""
        return sum(each.seconds or 0.0 for each in self.held_out)


# the model card -----------------------------------------------------------------------------
def describe_policies(values: Mapping[str, float]) -> str:
    """The policies of a step in words, each with its version; "" for a run with one policy."""
    end = "/policy_version"
    names = [name.split("/")[1] for name in values if name.startswith("policy/") and name.endswith(end)]
    return ", ".join(
        f"{name} version {values[f'policy/{name}/policy_version']:.0f}"
        + " (no update)" * (f"policy/{name}/skipped_updates" in values)
        for name in names
    )


def find_summary(path: Path) -> Summary | None:
    """The summary of a run, if it has one that can be read."""
    try:
        return Summary.model_validate_json((path / "summary.json").read_bytes())
    except (OSError, ValidationError):
        return None


def write_card(folder: RunFolder, summary: Summary) -> None:
    """Write the card, and the curve where there is one, beside the exported weights."""
    if not folder.policy.is_dir():
        return
    curve = folder.path / "curve.png"
    if curve.exists():
        write_atomically(folder.policy / curve.name, curve.read_bytes())
    text = card(summary, curve=curve.exists(), adapters=folder.has_adapters_alone)
    write_atomically(folder.policy / "README.md", text.encode())


def exported_note(summary: Summary) -> str | None:
    """Which version was exported, and why; None where the summary does not say, or nothing was trained."""
    if summary.exported is None or not summary.steps:
        return None
    found = next((each for each in summary.between if each.step == summary.exported), None)
    last = summary.after
    if summary.settings.get("export_best") is False:
        why = "the last, as export_best=False asks"
    elif last is None:
        known = "without held-out tasks" if summary.before is None else "it was not evaluated, and so"
        why = f"the last: {known} no version is known to be better"
    elif not summary.between:
        every = summary.settings.get("evaluate_every")
        advice = f"evaluate_every={every} comes later" if every else "evaluate_every=10 evaluates every tenth"
        why = f"the last: no other was evaluated ({advice})"
    elif found is None and (best := max(summary.between, key=lambda each: each.greedy)).greedy > last.greedy:
        why = (
            f"the last (greedy: {last.greedy:.3f}); the better one, after update {best.step} (greedy: "
            f"{best.greedy:.3f}), can't be exported: this backend has the last alone, or no checkpoint of it"
        )
    elif found is None:
        why = f"the best on held-out tasks (greedy: {last.greedy:.3f})"
    else:
        why = f"the best on held-out tasks (greedy: {found.greedy:.3f}, after the last {last.greedy:.3f})"
    return f"Exported after update {summary.exported} of {summary.steps}, {why}."


def serving_notes(summary: Summary) -> list[str]:
    """Sentences on how the policy must be asked, so that it answers as it did in training."""
    agents = {name: each for name, each in summary.agents.items() if each.trained}
    held = [f"`{name}`" for name, each in agents.items() if each.constrained_calls]
    notes = ["Its greedy score is that of requests with `temperature: 0`; clients choose the temperature."]
    if held:
        notes.append(
            f"Replies of {', '.join(held)} were held to a form in training, such as a JSON Schema. Send the "
            "same `response_format` or tools to a server that enforces them, or they may lose it."
        )
    return notes


def card(summary: Summary, *, curve: bool, adapters: bool = False) -> str:
    """The card as Markdown; `adapters` says that the folder has LoRA adapters without their base model."""
    base, licence = _KNOWN.get(summary.model, (summary.model, ""))
    on_hub = base.count("/") == 1 and not Path(base).exists()
    head = {"base_model": base if on_hub else "", "license": licence}
    trained = [f"`{name}`" for name, agent in summary.agents.items() if agent.trained]
    lines = [
        "---",
        *(f"{name}: {value}" for name, value in head.items() if value),
        f"library_name: {'peft' if adapters else 'transformers'}",
        "---",
        f"# {summary.run}",
        "",
        f"`{base}`, trained with agent-lightning-core {summary.versions.get('agent-lightning-core', '')} on "
        f"the rewards of an app whose agents are {', '.join(trained) or 'unnamed'}.",
        "",
        *(["- Content: LoRA adapters in PEFT's format, to be loaded onto that model."] if adapters else []),
        f"- Licence: {licence or 'that of the base model'}.",
        f"- Data: {summary.rollouts:,} rollouts in {summary.steps} updates, seed {summary.seed}.",
        f"- Algorithm: `{summary.settings.get('algorithm', '')}`.",
        *([f"- {summary.verdict.sentence}"] if summary.verdict else []),
        *([f"- {exported}"] if (exported := exported_note(summary)) else []),
        *(f"- {note}" for note in serving_notes(summary)),
    ]
    if summary.held_out:
        lines += ["", "| updates | held-out reward, sampled | greedy |", "|---|---|---|"]
        lines += [f"| {each.step} | {each.sampled:.3f} | {each.greedy:.3f} |" for each in summary.held_out]
    if curve:
        lines += ["", "![reward over training](curve.png)"]
    return "\n".join(lines) + "\n"
