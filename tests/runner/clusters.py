"""A real cluster of Ray on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cluster() -> Iterator[None]:
    """Ray with a node of two CPUs, whatever this machine has; its own warnings are its own matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        ray.init("local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.shutdown()
