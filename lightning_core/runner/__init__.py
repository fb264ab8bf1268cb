"""Takes rollouts from the store and runs the user's function on them."""
