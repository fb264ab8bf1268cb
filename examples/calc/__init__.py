"""Word problems solved with a calculator by an AutoGen agent, with the problems and a reward for training."""
