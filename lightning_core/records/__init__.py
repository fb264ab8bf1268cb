"""Records: the values that are stored, and which of them belong together."""
