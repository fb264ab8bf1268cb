"""Train the researcher: to search again until it knows, and to answer in the right format.

    agentlightning train examples/rag/train.py

`--data PATH` after `--` takes a folder in MuSiQue's layout instead of the generated libraries.
"""

import argparse
from pathlib import Path
from typing import Any

from lightning_openai_agents import attach

import lightning_core as lightning
from examples.rag.app import agent, ask
from examples.rag.library import Library
from examples.rag.musique import load_musique
from examples.rag.reward import answer_reward
from examples.rag.tasks import load_tasks

attach(agent)


async def solve(task: lightning.Task) -> float:
    """Ask once; the reward is the F1 of the answer, but for a tenth that is for its format."""
    reply = await ask(str(task.input["question"]), Library(str(task.input["library"])))
    answers: Any = task.input["answers"]
    return answer_reward(reply, answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="a folder in MuSiQue's layout")
    parser.add_argument("--held-out", choices=("validation", "test"), default="validation")
    parser.add_argument("--held-out-tasks", type=int, default=100, help="how many (default: 100)")
    options = parser.parse_args()
    splits = ("train", options.held_out)
    if options.data:
        train, held_out = (load_musique(split, options.data, ".data/rag") for split in splits)
    else:
        train, held_out = (load_tasks(split, ".data/rag") for split in splits)
    trainer = lightning.Trainer(
        model=Path(__file__).parent / "policy",
        agents=["researcher"],
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8, credit="relevance"),
        steps=40,
        group_by="form",
    )
    trainer.fit(solve, train=train, validation=held_out[: options.held_out_tasks])


if __name__ == "__main__":
    main()
