"""A language model that ranks the rollouts of a group: a reward where none can be computed."""
