"""Compaction: `POST /v1/responses/compact` puts a summary in the place of a long conversation.

The policy writes the summary, so it is a call like any other: recorded, and trained on if its agent is. The
reply holds the user's messages and one item of the type `compaction`, which the app sends in later requests.
OpenAI encrypts that item. Here it is the summary in base64, since the app may read it anyway.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

from lightning_core.dialects.base import Request, Sampled, Thought
from lightning_core.dialects.lenient import Json
from lightning_core.dialects.strict import read_object, string, unsupported
from lightning_core.dialects.writing import to_json
from lightning_core.errors import ApiError

ASKS: Final = (
    "Summarize this conversation for whoever goes on with it without having read it: the task, what was done "
    "and found, what was decided, and what remains. Answer with the summary alone."
)
_HEADING: Final = "The conversation so far, in a summary:\n\n"
_MARK: Final = "lightning-summary:"
"""Begins the content of an item that was written here."""


def asking(content: bytes) -> bytes:
    """The request whose reply is the summary. The model is told of no tools: it is to write, not to act."""
    body = read_object(content)
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    if body.get("stream"):
        raise unsupported("stream", "stream = True is not supported here: a compaction is given whole")
    kept = {name: value for name, value in body.items() if name not in ("tools", "tool_choice", "text")}
    if not isinstance(items, list):
        return to_json(kept)  # is refused as any other
    return to_json({**kept, "input": [*items, {"role": "user", "content": ASKS}]})


def compacted(sampled: Sampled, request: Request) -> list[Json]:
    """The items in place of a conversation: all messages of its user, and the summary."""
    call_id = sampled.call_id
    *messages, _ = request.chat.messages
    said = [
        message["content"]
        for message in messages
        if message["role"] == "user" and not message["content"].startswith(_HEADING)
    ]
    items: list[Json] = [
        {
            "id": f"msg_{call_id}_{index}",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
        for index, text in enumerate(said)
    ]
    written = "".join(block for block in sampled.choices[0].blocks() if isinstance(block, str))
    if not written:  # a thought alone, cut off by the end of the context
        written = "".join(b.text for b in sampled.choices[0].blocks() if isinstance(b, Thought))
    content = _MARK + b64encode(written.encode("utf-8", "replace")).decode()
    return [*items, {"id": f"cmp_{call_id}_{len(said)}", "type": "compaction", "encrypted_content": content}]


def read_summary(item: Json, param: str) -> Json:
    """An item of the type `compaction` as a message. Raises ApiError for one that was made elsewhere."""
    content = string(item, "encrypted_content", param)
    try:
        text = b64decode(content.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, ValueError):
        text = None
    if text is None or not content.startswith(_MARK):
        raise ApiError(
            f"{param}.encrypted_content was not written by this gateway, so its summary can't be read; send "
            "the conversation itself",
            code="invalid_value",
            param=f"{param}.encrypted_content",
        )
    return {"role": "user", "content": _HEADING + text}
