"""Failed updates: the loss or the gradient was not a finite number, so a step changed nothing. And groups of
which no update can be made.

    found if  the last step had `failed_updates`, or a loss or gradient that is not finite
    found if  the last step had `unusable_groups`

No threshold: a finite loss over finite weights is what an update is. The run itself stops at the third in a
row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightning_core.alerts.base import Finding, Scene

WATCHED = ("loss", "grad_norm", "value_loss")


def failed_update(scene: Scene) -> Iterator[Finding]:
    """An update could not be made."""
    if not scene.history:
        return
    last = scene.history[-1]
    broken = [name for name in WATCHED if not math.isfinite(last.values.get(name, 0.0))]
    if last.values.get("failed_updates") or broken:
        named = f" ({', '.join(broken)} not finite)" if broken else ""
        yield Finding(
            f"the update of step {last.step + 1} could not be made{named}, and its rollouts were of no use; "
            "the log says why: look for rewards that are not finite, and lower the learning rate",
            level="critical",
        )


def unusable_groups(scene: Scene) -> Iterator[Finding]:
    """Groups were left out, as their rewards or advantages were no numbers or too large."""
    if not scene.history:
        return
    last = scene.history[-1]
    if count := last.values.get("unusable_groups", 0.0):
        yield Finding(
            f"{count:.0f} of {last.values.get('groups', count):.0f} groups of step {last.step + 1} were left "
            "out, as a reward or an advantage in them is not finite or too large; the log says which"
        )
