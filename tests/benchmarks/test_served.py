"""The server that gateways are measured before, and gateways that can't be measured. No time is asserted."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from openai import OpenAI

from benchmarks import served
from benchmarks.page import insert
from benchmarks.peers import PEERS, Peer
from benchmarks.served import OLDER, OURS, RESULT, Record, Served, render, run, standin
from benchmarks.stores.peer import install
from benchmarks.stores.record import Circumstances
from benchmarks.vllm_standin import REPLY

ROOT = Path(__file__).parents[2]


def test_the_chat_reply_of_the_standin_is_read_by_the_sdk_whole_and_streamed() -> None:
    with standin() as address, OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        ask = partial(client.chat.completions.create, model="m", messages=[{"role": "user", "content": "hi"}])
        plain = ask()
        full = partial(ask, logprobs=True, extra_body={"return_token_ids": True})
        whole = full()
        chunks = list(full(stream=True, stream_options={"include_usage": True}))
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(each.delta.content for each in said) == whole.choices[0].message.content
    ids = [one for each in said for one in each.model_extra.get("token_ids", [])]
    assert ids == whole.choices[0].model_extra["token_ids"]
    assert len(ids) == REPLY
    assert chunks[0].model_extra["prompt_token_ids"] == whole.model_extra["prompt_token_ids"] != []
    logprobs = [one for each in said if each.logprobs for one in each.logprobs.content]
    assert logprobs == whole.choices[0].logprobs.content
    assert len(logprobs) == REPLY
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert said[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert plain.choices[0].logprobs is None
    assert plain.choices[0].model_extra["token_ids"] is None


def test_a_package_that_can_not_be_installed_is_told_by_its_name(tmp_path: Path) -> None:
    missing = install("peer==1.0", tmp_path / "first", "python0.0")
    assert isinstance(missing, str)
    assert missing.startswith("python0.0 makes no environment")
    unreadable = install("no such requirement", tmp_path / "second")
    assert isinstance(unreadable, str)
    assert "no such requirement could not be installed" in unreadable


def test_gateways_are_measured_and_a_missing_peer_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unused(*arguments: object) -> list[str]:
        raise AssertionError(arguments)

    missing = Peer("missing 1.0", "missing==1.0", "forwards", unused, unused, Path("none"), "python0.0")
    small = {"CLIENTS": (2, 1), "CALLS": 2, "WARM_UP": 2, "TURNS": 4, "ENDS": 2, "SETTLED_SECONDS": 0.0}
    for name, value in {**small, "PEERS": (missing,)}.items():
        monkeypatch.setattr(served, name, value)
    record = run(rounds=1)
    assert len(record.rounds) == 6
    for by in record.rounds.values():
        assert by.keys() == {OURS, OLDER}
        assert all(value > 0 for values in by.values() for value in values)
    assert "- missing 1.0: left out: python0.0 makes no environment" in render(record)


def test_a_gateway_that_refuses_a_call_has_a_row_that_says_so() -> None:
    peer = "peer 1.0"
    record = Record(
        {OURS: "stores", peer: "forwards"},
        {"whole": {OURS: [1.0, 2.0], peer: [3.0, 4.0]}, "streamed": {OURS: [5.0, 6.0]}},
        {"streamed": {peer: "400 no streams"}},
        Circumstances("2026-01-01T00:00:00Z", {"cores": 2, "processor": "P"}, (1.0, 2.0)),
    )
    lines = render(record).splitlines()
    assert "| whole | 1.5 (1.0–2.0) | 3.5 (3.0–4.0) |" in lines
    assert "| streamed | 5.5 (5.0–6.0) | refused: 400 no streams |" in lines
    assert "| whole | 2.50 (2.00–3.00) |" in lines


def test_the_published_section_is_what_the_record_says() -> None:
    found = json.loads((ROOT / RESULT).read_text())
    found["circumstances"] = Circumstances(**found["circumstances"])
    page = (ROOT / "benchmarks/results/README.md").read_text()
    assert insert(page, Served(), render(Record(**found))) == page
    assert f"    {Served.command}\n" in page
    assert {peer.name for peer in PEERS} <= set(found["does"])
