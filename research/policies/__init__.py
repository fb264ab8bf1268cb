"""One policy for two roles, or one for each: where each is better, at equal rollouts and parameters."""
