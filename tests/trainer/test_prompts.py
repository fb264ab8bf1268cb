"""Prompts as versions: where they are put in, what is refused, and what a rollout is pinned to."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

import lightning_core as lightning
from lightning_core.dialects.anthropic import Anthropic
from lightning_core.dialects.chat import Chat
from lightning_core.dialects.responses import Responses
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.prompts import Pinned, Prompt, put_in
from lightning_core.records.types import Call, Rollout
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.stores.versions import put_prompt
from lightning_core.testing.server import GatewayDouble, serving

SEED = "Answer in one word."
BETTER = "Answer in one word, in French. {never} filled."


@pytest.fixture
def hosted() -> Iterator[GatewayDouble]:
    with serving() as double:
        yield double


def test_the_seed_is_replaced_byte_for_byte_and_nothing_else_is() -> None:
    pinned = Pinned(Prompt(SEED), BETTER)
    assert pinned.put(SEED) == BETTER
    assert pinned.put(BETTER) == BETTER
    assert pinned.put(SEED + " ") is None
    assert pinned.put(f"Note: {SEED}") is None


def test_values_that_the_app_put_into_a_prompt_are_carried_over() -> None:
    seed = Prompt("Write SQL for {schema}. {schema} is all there is; today is {day}.", ("{schema}", "{day}"))
    pinned = Pinned(seed, "On {day}, one query on\n{schema}")
    said = seed.text.replace("{schema}", "t({day})").replace("today is {day}.", "today is Monday.")
    assert pinned.put(said) == "On Monday, one query on\nt({day})"
    assert pinned.put(said.replace("t({day})", "other", 1)) is None  # two values for one placeholder
    assert seed.lost("On {day}") == ["{schema}"]
    with pytest.raises(ConfigError, match="placeholders"):
        Prompt("no place", ("{schema}",))


def test_a_long_document_between_placeholders_is_read_at_once() -> None:
    """With a pattern of `.*?` for each placeholder the last line of this takes half a minute, then hours."""
    seed = Prompt("{a}\n\n{b}\n\n{c}\n\n{d}\n\nAnswer.", ("{a}", "{b}", "{c}", "{d}"))
    document = "a line\n\n" * 10_000
    said = seed.fill(seed.text, {"{a}": document, "{b}": "x", "{c}": "y", "{d}": "z"})
    assert seed.read(said) is not None
    assert seed.read(said + "!") is None


@given(
    st.lists(st.sampled_from(["{a}", "{b}", "x", "y", "xy"]), min_size=1, max_size=7),
    st.text("xy", max_size=9),
)
def test_values_are_those_of_the_shortest_match(parts: list[str], said: str) -> None:
    """As a regular expression finds them."""
    seed = Prompt("".join(parts), tuple(dict.fromkeys(each for each in parts if "{" in each)))
    named: set[str] = set()
    pattern = ""
    for each in parts:
        name = each.strip("{}")
        pattern += each if "{" not in each else f"(?P={name})" if each in named else f"(?P<{name}>.*?)"
        named |= {each} if "{" in each else set()
    found = re.fullmatch(pattern, said)
    assert seed.read(said) == (
        None if found is None else {f"{{{k}}}": v for k, v in found.groupdict().items()}
    )


@pytest.mark.parametrize(
    ("dialect", "request_", "place"),
    [
        (Chat, {"messages": [{"role": "system", "content": SEED}]}, ("messages", 0, "content")),
        (
            Chat,
            {
                "messages": [
                    {"role": "system", "content": "first"},
                    {"role": "developer", "content": [{"type": "text", "text": SEED}]},
                ]
            },
            ("messages", 1, "content", 0, "text"),
        ),
        (Responses, {"instructions": SEED, "input": "hello"}, ("instructions",)),
        (Responses, {"input": [{"role": "developer", "content": SEED}]}, ("input", 0, "content")),
        (Anthropic, {"system": [{"type": "text", "text": SEED}], "messages": []}, ("system", 0, "text")),
    ],
)
def test_the_prompt_is_found_where_each_api_has_it(dialect: Any, request_: Any, place: Any) -> None:
    changed: Any = put_in("writer", Pinned(Prompt(SEED), BETTER), dialect, request_)
    before = request_
    for step in place:
        changed, before = changed[step], before[step]
    assert (before, changed) == (SEED, BETTER)


def test_another_prompt_is_refused_by_name_with_the_first_differing_character() -> None:
    request: Any = {"messages": [{"role": "system", "content": "Answer in two words."}]}
    with pytest.raises(ConfigError, match=r"agent 'writer' .* from character 11 on.*lightning.prompt"):
        put_in("writer", Pinned(Prompt(SEED), BETTER), Chat, request)
    with pytest.raises(ConfigError, match="no system message"):
        put_in(
            "writer", Pinned(Prompt(SEED), BETTER), Chat, {"messages": [{"role": "user", "content": "hi"}]}
        )


def run(folder: Path, solve: Any, **settings: Any) -> None:
    lightning.Trainer(
        model="tiny",
        agents=["writer"],
        prompts={"writer": SEED, "critic": SEED},
        backend=lightning.LocalBackend("tiny"),
        folder=folder,
        progress=False,
        on_failure=lightning.FailurePolicy(retries=0),
        **{"algorithm": lightning.GRPO(group_size=2, tasks_per_step=1), "steps": 1, **settings},
    ).fit(solve, train=[{"question": "which?"}])


async def read(folder: Path) -> tuple[list[Rollout], list[Call]]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        rollouts = await store.find_rollouts(folder.name)
        calls = await store.get_calls([rollout.id for rollout in rollouts])
        return rollouts, [call for part in calls.values() for call in part]


async def improve(folder: Path, name: str, text: str) -> None:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        await put_prompt(store, folder.name, name, text, author="a person", parent=0)


def app(hosted: GatewayDouble, given: list[str]) -> Any:
    async def solve(task: lightning.Task) -> float:
        own = openai.AsyncOpenAI(api_key="sk-of-the-app", base_url=f"{hosted.url}/v1")
        async with openai.AsyncOpenAI(api_key="none") as client, own:
            for name, by, place in (("writer", client, SEED), ("critic", own, SEED), ("other", own, SEED)):
                messages: Any = [{"role": "system", "content": place}, {"role": "user", "content": "go"}]
                with lightning.agent(name):
                    await by.chat.completions.create(model="m", messages=messages, max_tokens=4)
        given.append(lightning.prompt("critic", SEED))
        return float(len(given))

    return solve


def test_rollouts_are_pinned_and_each_agent_is_told_its_own_version(tmp_path: Path, hosted: GatewayDouble):
    given: list[str] = []
    run(tmp_path / "run", app(hosted, given))
    asyncio.run(improve(tmp_path / "run", "critic", BETTER))
    run(tmp_path / "run", app(hosted, given), steps=2, resume=True)
    rollouts, calls = asyncio.run(read(tmp_path / "run"))
    assert {(r.step, *sorted(r.prompt_versions.items())) for r in rollouts} == {
        (0, ("critic", 0), ("writer", 0)),
        (1, ("critic", 1), ("writer", 0)),
    }
    step = {rollout.id: rollout.step for rollout in rollouts}
    told = {
        (call.agent, step[call.rollout_id or ""], call.request["messages"][0]["content"])  # type: ignore[index,call-overload]
        for call in calls
    }
    assert told == {
        *((name, n, SEED) for name in ("writer", "other") for n in (0, 1)),
        *(("critic", 0, SEED), ("critic", 1, BETTER)),
    }
    assert given == [SEED, SEED, BETTER, BETTER]
    sent = [seen.body["messages"][0]["content"] for seen in hosted.seen]
    assert sorted(sent) == sorted([SEED] * 6 + [BETTER] * 2)
    assert lightning.prompt("critic", "outside") == "outside"


def test_an_app_with_another_prompt_stops_with_what_differs(tmp_path: Path, hosted: GatewayDouble):
    async def solve(task: lightning.Task) -> float:
        async with openai.AsyncOpenAI(api_key="sk-x", base_url=f"{hosted.url}/v1") as own:
            with lightning.agent("critic"):
                messages: Any = [{"role": "system", "content": "Answer in one line."}]
                await own.chat.completions.create(model="m", messages=messages)
        return 1.0

    with pytest.raises(TrainingError, match="differs from character 15 on"):
        run(tmp_path / "run", solve)
    assert not hosted.seen


@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_a_call_past_the_sdks_is_refused_unless_it_has_its_version(
    tmp_path: Path, hosted: GatewayDouble, library: str
) -> None:
    posts: Any = {"httpx": httpx.post, "requests": requests.post}[library]
    asks, rewards = False, itertools.count()

    def solve(task: lightning.Task) -> float:
        told = lightning.prompt("critic", SEED) if asks else SEED
        messages: Any = [{"role": "system", "content": SEED}, {"role": "user", "content": "go"}]
        with lightning.agent("writer"), openai.OpenAI(api_key="none") as client:
            client.chat.completions.create(model="m", messages=messages, max_tokens=4)
        with lightning.agent("critic"):
            body = {"model": "m", "messages": [{"role": "system", "content": told}]}
            posts(f"{hosted.url}/v1/chat/completions", json=body).raise_for_status()
        return float(next(rewards))

    folder = tmp_path / "run"
    run(folder, solve)
    asyncio.run(improve(folder, "critic", BETTER))
    with pytest.raises(TrainingError, match=r"passes by the SDKs .* lightning.prompt\('critic', default\)"):
        run(folder, solve, resume=True, steps=2)
    asks = True
    run(folder, solve, resume=True, steps=2)
    assert [seen.body["messages"][0]["content"] for seen in hosted.seen] == [SEED] * 2 + [BETTER] * 2


def test_replay_across_a_change_of_prompt_is_refused(tmp_path: Path, hosted: GatewayDouble):
    replaying: Any = {"algorithm": lightning.GRPO(group_size=2, tasks_per_step=1, replay=1)}
    given: list[str] = []
    run(tmp_path / "run", app(hosted, given), **replaying)
    asyncio.run(improve(tmp_path / "run", "critic", BETTER))
    with pytest.raises(TrainingError, match=r"train on step 0 again.*rollback"):
        run(tmp_path / "run", app(hosted, given), steps=2, resume=True, **replaying)


def test_names_that_are_taken_and_empty_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="the name is taken"):
        lightning.Trainer(prompts={"policy": SEED})
    with pytest.raises(ConfigError, match="a prompt needs a text"):
        lightning.Trainer(prompts={"writer": ""})


async def test_a_version_is_read_from_the_store_once() -> None:
    from lightning_core.prompts import PinnedPrompts
    from lightning_core.records.types import Run

    async with MemoryStore("memory://") as store:
        run = Run(id="run", config={"prompts": {"writer": [SEED, []]}})
        await store.put_run(run)
        await put_prompt(store, "run", "writer", SEED, author="app")
        await put_prompt(store, "run", "writer", BETTER, author="gepa", parent=0)
        prompts = PinnedPrompts(store, run)
        first = await prompts.find({"writer": 1})
        assert first["writer"].put(SEED) == BETTER
        assert (await prompts.find({"writer": 1}))["writer"] is first["writer"]
