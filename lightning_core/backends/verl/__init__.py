"""verl as backend: its workers do the heavy work, this package hands them rows and a loss.

Nothing is imported here, so that a worker process loads no more than it needs.
"""
