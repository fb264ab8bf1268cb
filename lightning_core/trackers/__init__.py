"""Trackers: where else the numbers of a run go, through their own libraries."""
