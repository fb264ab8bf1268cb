"""A training service as backend: whatever speaks Tinker's API, hosted or on a cluster of one's own.

The client's package, `tinker`, is imported by `service` alone, once the backend starts.
"""
