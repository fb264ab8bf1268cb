"""A program in another language, in worker processes, without a time-out."""

import lightning_core as lightning

solve = lightning.Command(["node", "app.js"], agent="writer")

if __name__ == "__main__":
    trainer = lightning.Trainer(model="tiny", agents=["writer"], workers=4, timeout=None)
    trainer.fit(solve, train=[{"question": "Which boats are fast?"}])
