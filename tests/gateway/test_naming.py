"""Rules that name the calls of a program which names none."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError
from lightning_core.records.types import Sampling
from tests.gateway.conftest import House, open_house
from tests.gateway.test_dialects import SPEAKERS

NAMES = {"explorer": r"You search (files|code)", "writer": "^You write"}
SEARCHES = "You search files."


async def ask(house: House, token: str, dialect: str, system: str | None, **headers: str) -> httpx.Response:
    """A call with this system prompt, in the way of its API."""
    body = dict(SPEAKERS[dialect].body("hi"))
    match dialect:
        case _ if system is None:
            pass
        case "chat":
            body["messages"] = [{"role": "system", "content": system}, *body["messages"]]
        case "anthropic":
            body["system"] = [{"type": "text", "text": system}]
        case "responses":  # as Codex has it
            content = [{"type": "input_text", "text": system}]
            body["input"] = [{"role": "developer", "content": content}, {"role": "user", "content": "hi"}]
    given = {"authorization": f"Bearer {token}", **headers}
    path = "/rollouts/r1/agents/coder" + SPEAKERS[dialect].path
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as web:
        return await web.post(path, json=body, headers=given)


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
async def test_a_rule_names_a_call_by_its_system_prompt(dialect: str) -> None:
    async with open_house(agents=("explorer",), names=NAMES) as house:
        token = await house.rollout(sampling=Sampling(temperature=0.0))
        for system in (SEARCHES, "Be kind. You write.", "Hello.\nYou write", None):
            assert (await ask(house, token, dialect, system)).status_code == 200
        calls = await house.calls()
        assert [(call.agent, call.trained, call.temperature) for call in calls] == [
            ("explorer", True, 0.0),  # trained, so sampled as its rollout says
            ("coder", False, 1.0),  # no rule: the address speaks for the whole program
            ("coder", False, 1.0),
            ("coder", False, 1.0),
        ]


async def test_a_header_is_more_exact_than_a_rule() -> None:
    async with open_house(names=NAMES) as house:
        await ask(house, await house.rollout(), "chat", SEARCHES, **{"x-lightning-agent": "judge"})
        assert (await house.one_call()).agent == "judge"


async def test_without_a_rule_that_matches_a_call_stays_unnamed() -> None:
    async with open_house(names=NAMES) as house:
        client = house.client(await house.rollout())
        messages: Any = [{"role": "user", "content": SEARCHES}]  # not the system prompt
        await client.chat.completions.create(model="m", messages=messages)
        assert (await house.one_call()).agent == "unnamed"


async def test_a_call_that_two_rules_name_is_refused_with_both_names() -> None:
    async with open_house(names={**NAMES, "other": "files"}) as house:
        token = await house.rollout()
        refused = await ask(house, token, "anthropic", SEARCHES)
        assert refused.status_code == 400
        assert "several names, 'explorer', 'other'" in refused.json()["error"]["message"]
        with pytest.raises(openai.BadRequestError, match="several names") as caught:
            await house.client(token).responses.create(model="m", instructions=SEARCHES, input="hi")
        assert (caught.value.code, caught.value.param) == ("ambiguous_agent", "instructions")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a": "x("}, r"names\['a'\] = 'x\(' is not a regular expression"),
        ({"a": ""}, "a regular expression in its system prompt"),
        ({"": "x"}, "a regular expression in its system prompt"),
        ({"a": "x", "b": "x"}, "'a' and 'b' have the same pattern, 'x'"),
        ("explorer", "names='explorer': give"),
    ],
)
def test_what_is_no_rule_is_refused_at_start(names: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lightning.Trainer(model="tiny", names=names)
