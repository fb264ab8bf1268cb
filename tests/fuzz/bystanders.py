"""Rollouts that do nothing odd: each says the same again and again, and must hear the same.

Their conversations are greedy, and no second-best token comes within `MARGIN` of the best, so that the few
last bits in which a larger batch differs change no reply. What they hear in peace, tokens and
log-probabilities included, is what they must hear under attack.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.records.types import Call, Sampling
from tests.fuzz.desk import Desk, Held
from tests.fuzz.wire import Answer, ask

MARGIN: Final = 0.02
"""Least lead of the best token's log-probability over the second."""
CLOSE: Final = 2e-3
"""How far a log-probability may be from the one in peace."""
_LENGTH: Final = 16
_ASKED: Final = (
    "Schema: boats(id, name, speed)\nQuestion: List the boats with speed above 3",
    "Name the fastest",
)


class Disturbed(Exception):
    """A bystander noticed something."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How one bystander speaks: dialect, addressing, form, streamed or not; all ask the same."""

    dialect: str
    stream: bool
    agent: str = "writer"
    in_path: bool = False
    regex: str | None = None
    """The regular expression that the replies match."""


VOICES: Final = (
    Voice("chat", stream=False),
    Voice("chat", stream=True, agent="critic", in_path=True),
    Voice("responses", stream=True),
    Voice("anthropic", stream=False, agent="critic"),
    Voice("completions", stream=True, agent="critic", in_path=True),
    Voice("chat", stream=False, regex="(SELECT|WITH) [A-Za-z ]{1,60}"),
)


@dataclass(frozen=True, slots=True)
class Heard:
    """One turn as it was in peace."""

    text: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


