"""The cost of stores and rollouts, on every kind of store, with the nearest peer beside."""
