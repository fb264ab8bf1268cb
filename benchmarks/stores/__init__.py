"""What stores and rollouts cost, on every kind of store, with the nearest peer beside."""
