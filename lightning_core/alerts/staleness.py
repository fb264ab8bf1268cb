"""Staleness beyond its bound: a batch was trained on that is older than was asked for.

    found if  staleness_max > staleness + replay    in the last step; the bound stands beside it in the
    metrics

No threshold: the bound is the user's own, and holds by construction while rollouts are asked for as planned.
"""

from __future__ import annotations

from collections.abc import Iterator

from lightning_core.alerts.base import Finding, Scene


def staleness(scene: Scene) -> Iterator[Finding]:
    """Something was trained on that other, older weights had sampled."""
    values = scene.history[-1].values if scene.history else {}
    oldest, bound = values.get("staleness_max"), values.get("staleness_bound")
    if oldest is not None and bound is not None and oldest > bound:
        yield Finding(
            f"a rollout was trained on that was sampled {oldest:.0f} updates before, and {bound:.0f} are "
            "allowed; is a gateway still serving old weights, or was the run resumed from an older "
            "checkpoint? Restart what serves them"
        )
