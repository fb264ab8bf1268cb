"""Imported before CrewAI, it keeps that quiet: nothing is sent, nothing asked, no signal handler installed.

CrewAI reads this environment once, while it is imported. Told later, its telemetry already has a thread and
handlers of its own for SIGINT and SIGTERM, in place of those by which Ctrl-C ends a run in order. What the
environment says already, stays.
"""

import os
from pathlib import Path

for name, value in {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "CREWAI_TESTING": "true",  # or it asks after the first rollout whether to show its trace
    "CREWAI_STORAGE_DIR": str(Path(".data/crew/storage").absolute()),
}.items():
    os.environ.setdefault(name, value)
