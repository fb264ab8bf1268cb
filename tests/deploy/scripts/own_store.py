"""A database that is there already, options of the script's own, and a model that an app calls by its key."""

import argparse

import lightning_core as lightning


def solve(task: lightning.Task) -> float:
    return float(len(str(task.input["question"])) > 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="small")
    parser.parse_args()
    trainer = lightning.Trainer(
        model="tiny",
        agents=["writer"],
        store="postgresql://trainer:secret@db.example:6432/runs?schema=boats",
        steps=12,
    )
    trainer.fit(solve, train=[{"question": "Which boats are fast?"}])
