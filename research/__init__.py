"""Studies: each trains or compares once, by hand, and writes its tables and records to `research/results`."""
