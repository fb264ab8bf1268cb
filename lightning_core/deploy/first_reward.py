"""Print the first reward of a run; exit with 1 while there is none. Runs beside the trainer.

python -m lightning_core.deploy.first_reward runs/demo
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from lightning_core.errors import LightningError
from lightning_core.plugins import load_plugins
from lightning_core.texts.terminal import shown
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.parts import open_store


async def find_reward(path: Path) -> str | None:
    """A line about the first rollout that has a reward; None if there is none."""
    found = RunFolder(path, resume=True).find_run()
    if found is None:
        return None
    async with open_store(found[0], load_plugins()) as store:
        rollouts = await store.find_rollouts(found[1], limit=1000)
        rewarded = [one for one in rollouts if one.reward is not None]
        if not rewarded:
            return None
        return f"first reward: {rewarded[0].reward:g}, of rollout {rewarded[0].id}"


if __name__ == "__main__":
    try:
        said = asyncio.run(find_reward(Path(sys.argv[1])))
    except LightningError as problem:
        sys.exit(shown(str(problem)))
    sys.exit(0 if said is not None and print(shown(said)) is None else "no reward yet")  # noqa: T201
