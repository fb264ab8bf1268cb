"""A bare function, with everything as it is by default."""

import lightning_core as lightning


def solve(task: lightning.Task) -> float:
    return float(len(str(task.input["question"])) > 3)


if __name__ == "__main__":
    lightning.Trainer(model="tiny", agents=["writer"]).fit(
        solve, train=[{"question": "Which boats are fast?"}]
    )
