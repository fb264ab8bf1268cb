"""How values become bytes in a database: numbers as little-endian arrays, the rest as JSON.

Token ids are uint32 and log-probabilities float32, a quarter of their size as JSON. The JSON is
lossless for everything a stored type can hold: integers of any size, NaN and infinities (a metric
may be one), and lone surrogates (a model may well sample half an emoji).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from lightning_core.errors import StoreError, TokenIdsError
from lightning_core.records.sequences import as_ids, as_list, as_logprobs
from lightning_core.records.types import Choice
from lightning_core.texts.json_text import load_json

_RARE: Final = ("kept", "left_out", "as_text")
"""Fields of a choice that few have."""


def as_plain(content: Any) -> Any:
    """Models, and lists and dicts of them, as plain values."""
    if isinstance(content, BaseModel):
        return content.model_dump()
    if isinstance(content, list | tuple):
        return [as_plain(one) for one in content]
    if isinstance(content, dict):
        return {key: as_plain(value) for key, value in content.items()}
    return content


def dump_json(value: Any) -> bytes:
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value).encode()


def plain(text: str | None) -> str | None:
    """A remark as a database takes it: half a surrogate pair becomes "?"."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def pack_ids(ids: Sequence[int] | None) -> bytes | None:
    """Token ids as uint32; None stays None."""
    if ids is None:
        return None
    try:
        return np.asarray(as_ids(ids), "<u4").tobytes()
    except TokenIdsError as error:
        raise StoreError(str(error)) from error


def unpack_ids(packed: bytes | None) -> list[int] | None:
    """Token ids; None stays None."""
    return None if packed is None else as_list(np.frombuffer(packed, "<u4"))


Prompt = tuple[list[int], memoryview]
"""Token ids as a list, and as uint32."""


def unpack_prompt(packed: bytes) -> Prompt:
    ids = np.frombuffer(packed, "<u4").astype(np.uint32, copy=False)
    return as_list(ids), ids.data


def pack_logprobs(logprobs: Sequence[float] | None) -> bytes | None:
    """Log-probabilities as float32; None stays None."""
    return None if logprobs is None else np.asarray(as_logprobs(logprobs), "<f4").tobytes()


def unpack_logprobs(packed: bytes | None) -> list[float] | None:
    return None if packed is None else np.frombuffer(packed, "<f4").tolist()


def pack_choices(choices: Sequence[Choice]) -> tuple[bytes, bytes, bytes]:
    """(JSON, token ids, log-probabilities): the numbers of all choices one after another.

    The JSON keeps how many belong to each choice, or null where the engine gave none.
    """
    heads = [
        {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "message": choice.message,
            "ids": _length(choice.completion_ids),
            "logprobs": _length(choice.logprobs),
            **{name: given for name in _RARE if (given := getattr(choice, name)) is not None},
        }
        for choice in choices
    ]
    ids = b"".join(pack_ids(choice.completion_ids) or b"" for choice in choices)
    logprobs = b"".join(pack_logprobs(choice.logprobs) or b"" for choice in choices)
    return dump_json(heads), ids, logprobs


def unpack_choices(heads: bytes, ids: bytes, logprobs: bytes) -> list[Choice]:
    choices, id_at, logprob_at = [], 0, 0
    for head in load_json(heads):
        some_ids, id_at = _slice(ids, id_at, head["ids"])
        some_logprobs, logprob_at = _slice(logprobs, logprob_at, head["logprobs"])
        choices.append(
            Choice(
                index=head["index"],
                finish_reason=head["finish_reason"],
                message=head["message"],
                completion_ids=unpack_ids(some_ids),
                logprobs=unpack_logprobs(some_logprobs),
                **{name: head[name] for name in _RARE if name in head},
            )
        )
    return choices


def _length(numbers: Sequence[float] | None) -> int | None:
    return None if numbers is None else len(numbers)


def _slice(packed: bytes, at: int, length: int | None) -> tuple[bytes | None, int]:
    if length is None:
        return None, at
    end = at + 4 * length
    return packed[at:end], end
