"""The roles of a run: what the trainer's process plays itself, and what other processes play."""
