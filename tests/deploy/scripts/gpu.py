"""verl on GPUs, with rollouts that may take an hour."""

import lightning_core as lightning


async def solve(task: lightning.Task) -> float:
    return float(len(str(task.input["question"])) > 3)


if __name__ == "__main__":
    trainer = lightning.Trainer(model="Qwen/Qwen3-0.6B", backend="verl", agents=["writer"], timeout=3600)
    trainer.fit(solve, train=[{"question": "Which boats are fast?"}])
