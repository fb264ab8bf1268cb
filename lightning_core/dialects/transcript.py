"""A call's request and reply, in one form whatever its dialect.

The form is that of the GenAI conventions: messages `{"role", "parts"}`, whose parts are texts, tool calls
and their responses. Reads leniently: a request was checked when it was served, and a call that was only
seen may hold anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from lightning_core.dialects import get_dialect
from lightning_core.dialects.lenient import Message, Part, as_text, read_message
from lightning_core.records.types import Call

SERVED = "policy"
"""The name that the docs give to whatever is served."""


def prompt(call: Call) -> list[Message]:
    """The messages that the model was given."""
    return get_dialect(call.dialect).messages(call.request)


def replies(call: Call) -> list[Message]:
    """The messages that the model answered, one for each choice, with their `finish_reason`."""
    return [
        {**read_message({"role": "assistant", **choice.message}), "finish_reason": choice.finish_reason or ""}
        for choice in call.choices
    ]


def answerer(call: Call, policy: str | None) -> str:
    """The model that answered, `policy` unless the app sent the call elsewhere; beside it the name that the
    app asked for, if that is another."""
    if call.endpoint is not None or policy is None or not call.model:
        return call.model or policy or ""
    return policy if call.model in (policy, SERVED) else f"{policy} (the app asked for {call.model})"


def version(call: Call) -> str:
    """The version that answered, in words, with the named policy's name if it is of one."""
    return f"{'' if call.policy is None else f'policy {call.policy}, '}version {call.policy_version}"


def not_offered(call: Call) -> list[str]:
    """The types of the tools in its request that only a provider runs, so that the policy was not offered
    them."""
    return [] if call.endpoint is not None else get_dialect(call.dialect).hosted_tools(call.request)


def observation(call: Call) -> str:
    """Digest of what the model was shown last: the messages after its own last one, or all if it had none.

    Equal digests are the same observation, whatever came before. The ids of tool calls, which are new in each
    rollout, are left out. "" if nothing was shown. A text completion is shown its whole prompt.
    """
    shown: list[Message] = []
    for message in get_dialect(call.dialect).messages_back(call.request):  # the last few of hundreds
        if message["role"] == "assistant" and shown:
            break
        shown.append(message)
    said = [
        [message["role"], [{**part, "id": None} for part in message["parts"]]]
        for message in reversed(shown)
        if message["parts"]
    ]
    if not said:
        return ""
    content = json.dumps(said, sort_keys=True, default=repr)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def text(messages: Iterable[Message]) -> str:
    """All that is said in the messages as one line; a tool call reads like `name(arguments)`."""
    texts = (said(part) for message in messages for part in message["parts"])
    return " ".join(" ".join(words.split()) for words in texts if words)


def tokens_read(call: Call) -> int | None:
    """Tokens of the prompt; None if the engine gave none."""
    return None if call.prompt_ids is None else len(call.prompt_ids)


def tokens_written(call: Call) -> int | None:
    """Tokens of all choices; None if the engine gave none."""
    counts = [len(choice.completion_ids) for choice in call.choices if choice.completion_ids is not None]
    return sum(counts) if counts else None


def said(part: Part) -> str:
    """One part as text; a tool call reads like `name(arguments)`."""
    match part["type"]:
        case "text":
            return str(part["content"])
        case "tool_call":
            return f"{part['name']}({as_text(part['arguments'])})"
        case "tool_call_response":
            return as_text(part["response"])
        case other:
            return f"[{other}]"
