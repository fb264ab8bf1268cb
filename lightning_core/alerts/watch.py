"""Watching: what the rules find becomes alerts, each condition once.

A condition is a rule and a subject. It is told when it is first found, and again only after it was gone for
`QUIET` steps: a number that swings about its threshold is one condition, not one a step. An alert's id
follows from the rule, the subject and the step, so a resumed run that finds it again adds nothing to the
store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from lightning_core.alerts.base import Finding, Rule, Scene
from lightning_core.types import Alert, Metrics

log = logging.getLogger(__name__)

QUIET = 5
"""Steps without it after which a condition is over."""
RECALLED = 50
"""Steps that are gone through again on resume, for the conditions that still hold."""


class Watch:
    """The rules of one run, and which conditions hold."""

    def __init__(self, run_id: str, rules: Mapping[str, Rule]) -> None:
        self.run_id = run_id
        self._rules = dict(rules)
        self._held: dict[tuple[str, str, str | None], int] = {}
        """Conditions that were told, and the last step at which they were found."""

    def recall(self, history: Sequence[Metrics]) -> None:
        """Take the conditions of the steps so far as told."""
        for end in range(max(1, len(history) - RECALLED), len(history) + 1):
            self.look(Scene(history=history[:end]))

    def look(self, scene: Scene) -> list[Alert]:
        """The alerts of conditions that are new."""
        step = -1 if scene.step is None else scene.step
        self._held = {key: last for key, last in self._held.items() if step - last <= QUIET or key[2]}
        fresh = []
        for rule, finding in self._findings(scene):
            key = rule, finding.subject, finding.since
            if key not in self._held:
                fresh.append(self._alert(rule, finding, scene.step))
            self._held[key] = step
        return fresh

    def _findings(self, scene: Scene) -> Iterator[tuple[str, Finding]]:
        for name, rule in list(self._rules.items()):
            try:
                yield from [(name, finding) for finding in rule(scene)]
            except Exception as error:  # a plugin's or a user's own: it must not stop the run
                log.warning("alert rule %r failed and is left out from here on: %r", name, error)
                del self._rules[name]

    def _alert(self, rule: str, finding: Finding, step: int | None) -> Alert:
        mark = f"step-{step}" if finding.since is None else finding.since
        return Alert(
            run_id=self.run_id,
            id="/".join(filter(None, (rule, finding.subject, mark))),
            rule=rule,
            level=finding.level,
            message=finding.message,
            step=step,
        )
