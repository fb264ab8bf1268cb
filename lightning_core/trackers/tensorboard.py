"""TensorBoard's event files, by TensorBoard's own writer; neither TensorFlow nor torch is needed.

A run that is written from its beginning takes the place of its own earlier files; a resumed one adds a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lightning_core.errors import ConfigError
from lightning_core.records.types import Alert
from lightning_core.trackers.base import Beginning, check_installed


class TensorBoard:
    """`tensorboard --logdir runs` shows every run that was written below."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """`folder`: where the files go, by default `tensorboard` in the run's own folder."""
        check_installed("tensorboard", "tensorboard", "tensorboard")
        self.folder = folder
        self._writer: Any = None

    def __repr__(self) -> str:
        return f"TensorBoard({self.folder!r})"

    def start(self, beginning: Beginning) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        run = beginning.run
        if self.folder is None and run.folder is None:
            raise ConfigError("a run without a folder: give TensorBoard(folder=...)")
        folder = Path(self.folder or Path(str(run.folder)) / "tensorboard")
        earlier = find_earlier(folder, run.id)
        if self.folder is None:
            folder.mkdir(mode=0o700, exist_ok=True)
        self._writer = EventFileWriter(str(folder), filename_suffix=_suffix(run.id))
        self._writer.flush()
        if self.folder is None:  # as all in the run's folder; one that was given is open as its user wants
            for path in find_earlier(folder, run.id):
                path.chmod(0o600)
        if not beginning.resumed:
            for path in earlier:
                path.unlink()
            text = json.dumps({"config": run.config, **run.provenance}, indent=2)
            self._say(0, "run", f"```json\n{text}\n```")

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step, at, summary=Summary(value=shown))

    def alert(self, alert: Alert) -> None:
        step = 0 if alert.step is None else alert.step + 1
        self._say(step, f"alerts/{alert.rule}", f"**{alert.level}**: {alert.message}")

    def finish(self, status: str) -> None:
        self._writer.close()

    def _say(self, step: int, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)
        self._write(step, time.time(), summary=Summary(value=[value]))

    def _write(self, step: int, at: float, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(step=step, wall_time=at, **content))
        self._writer.flush()  # a killed run leaves what it had told


def find_earlier(folder: Path, run_id: str) -> list[Path]:
    """The event files of a run that are in a folder."""
    return [path for path in folder.glob("events.out.tfevents.*") if path.suffix == _suffix(run_id)]


def _suffix(run_id: str) -> str:
    """With what the names of a run's files end, and those of no other run: it holds no other dot."""
    return "." + quote(run_id, safe="").replace(".", "%2E")
