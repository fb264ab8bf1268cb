"""Train the agent of app.py from its rewards.

    agentlightning train train.py

Your own app: put it into app.py, say in `solve` how it is run and in `reward` how good its answer is, and
write your tasks into tasks.jsonl.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import app

import lightning_core as lightning

TASKS = Path(__file__).with_name(
    "tasks.jsonl"
)  # a .csv file does too, or a dataset's name on the Hugging Face hub


async def solve(task: lightning.Task) -> float:
    """Run the app once on one task. The number that comes back is what training raises."""
    answer = await app.answer(str(task.input["message"]))
    return reward(answer, task.input)


def reward(answer: str, task: Mapping[str, Any]) -> float:
    """1 for the right team, otherwise 0. Any number does, and the higher the better."""
    return float(answer == task["team"])


def read_tasks(source: str | Path) -> list[dict[str, Any]]:
    """One dictionary for each line of a .jsonl or .csv file, or row of a dataset."""
    if str(source).endswith((".jsonl", ".csv")):
        with open(source, encoding="utf-8-sig", newline="") as file:
            if str(source).endswith(".csv"):
                return list(csv.DictReader(file))
            return [
                read_line(line, f"{source}:{number}") for number, line in enumerate(file, 1) if line.strip()
            ]
    from datasets import load_dataset  # pip install datasets

    return [{**row, "split": split} for split, rows in load_dataset(str(source)).items() for row in rows]


def read_line(line: str, place: str) -> dict[str, Any]:
    """The task of one line; the error of a wrong one names its file and line."""
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError) as error:
        raise SystemExit(f"{place}: {error}") from error


if __name__ == "__main__":
    tasks = read_tasks(TASKS)
    trainer = lightning.Trainer(
        # 135 M parameters; or a folder, or a name on the hub such as "Qwen/Qwen3-0.6B"
        backend=lightning.LocalBackend("smollm2", context=512),
        agents=["triage"],  # the names of nodes, agents or roles
        algorithm=lightning.GRPO(group_size=8, tasks_per_step=8),
        steps=12,
        evaluate_every=4,  # the best version is exported
    )
    trainer.fit(
        solve,
        train=[task for task in tasks if task["split"] == "train"],
        validation=[task for task in tasks if task["split"] != "train"],
    )
