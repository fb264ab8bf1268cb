"""MLflow, through its own client: `mlflow-skinny` is enough.

A client object and no `mlflow.start_run`, so that runs of the app's own are left alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.records.types import Alert
from lightning_core.trackers.base import Beginning, check_installed

RUN = "lightning.run"
"""The tag by which a resumed run finds itself."""
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
LONGEST = 5000
"""Characters of a parameter or a tag that every store takes."""
_BATCH = 100
"""Parameters in a request, as the server allows."""
_OTHER = re.compile(r"[^\w\-. :/]", re.ASCII)


class MLflow:
    """A run of an MLflow experiment; a resumed run goes on in it."""

    def __init__(self, experiment: str = "agent-lightning", *, tracking_uri: str | None = None) -> None:
        """`tracking_uri`: a server, or None for MLFLOW_TRACKING_URI."""
        check_installed("mlflow", "mlflow", "mlflow-skinny")
        self.experiment, self.tracking_uri = experiment, tracking_uri
        self._client: Any = None
        self._id = ""

    def __repr__(self) -> str:
        return f"MLflow({self.experiment!r})"

    def start(self, beginning: Beginning) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self.tracking_uri)
        run = beginning.run
        experiment, name = self._experiment(), f"{run.id}-{run.created_at:.0f}"
        found = self._client.search_runs([experiment], filter_string=f"tags.`{RUN}` = '{name}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {RUN: name, **_source(run.provenance)}
        self._id = self._client.create_run(experiment, tags=tags, run_name=run.id).info.run_id
        params = [Param(name, value) for name, value in _flat({**run.config, **run.provenance})]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self._id, params=params[start : start + _BATCH])

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        from mlflow.entities import Metric

        when = round(at * 1000)
        metrics = [Metric(_OTHER.sub("_", name), value, when, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def alert(self, alert: Alert) -> None:
        self._client.set_tag(self._id, _OTHER.sub("_", f"alert.{alert.id}"), alert.message[:LONGEST])

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._id, STATUS[status], end_time=round(time.time() * 1000))

    def _experiment(self) -> str:
        """The id of the experiment, which is made if it is not there."""
        found = self._client.get_experiment_by_name(self.experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self.experiment))


def _source(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tags that MLflow shows beside a run."""
    git = provenance.get("git") or {}
    tags = {
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
        "mlflow.source.name": provenance.get("script"),
    }
    return {name: str(value) for name, value in tags.items() if value}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Each value as a parameter under its path, such as "machine.host"."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield _OTHER.sub("_", before + name), str(value)[:LONGEST]
