"""`prompts="all"`: prompts are read off the agents' calls, and then it is as if they had been declared."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import lightning_core as lightning
from lightning_core.dialects.anthropic import Anthropic
from lightning_core.dialects.chat import Chat
from lightning_core.dialects.responses import Responses
from lightning_core.errors import ConfigError, TrainingError, UnknownAgentError
from lightning_core.prompts import Pinned, Prompt, put_in, read_declared
from lightning_core.records.types import Call, ResourceVersion, Rollout, Run, Task
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.trainer.discovery import PLAYED, by_agent, find_prompt, played, why_not
from lightning_core.trainer.summary import Summary
from tests.build import make_call

WRITER, CRITIC = "Write one query.", "Judge the query [harshly]."
TRAIN = [{"place": place} for place in ("Rome", "Oslo", "Lima", "Bonn", "Kyiv", "Cork")]
HELD_OUT = [{"place": f"place {n}"} for n in range(4)]


@pytest.fixture
def hosted() -> Iterator[GatewayDouble]:
    with serving() as double:
        yield double


async def ask(client: Any, agent: str, *system: str) -> None:
    messages: Any = [{"role": "system", "content": text} for text in system]
    with lightning.agent(agent):
        await client.chat.completions.create(
            model="m", messages=[*messages, {"role": "user", "content": "go"}], max_tokens=4
        )


def app(url: str | None) -> Any:
    """`writer` and `critic` have constant prompts, `guide` one with a value in it, and `echo` has none."""

    async def solve(task: lightning.Task) -> float:
        transport = httpx.AsyncClient(verify=False)  # reading certificates takes longer than its calls
        key = "none" if url is None else "sk-of-the-app"
        async with openai.AsyncOpenAI(api_key=key, base_url=url, http_client=transport) as own:
            await ask(own, "writer", WRITER)
            await ask(own, "critic", f"Today {task.input['place']} is asked.", CRITIC)
            await ask(own, "guide", f"Speak of {task.input['place']} alone.")
            await ask(own, "echo")
        return float(task.input["place"] in ("Rome", "Oslo", "Lima", "place 0"))

    return solve


def fit(folder: Path, solve: Any, **settings: Any) -> Summary:
    return lightning.Trainer(
        **{
            "prompts": "all",
            "algorithm": lightning.Bootstrap(budget=40),
            "folder": folder,
            "progress": False,
            "on_failure": lightning.FailurePolicy(retries=0),
            **settings,
        }
    ).fit(solve, train=TRAIN, validation=HELD_OUT)


class Records:
    """The records in a run's store."""

    run: Run
    rollouts: list[Rollout]
    calls: dict[str, list[Call]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        asyncio.run(self._read())

    async def _read(self) -> None:
        name = self._folder.name
        async with SqliteStore(f"sqlite:///{self._folder / 'store.db'}") as store:
            found = await store.find_run(name)
            assert found is not None
            self.run = found
            self.rollouts = await store.find_rollouts(name)
            self.calls = await store.get_calls([each.id for each in self.rollouts])
            self.versions: dict[str, list[ResourceVersion]] = {
                agent: await store.list_resources(name, agent)
                for agent in ("writer", "critic", "guide", "echo")
            }

    def told(self, rollout: Rollout) -> dict[str, list[str]]:
        """The system messages of each agent."""
        return {
            call.agent: [each["content"] for each in call.request["messages"] if each["role"] == "system"]  # type: ignore[union-attr,index,call-overload]
            for call in self.calls[rollout.id]
        }


def test_the_prompts_of_agents_at_their_own_endpoint_are_found_and_searched(
    tmp_path: Path, hosted: GatewayDouble
) -> None:
    (found,) = fit(tmp_path / "run", app(f"{hosted.url}/v1")).searches
    read = Records(tmp_path / "run")
    assert {name: seed for name, (seed, _) in found.prompts.items()} == {"writer": WRITER, "critic": CRITIC}
    assert {name: bool(versions) for name, versions in read.versions.items()} == {
        "writer": True,
        "critic": True,
        "guide": False,
        "echo": False,
    }
    first = read.versions["critic"][0]
    assert (first.uri, first.author) == (CRITIC, "app")
    assert found.rollouts == len(read.rollouts) <= 40
    unpinned = [each for each in read.rollouts if not each.prompt_versions]
    assert len(unpinned) == PLAYED
    assert {each.task.id for each in unpinned} <= {Task(input=row).id for row in TRAIN}
    for rollout in read.rollouts:
        told, place = read.told(rollout), rollout.task.input["place"]
        texts = {
            name: read.versions[name][version].uri for name, version in rollout.prompt_versions.items()
        } or {"writer": WRITER, "critic": CRITIC}
        assert told["writer"] == [texts["writer"]]
        assert told["critic"] == [f"Today {place} is asked.", texts["critic"]]
        assert (told["guide"], told["echo"]) == ([f"Speak of {place} alone."], [])
    assert len(read.versions["writer"]) > 1
    assert not [seen for seen in hosted.seen if "x-lightning-agent" in seen.headers]


def test_agents_without_a_prompt_are_named_with_the_reason_and_what_to_do(
    tmp_path: Path, hosted: GatewayDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = fit(tmp_path / "run", app(f"{hosted.url}/v1"), progress=True).searches
    assert set(found.left_out) == {"guide", "echo"}
    assert "differs between calls, from character 10 on ('" in found.left_out["guide"]
    assert "prompts={'guide': lightning.Prompt(text, placeholders=...)}" in found.left_out["guide"]
    assert found.left_out["echo"] == f"{PLAYED} of its {PLAYED} calls have no system message"
    shown = capsys.readouterr().err
    assert "prompts were found of 'critic', 'writer'" in shown
    assert shown.count("the prompt of 'echo' is left as it is") == 1
    assert shown.count("the prompt of 'guide' was left as it is") == 1


def test_agents_says_whose_prompts_are_looked_for(tmp_path: Path, hosted: GatewayDouble) -> None:
    (found,) = fit(tmp_path / "run", app(f"{hosted.url}/v1"), agents=["wri*"]).searches
    assert (list(found.prompts), found.left_out) == (["writer"], {})


def test_an_app_without_any_prompt_is_refused_by_name(tmp_path: Path, hosted: GatewayDouble) -> None:
    with pytest.raises(ConfigError, match=r"found no prompt.*'echo': 4 of its 4 calls .*'guide': its system"):
        fit(tmp_path / "a", app(f"{hosted.url}/v1"), agents=["guide", "echo"])
    with pytest.raises(UnknownAgentError, match="did you mean 'writer'"):
        fit(tmp_path / "b", app(f"{hosted.url}/v1"), agents=["wirter", "critic"])
    with pytest.raises(ConfigError, match=r'give \{"AGENT": "its system prompt"\}, or "all"'):
        lightning.Trainer(prompts="every", algorithm=lightning.Bootstrap())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="this run has none"):
        lightning.Trainer(prompts="all", algorithm=lightning.GRPO())


def test_a_run_that_fails_while_prompts_are_looked_for_is_mended_and_resumed(
    tmp_path: Path, hosted: GatewayDouble
) -> None:
    inner, away = app(f"{hosted.url}/v1"), [True]

    async def solve(task: lightning.Task) -> float:
        if away[0]:
            raise ConnectionError("away")
        return float(await inner(task))

    with pytest.raises(TrainingError, match="away"):
        fit(tmp_path / "run", solve)
    away[0] = False
    assert set(fit(tmp_path / "run", solve, resume=True).searches[0].prompts) == {"writer", "critic"}


def killed(folder: Path, url: str, after: int) -> None:
    """The same run in a process that is killed when so many rollouts have begun."""
    pid = os.fork()
    if pid == 0:
        begun, inner = Counter[str](), app(url)

        async def solve(task: lightning.Task) -> float:
            begun["rollouts"] += 1
            if begun["rollouts"] > after:
                os.kill(os.getpid(), signal.SIGKILL)
            return float(await inner(task))

        solve.__qualname__ = inner.__qualname__
        fit(folder, solve, resume=(folder / "run.json").exists(), concurrency=1)
        os._exit(0)
    os.waitpid(pid, 0)


def test_a_run_that_is_killed_before_its_search_finds_the_same_and_plays_nothing_twice(
    tmp_path: Path, hosted: GatewayDouble
) -> None:
    url = f"{hosted.url}/v1"
    calm = fit(tmp_path / "calm" / "run", app(url), concurrency=1)
    folder = tmp_path / "killed" / "run"
    killed(folder, url, 2)  # while prompts are looked for
    assert read_declared(Records(folder).run) == {}
    killed(folder, url, PLAYED - 2)  # at the first trial of the search
    before = Records(folder)
    assert read_declared(before.run) == {"critic": Prompt(CRITIC), "writer": Prompt(WRITER)}
    assert len([each for each in before.rollouts if each.prompt_versions]) > 0
    inner, begun = app(url), list[str]()

    async def solve(task: lightning.Task) -> float:
        begun.append(str(task.id))
        return float(await inner(task))

    solve.__qualname__ = inner.__qualname__
    summary = fit(folder, solve, resume=True, concurrency=1)
    assert summary.searches == calm.searches
    after = Records(folder)
    assert {each.id for each in after.rollouts} == {
        each.id for each in Records(tmp_path / "calm" / "run").rollouts
    }
    assert len(begun) == len(after.rollouts) - PLAYED
    assert after.run.config == before.run.config
    again = fit(folder, solve, resume=True, concurrency=1)
    assert (again.searches, len(begun)) == (calm.searches, len(after.rollouts) - PLAYED)


def test_beside_training_all_other_rollouts_are_pinned_from_the_first_on(tmp_path: Path) -> None:
    """The agents of the policy itself: their calls go to the gateway."""
    phases = [
        lightning.Phase(lightning.GRPO(group_size=2, tasks_per_step=1), 1),
        lightning.Phase(lightning.Bootstrap(budget=26)),
    ]
    backend = lightning.LocalBackend("tiny")
    summary = fit(tmp_path / "run", app(None), algorithm=phases, backend=backend)
    assert set(summary.searches[0].prompts) == {"writer", "critic"}
    rollouts = Records(tmp_path / "run").rollouts
    without = [each for each in rollouts if set(each.prompt_versions) != {"writer", "critic"}]
    assert [each.id.startswith("run-s1-found-") for each in without] == [True] * PLAYED
    assert Records(tmp_path / "run").run.status == "finished"


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [
        (Chat, {"messages": [{"role": "system", "content": WRITER}]}),
        (Chat, {"messages": [{"role": "developer", "content": [{"type": "text", "text": f" {WRITER}\n"}]}]}),
        (Responses, {"instructions": WRITER, "input": "hello"}),
        (Responses, {"input": [{"role": "developer", "content": WRITER}]}),
        (Anthropic, {"system": [{"type": "text", "text": WRITER}], "messages": []}),
    ],
)
def test_what_is_found_in_a_call_of_each_api_can_be_put_in_there(dialect: Any, request_: Any) -> None:
    found = find_prompt("a", by_agent([call("a", dialect, request_)], None)["a"])
    assert found is not None
    assert found.strip() == WRITER
    changed = put_in("a", Pinned(Prompt(found), "better"), dialect, request_)
    assert find_prompt("a", by_agent([call("a", dialect, changed)], None)["a"]) == "better"


def test_an_agent_whose_name_other_versions_have_is_left_out() -> None:
    told = [[WRITER]]
    assert (find_prompt("policy", told), find_prompt("writer", told)) == (None, WRITER)
    assert "rename the agent" in why_not("policy", told)


def test_the_tasks_that_are_played_are_a_few_of_them_each_once() -> None:
    tasks = [Task(input=row) for row in TRAIN]
    chosen = played([*tasks, *tasks], 0)
    assert len({each.id for each in chosen}) == len(chosen) == PLAYED
    assert chosen == played(tasks, 0)
    assert len(played(tasks[:1], 0)) == 1


def call(agent: str, dialect: Any, request: Any) -> Call:
    return make_call(agent=agent, trained=False, dialect=dialect.name, request=request)
