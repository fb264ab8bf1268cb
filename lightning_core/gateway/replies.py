"""A recorded call in OpenAI's form: one JSON object, or server-sent chunks.

The log-probabilities of a reply are hundreds of small objects that differ only in one number; they
are joined from pieces that are made once for each token, and never exist as Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from lightning_core.gateway.recording import ChoiceSoFar, Recording
from lightning_core.gateway.upstream import Delta
from lightning_core.gateway.wire import event, to_json


class TokenText:
    """The JSON of tokens, each made once."""

    def __init__(self, decode: Callable[[int], str]) -> None:
        self._decode = decode
        self._heads: dict[int, bytes] = {}

    def logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Sequence[tuple[int, float]]]
    ) -> orjson.Fragment:
        """`choices[].logprobs` for these tokens; `tops` is empty unless alternatives were asked for."""
        entries = self._entries(ids, logprobs)
        if not tops:
            content = b',"top_logprobs":[]},'.join(entries) + b',"top_logprobs":[]}' if entries else b""
        else:
            content = b",".join(
                b'%b,"top_logprobs":[%b]}' % (entry, self._alternatives(top))
                for entry, top in zip(entries, tops, strict=True)
            )
        return orjson.Fragment(b'{"content":[%b],"refusal":null}' % content)

    def _alternatives(self, top: Sequence[tuple[int, float]]) -> bytes:
        entries = self._entries([token for token, _ in top], [logprob for _, logprob in top])
        return b"".join((b"},".join(entries), b"}")) if entries else b""

    def _entries(self, ids: Sequence[int], logprobs: Sequence[float]) -> list[bytes]:
        numbers = orjson.dumps(logprobs)[1:-1].split(b",")
        heads = self._heads
        return [
            (heads.get(token) or self._head(token)) + number
            for token, number in zip(ids, numbers, strict=False)
        ]

    def _head(self, token: int) -> bytes:
        text = self._decode(token)
        whole = "�" not in text  # half a character has no bytes that its text could tell
        fields = {"token": text, "bytes": list(text.encode()) if whole else None}
        head = orjson.dumps(fields)[:-1] + b',"logprob":'
        self._heads[token] = head
        return head


class Reply:
    """Writes the replies to one call."""

    def __init__(self, recording: Recording, tokens: TokenText, default_model: str) -> None:
        self._recording = recording
        self._tokens = tokens
        self._body = recording.body
        self._frame: dict[str, Any] = {
            "id": f"chatcmpl-{recording.caller.call_id}",
            "object": "chat.completion.chunk" if self._body.stream else "chat.completion",
            "created": int(recording.started_at),
            "model": self._body.model or default_model,
        }
        self._tool_calls = [0] * self._body.request.n
        """Tool calls streamed so far in each choice."""

    def completion(self) -> dict[str, Any]:
        """The whole reply."""
        reply = {
            **self._frame,
            "system_fingerprint": self._fingerprint(),
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._recording.choices)],
            "usage": self._usage(),
        }
        if self._body.return_token_ids:
            reply["prompt_token_ids"] = self._recording.prompt_ids
        return reply

    def opening(self) -> bytes:
        """The first chunk of each choice, which says who speaks."""
        self._frame["system_fingerprint"] = self._fingerprint()
        prompt: dict[str, Any] = {}
        if self._body.return_token_ids:
            prompt["prompt_token_ids"] = self._recording.prompt_ids
        delta = {"role": "assistant", "content": ""}
        first = self._chunk(0, delta, **prompt)
        return first + b"".join(self._chunk(index, delta) for index in range(1, self._body.request.n))

    def chunks(self, deltas: Iterable[Delta]) -> bytes:
        """What the deltas add to the reply, at most one chunk for each choice."""
        fresh: dict[int, ChoiceSoFar] = {}
        for delta in deltas:
            fresh.setdefault(delta.choice, ChoiceSoFar()).add(delta)
        return b"".join(self._piece(index, choice) for index, choice in fresh.items())

    def ending(self) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        chunks = [
            self._chunk(index, {}, finish_reason=choice.finish_reason)
            for index, choice in enumerate(self._recording.choices)
        ]
        if self._body.include_usage:
            chunks.append(event({**self._frame, "choices": [], "usage": self._usage()}))
        return b"".join((*chunks, b"data: [DONE]\n\n"))

    def _choice(self, index: int, choice: ChoiceSoFar) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "index": index,
            "message": orjson.Fragment(to_json({**choice.message(), "refusal": None})),
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
        }
        if self._body.return_token_ids:
            reply["token_ids"] = choice.token_ids
        return reply

    def _piece(self, index: int, choice: ChoiceSoFar) -> bytes:
        delta: dict[str, Any] = {}
        if choice.text:
            delta["content"] = "".join(choice.text)
        if choice.tool_calls:
            first = self._tool_calls[index]
            self._tool_calls[index] += len(choice.tool_calls)
            delta["tool_calls"] = [{"index": first + i, **call} for i, call in enumerate(choice.tool_calls)]
        token_ids = choice.token_ids if self._body.return_token_ids else None
        logprobs = self._logprobs(choice) if choice.token_ids else None
        if not delta and not token_ids and not logprobs:
            return b""
        return self._chunk(index, delta, logprobs=logprobs, token_ids=token_ids)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: orjson.Fragment | None = None,
        token_ids: list[int] | None = None,
        **fields: Any,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": orjson.Fragment(to_json(delta)),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if token_ids:
            choice["token_ids"] = token_ids
        if self._body.include_usage:
            fields["usage"] = None
        return event({**self._frame, **fields, "choices": [choice]})

    def _logprobs(self, choice: ChoiceSoFar) -> orjson.Fragment | None:
        if not self._body.logprobs:
            return None
        return self._tokens.logprobs(choice.token_ids, choice.logprobs, choice.top_logprobs)

    def _usage(self) -> dict[str, int]:
        prompt = len(self._recording.prompt_ids or ())
        completion = sum(len(choice.token_ids) for choice in self._recording.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _fingerprint(self) -> str:
        return f"policy-{self._recording.policy_version}"
