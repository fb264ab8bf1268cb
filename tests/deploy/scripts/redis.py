"""Redis, and a gateway that stays in the trainer, as not every version is saved."""

import lightning_core as lightning


def solve(task: lightning.Task) -> float:
    return float(len(str(task.input["question"])) > 3)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        model="tiny",
        agents=["writer"],
        store="rediss://cache.example:6379/0",
        checkpoint_every=5,
        concurrency=8,
    )
    trainer.fit(solve, train=[{"question": "Which boats are fast?"}])
