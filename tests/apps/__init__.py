"""Apps of the shapes that others have written, each with one added line; see `python -m tests.apps`."""
