"""Reading back what trackers wrote: with their own readers, or from their files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
FULL, LAST = 1, 4


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """(step, value) of a number, as TensorBoard shows it."""
    return [(event.step, round(event.value, 6)) for event in accumulated(folder).Scalars(tag)]


def texts(folder: Path, tag: str) -> list[tuple[int, str]]:
    """(step, text) of a text, as TensorBoard shows it."""
    events = accumulated(folder).Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events]


def accumulated(folder: Path) -> Any:
    """TensorBoard's own view of a folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of W&B's offline files: protocol buffers in the log format of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for content in _log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            yield record


def wandb_rows(folder: Path) -> list[dict[str, str]]:
    """Returns the rows logged to W&B: name to number, as JSON."""
    return [
        {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in wandb_records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


def _log_records(content: bytes) -> Iterator[bytes]:
    place, parts = 7, b""  # after W&B's own header
    while place + 7 <= len(content):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""