class Bystander:
    """One voice, in rollout after rollout."""

    def __init__(self, number: int, voice: Voice, desk: Desk) -> None:
        self.number, self.voice = number, voice
        self._desk = desk
        self._peace: list[Heard] = []
        self.rounds = 0
        self.waits: list[float] = []
        """Seconds that each call took; the caller empties it."""
        self.played: list[str] = []
        """Rollouts that came to their end."""
        self.current = "calm"
        """The rollout that it is in."""

    async def round(self, url: str) -> None:
        """Play one rollout. Raises Disturbed if anything is not as it was in peace; the first is peace."""
        self.rounds += 1
        self.current = f"calm-{self.number}-{self.rounds}"
        held = await self._desk.begin(
            self.current, group=f"calm-{self.number}", sampling=Sampling(temperature=0.0)
        )
        said: list[str] = []
        for turn in range(len(_ASKED)):
            said.append(await self._turn(url, held, turn, said))
            if self._peace and said[turn] != self._peace[turn].text:
                raise Disturbed(
                    f"{self.voice} heard {said[turn]!r} in turn {turn}, in peace {self._peace[turn].text!r}"
                )
        found = await self._desk.store.get_calls([held.id])
        heard = self._check(held.id, found[held.id], said)
        self._peace = self._peace or heard
        await self._desk.finish(held, 1.0)
        self.played.append(held.id)

    async def _turn(self, url: str, held: Held, turn: int, said: list[str]) -> str:
        path, headers = self._address(held, turn)
        began = time.monotonic()
        answer = await ask(url, "POST", path, headers, json.dumps(self._body(turn, said)).encode())
        self.waits.append(time.monotonic() - began)
        if answer.status != 200 or not answer.whole:
            raise Disturbed(f"{self.voice} got {answer.status} in turn {turn}: {answer.body[-300:]!r}")
        try:
            return _text(self.voice, answer)
        except (ValueError, KeyError, IndexError, StopIteration) as error:
            raise Disturbed(
                f"{self.voice} can't read its reply in turn {turn}: {error!r} in {answer.body[-300:]!r}"
            ) from error

    def _address(self, held: Held, turn: int) -> tuple[str, list[tuple[str, bytes]]]:
        paths = {"chat": "chat/completions", "anthropic": "messages"}
        path = f"/v1/{paths.get(self.voice.dialect, self.voice.dialect)}"
        headers = [("content-type", b"application/json"), ("x-lightning-call", self._call_id(turn).encode())]
        token = held.token.encode()
        if self.voice.dialect == "anthropic":
            headers.append(("x-api-key", token))
        else:
            headers.append(("authorization", b"Bearer " + token))
        if self.voice.in_path:
            return f"/rollouts/{held.id}/agents/{self.voice.agent}{path}", headers
        return path, [*headers, ("x-lightning-agent", self.voice.agent.encode())]

    def _call_id(self, turn: int) -> str:
        return f"calm-{self.number}-{turn}"

    def _body(self, turn: int, said: list[str]) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        for asked, reply in zip(_ASKED, [*said, None], strict=False):
            messages.append({"role": "user", "content": asked})
            if reply is not None:
                messages.append({"role": "assistant", "content": reply})
        body: dict[str, Any] = {"temperature": 0, "stream": self.voice.stream}
        if self.voice.regex is not None:
            body["structured_outputs"] = {"regex": self.voice.regex}
        match self.voice.dialect:
            case "chat":
                return {
                    **body,
                    "messages": messages,
                    "max_tokens": _LENGTH,
                    "logprobs": True,
                    "top_logprobs": 2,
                }
            case "responses" if turn:
                before = f"resp_{self._call_id(turn - 1)}"
                return {
                    **body,
                    "input": _ASKED[turn],
                    "previous_response_id": before,
                    "max_output_tokens": _LENGTH,
                }
            case "responses":
                return {**body, "input": _ASKED[turn], "max_output_tokens": _LENGTH}
            case "anthropic":
                return {**body, "messages": messages, "max_tokens": _LENGTH}
            case _:
                text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
                return {**body, "prompt": f"{text}<|im_start|>assistant\n", "max_tokens": _LENGTH}

    def _check(self, rollout_id: str, calls: list[Call], said: list[str] | None = None) -> list[Heard]:
        """The calls as they are stored, which must be those that were made, and as in peace."""
        if [call.id for call in calls] != [self._call_id(turn) for turn in range(len(_ASKED))]:
            raise Disturbed(f"rollout {rollout_id} has the calls {[call.id for call in calls]}")
        heard = []
        for turn, call in enumerate(calls):
            (choice,) = call.choices
            content = choice.message.get("content")
            if call.status != "completed" or call.agent != self.voice.agent or call.rollout_id != rollout_id:
                raise Disturbed(
                    f"call {call.id} of {rollout_id} is {call.status}, of agent {call.agent!r}: {call.error}"
                )
            assert call.prompt_ids
            assert choice.completion_ids
            assert choice.logprobs
            heard.append(Heard(str(content or ""), call.prompt_ids, choice.completion_ids, choice.logprobs))
            if said is not None and said[turn] != heard[turn].text:
                raise Disturbed(f"{self.voice} heard {said[turn]!r}, recorded is {heard[turn].text!r}")
        for now, before in zip(heard, self._peace, strict=False):
            same = (now.text, now.prompt_ids, now.completion_ids) == (
                before.text,
                before.prompt_ids,
                before.completion_ids,
            )
            apart = max(abs(a - b) for a, b in zip(now.logprobs, before.logprobs, strict=False))
            if not same or apart > CLOSE:
                raise Disturbed(f"{self.voice} in {rollout_id} has {now}, in peace {before}")
        return heard

    async def check_all(self) -> int:
        """Every rollout that it played still has its own calls and nothing else; returns how many calls."""
        store, count = self._desk.store, 0
        for rollout_id in self.played:
            calls = (await store.get_calls([rollout_id]))[rollout_id]
            self._check(rollout_id, calls)
            count += len(calls)
            (reward,) = (await store.get_rewards([rollout_id]))[rollout_id]
            events = (await store.get_events([rollout_id]))[rollout_id]
            if reward.value != 1.0 or events:
                raise Disturbed(f"rollout {rollout_id} has the reward {reward} and the events {events}")
        return count

    async def check_margin(self, url: str) -> float:
        """The least margin of its tokens in peace. Raises Disturbed if it is too small to be sure of."""
        held = await self._desk.begin(
            f"margin-{self.number}", group="margin", sampling=Sampling(temperature=0.0)
        )
        least = float("inf")
        said: list[str] = []
        for turn, heard in enumerate(self._peace):
            path, headers = self._address(held, turn)
            answer = await ask(url, "POST", path, headers, json.dumps(self._body(turn, said)).encode())
            for token in json.loads(answer.body)["choices"][0]["logprobs"]["content"]:
                best = [each["logprob"] for each in token["top_logprobs"][:2]]
                if len(best) == 2:  # a form may leave one token alone
                    least = min(least, best[0] - best[1])
            said.append(heard.text)
        await self._desk.finish(held, 0.0)
        if least < MARGIN:
            raise Disturbed(f"a second-best token comes within {least:.3f}; choose other questions")
        return least


def _text(voice: Voice, answer: Answer) -> str:
    """Returns the text of a reply."""
    if voice.stream:
        events = [
            json.loads(line[6:]) for line in answer.body.decode().split("\n") if line.startswith("data: {")
        ]
        if voice.dialect == "chat":
            return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
        if voice.dialect == "completions":
            return "".join(c["text"] for event in events for c in event["choices"])
        done = next(
            event["response"]
            for event in events
            if event["type"] in ("response.completed", "response.incomplete")
        )
        return _output_text(done)
    body = json.loads(answer.body)
    if voice.dialect == "chat":
        return str(body["choices"][0]["message"]["content"])
    return "".join(block["text"] for block in body["content"])


def _output_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))
