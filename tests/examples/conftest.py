"""CrewAI, where an example uses it, keeps its files in the tests' own folder, and quiet."""

import atexit
import os
import shutil
import tempfile

_STORAGE = tempfile.mkdtemp(prefix="crewai-")
atexit.register(shutil.rmtree, _STORAGE, ignore_errors=True)
os.environ["CREWAI_STORAGE_DIR"] = _STORAGE

from examples.crew import quiet  # noqa: E402, F401
