"""Experience: a rollout's records as what is trained on: returns, transitions, and trees of trajectories."""
