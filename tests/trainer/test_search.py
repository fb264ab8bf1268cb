"""Searches for better prompts: the budget, the halves, resuming, and the law that candidates never mix.

The agent's model is an endpoint whose skill follows from the facts in its system prompt. It is a stand-in for
wiring alone: no result is made with it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import lightning_core as lightning
from lightning_core.algorithms.bootstrap import examples
from lightning_core.algorithms.search import Episode, Trial
from lightning_core.errors import ConfigError, TrainingError, TrainingStopped
from lightning_core.gateway.server import ServerThread
from lightning_core.records.types import Call, Choice, ResourceVersion, Rollout, Task
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.searching import halves, interval
from lightning_core.trainer.summary import Summary

SEED = "You know:"
TRAIN = [{"needs": n % 4, "number": n} for n in range(8)]
HELD_OUT = [{"needs": n % 4, "number": 100 + n} for n in range(12)]


@dataclass
class Knowing:
    """A model that answers if its prompt holds the fact, and reflects by adding one that was missing."""

    url: str = ""
    prompts: Counter[str] = field(default_factory=Counter)
    reflected: list[str] = field(default_factory=list)
    status: int = 200
    answer: str | None = None
    """The answer to every reflection."""

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        if body["model"] == "reflecting":
            return self._reflect(body["messages"][0]["content"])
        system, user = (message["content"] for message in body["messages"])
        self.prompts[system] += 1
        return _reply("yes" if user in system else f"I do not know {user}")

    def _reflect(self, question: str) -> Response:
        self.reflected.append(question)
        if self.status != 200:
            return JSONResponse({"error": {"message": "no"}}, self.status)
        if "A reviewer says" in question or "It was used in these runs" in question:
            return self._review(question)
        before = re.findall(r"```\n(.*?)\n```", question, re.DOTALL)[0]
        missing = re.findall(r"I do not know (fact \d)", question)[:1]
        return _reply(self.answer or "```\n" + " ".join([before, *missing]) + "\n```")

    def _review(self, question: str) -> Response:
        """APO's two questions: what is missing, and the instruction with it."""
        before = re.findall(r"^(You know:.*)$", question, re.MULTILINE)[0]
        missing = re.findall(r"I do not know (fact \d)", question)[:1]
        told = re.findall(r"it lacks (fact \d)", question)
        if "A reviewer says" not in question:
            return _reply(f"it lacks {missing[0]}" if missing else "it lacks nothing")
        return _reply("```\n" + " ".join([before, *told]) + "\n```")


def _reply(text: str) -> Response:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return JSONResponse(
        {
            "id": "r",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": choices,
            "usage": usage,
        }
    )


@pytest.fixture
def model() -> Iterator[Knowing]:
    knowing = Knowing()
    app = Starlette(routes=[Route("/v1/chat/completions", knowing.chat, methods=["POST"])])
    server = ServerThread(app, lambda: None, "knowing")
    knowing.url = server.start() + "/v1"
    try:
        yield knowing
    finally:
        server.stop()


def client(url: str | None, key: str = "sk-of-the-app") -> openai.AsyncOpenAI:
    """One that reads no certificates, which takes longer than its calls here."""
    return openai.AsyncOpenAI(api_key=key, base_url=url, http_client=httpx.AsyncClient(verify=False))


def app(url: str) -> Any:

    async def solve(task: lightning.Task) -> float:
        messages: Any = [
            {"role": "system", "content": SEED},
            {"role": "user", "content": f"fact {task.input['needs']}"},
        ]
        async with client(url) as own:
            with lightning.agent("expert"):
                reply = await own.chat.completions.create(model="m", messages=messages)
            with lightning.agent("other"):
                await own.chat.completions.create(model="m", messages=messages)
        return float(reply.choices[0].message.content == "yes")

    return solve


def fit(folder: Path, model: Knowing, search: Any, solve: Any = None, **settings: Any) -> Summary:
    return lightning.Trainer(
        **{
            "prompts": {"expert": SEED},
            "algorithm": search,
            "folder": folder,
            "progress": False,
            "on_failure": lightning.FailurePolicy(retries=0),
            **settings,
        }
    ).fit(solve or app(model.url), train=TRAIN, validation=HELD_OUT)


def gepa(model: Knowing, **options: Any) -> Any:
    return lightning.GEPA(
        **{"reflection": f"{model.url}#reflecting", "budget": 110, "minibatch": 3, **options}
    )


@dataclass
class Records:
    rollouts: list[Rollout]
    calls: dict[str, list[Call]]
    prompts: list[ResourceVersion]
    reflections: list[ResourceVersion]


def records(folder: Path) -> Records:
    async def read() -> Records:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            rollouts = await store.find_rollouts(folder.name)
            calls = await store.get_calls([rollout.id for rollout in rollouts])
            prompts = await store.list_resources(folder.name, "expert")
            return Records(rollouts, calls, prompts, await store.list_resources(folder.name, "reflections/0"))

    return asyncio.run(read())


def test_gepa_improves_a_hosted_agents_prompt_within_its_budget(tmp_path: Path, model: Knowing) -> None:
    summary = fit(tmp_path / "run", model, gepa(model))
    (found,) = summary.searches
    assert found.reporting[1] > found.reporting[0] == 0.0
    assert found.verdict == "better than the seed"
    assert summary.verdict is not None
    assert summary.verdict.sentence.startswith("Improved: the prompts are better than the seed")
    assert (found.rollouts, found.reflections) == (
        len(records(tmp_path / "run").rollouts),
        len(model.reflected),
    )
    assert found.rollouts <= 110
    assert found.tokens == 60 * len(model.reflected)
    read = records(tmp_path / "run")
    newest = max(read.prompts, key=lambda each: each.chosen_at or 0.0)
    assert newest.uri == found.prompts["expert"][1] != SEED
    assert {each.author for each in read.prompts} == {"app", "gepa"}
    assert [json.loads(str(each.uri))["question"] for each in read.reflections] == model.reflected
    assert "fact" in model.reflected[0]
    assert "Reward: 0" in model.reflected[0]
    assert f"+{newest.uri}" in found.differences()


def test_candidates_that_run_at_once_never_mix_and_others_keep_their_prompt(
    tmp_path: Path, model: Knowing
) -> None:
    fit(tmp_path / "run", model, gepa(model, at_once=3))
    read = records(tmp_path / "run")
    texts = {each.version: each.uri for each in read.prompts}
    assert len(texts) > 3
    for rollout in read.rollouts:
        told = {call.agent: call.request["messages"][0]["content"] for call in read.calls[rollout.id]}  # type: ignore[index,call-overload]
        assert told == {"expert": texts[rollout.prompt_versions["expert"]], "other": SEED}


def test_the_same_seed_gives_the_same_search(tmp_path: Path, model: Knowing) -> None:
    one, two = (fit(tmp_path / name / "run", model, gepa(model)).searches for name in ("a", "b"))
    assert one == two


def killed(folder: Path, model: Knowing, search: Any, after: int) -> None:
    """The same run in a process that is killed when so many rollouts have begun."""
    pid = os.fork()
    if pid == 0:
        begun = Counter[str]()
        inner = app(model.url)

        async def solve(task: lightning.Task) -> float:
            begun["rollouts"] += 1
            if begun["rollouts"] > after:
                os.kill(os.getpid(), signal.SIGKILL)
            return float(await inner(task))

        solve.__qualname__ = inner.__qualname__
        fit(folder, model, search, solve, resume=(folder / "run.json").exists())
        os._exit(0)
    os.waitpid(pid, 0)


def apo(model: Knowing) -> Any:
    return lightning.APO(reflection=f"{model.url}#reflecting", budget=110, beam=2, branches=2)


def test_apo_improves_a_prompt_by_critique_and_edit(tmp_path: Path, model: Knowing) -> None:
    found = fit(tmp_path / "run", model, apo(model)).searches[0]
    assert found.reporting[1] > found.reporting[0] == 0.0
    assert found.rollouts <= 110
    assert found.prompts["expert"][1].startswith(f"{SEED} fact ")


def test_apo_goes_on_after_a_round_whose_proposals_can_not_be_used(tmp_path: Path, model: Knowing) -> None:
    asked: list[str] = []

    def reflect(question: str) -> str:
        asked.append(question)
        return "half \ud83d" if len(asked) > 2 else f"```\n{SEED}\n```"  # the first proposal changes nothing

    search = lightning.APO(reflection=reflect, budget=60, beam=1, branches=1)
    found = fit(tmp_path / "run", model, search).searches[0]
    assert found.refused == 1
    assert found.candidates == 2
    assert {version.uri for version in records(tmp_path / "run").prompts} >= {SEED, "half \ufffd"}


def test_a_search_that_is_killed_in_its_report_finds_the_same_within_its_tokens(
    tmp_path: Path, model: Knowing
) -> None:
    search = replace(apo(model), tokens=400)
    calm = fit(tmp_path / "calm" / "run", model, search)
    assert calm.searches[0].tokens >= 400
    killed(tmp_path / "killed" / "run", model, search, calm.searches[0].rollouts - 4)
    summary = fit(tmp_path / "killed" / "run", model, search, resume=True)
    assert summary.searches == calm.searches
    assert calm.searches[0].prompts["expert"][1] != SEED


@pytest.mark.parametrize("kind", ["gepa", "apo", "bootstrap"])
def test_a_search_that_is_killed_again_and_again_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, model: Knowing, kind: str
) -> None:
    searches = {"gepa": gepa(model), "apo": apo(model), "bootstrap": lightning.Bootstrap(budget=60)}
    search = searches[kind]
    calm = fit(tmp_path / "calm" / "run", model, search)
    asked = len(model.reflected)
    for after in (3, 25):
        killed(tmp_path / "killed" / "run", model, search, after)
    summary = fit(tmp_path / "killed" / "run", model, search, resume=True)
    assert summary.searches == calm.searches
    ids = [[each.id for each in records(tmp_path / name / "run").rollouts] for name in ("calm", "killed")]
    assert sorted(ids[0]) == sorted(ids[1])
    assert len(model.reflected) <= 2 * asked + 3  # one may be killed on its way


def test_ctrl_c_ends_a_search_at_once_and_it_can_be_resumed(tmp_path: Path, model: Knowing) -> None:
    begun, inner = itertools.count(1), app(model.url)

    async def solve(task: lightning.Task) -> float:
        if next(begun) == 40:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)
        return float(await inner(task))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(TrainingStopped):
            fit(tmp_path / "run", model, gepa(model), solve)
    finally:
        signal.signal(signal.SIGINT, before)
    assert fit(tmp_path / "run", model, gepa(model), solve, resume=True).searches[0].gain > 0


@pytest.mark.parametrize(
    ("status", "answer", "said"), [(500, None, "it answered 500"), (200, " ", "it is empty")]
)
def test_a_reflecting_model_that_fails_or_is_silent_is_an_error_after_three_tries(
    tmp_path: Path, model: Knowing, status: int, answer: str | None, said: str
) -> None:
    model.status, model.answer = status, answer
    with pytest.raises(TrainingError, match=f"after 3 tries, the last time: .*{said}"):
        fit(tmp_path / "run", model, gepa(model))
    assert len(model.reflected) == 3
    model.status, model.answer = 200, None
    assert fit(tmp_path / "run", model, gepa(model), resume=True).searches[0].gain > 0


def test_a_proposal_that_loses_a_placeholder_is_refused_and_counted(tmp_path: Path, model: Knowing) -> None:
    model.answer = "```\nno placeholder\n```"
    seed = lightning.Prompt("You know: {facts}", ("{facts}",))

    async def solve(task: lightning.Task) -> float:
        messages: Any = [
            {"role": "system", "content": seed.text.replace("{facts}", "a, b")},
            {"role": "user", "content": f"fact {task.input['needs']}"},
        ]
        async with client(model.url) as own:
            with lightning.agent("expert"):
                reply = await own.chat.completions.create(model="m", messages=messages)
        return float(reply.choices[0].message.content == "yes")

    found = fit(tmp_path / "run", model, gepa(model), solve, prompts={"expert": seed}).searches[0]
    assert found.refused == found.reflections > 0
    assert found.candidates == 1
    assert found.verdict == "none of its candidates was better than the seed"
    assert set(model.prompts) == {"You know: a, b"}


def test_bootstrap_answers_none_where_demonstrations_do_not_help(tmp_path: Path, model: Knowing) -> None:
    found = fit(tmp_path / "run", model, lightning.Bootstrap(budget=60)).searches[0]
    assert found.verdict == "none of its candidates was better than the seed"  # it never succeeded
    assert found.versions == {"expert": (0, 0)}


def test_bootstrap_shows_the_first_reply_of_each_rollout_that_went_well() -> None:
    def trial(number: int) -> Trial:
        task = Task(input={"number": number})
        own = Rollout(
            id=f"r{number}", run_id="run", task=task, group_id="g", step=0, reward=float(number > 0)
        )
        calls = [
            Call(
                id=f"{number}-{turn}",
                rollout_id=own.id,
                attempt=1,
                agent="expert",
                trained=False,
                request={"messages": [{"role": "user", "content": f"task {number}, turn {turn}"}]},
                choices=[Choice(message={"role": "assistant", "content": f"reply {turn}"})],
                started_at=float(turn),
                ended_at=float(turn),
            )
            for turn in range(3)
        ]
        return Trial(task, (Episode(own, calls, [], []),))

    shown = examples([trial(number) for number in range(4)], "expert", ())
    assert shown == [(f"task {number}, turn 0", "reply 0") for number in (1, 2, 3)]


def test_bootstrap_finds_demonstrations_that_help(tmp_path: Path, model: Knowing) -> None:
    """With one fact in the seed, its successes show that one; the rewards count any demonstration as help."""

    inner = app(model.url)

    async def solve(task: lightning.Task) -> float:
        told = lightning.prompt("expert", SEED)
        await inner(task)
        return (
            float("Reply:" in told) if task.split == "validation" else float(task.input["number"] in (0, 1))
        )

    found = fit(tmp_path / "run", model, lightning.Bootstrap(budget=60), solve).searches[0]
    assert found.reporting == (0.0, 1.0)
    assert found.prompts["expert"][1].startswith(f"{SEED}\n\nExamples:\n\nInput:\nfact ")


def test_a_winner_whose_gain_may_be_luck_does_not_become_current(tmp_path: Path, model: Knowing) -> None:
    """Demonstrations help on the tasks that choose, and on one of six that report."""
    tasks = [Task(input=each, split="validation") for each in HELD_OUT]
    choosing, reporting = halves(tasks, 0)
    helped = {task.id for task in [*choosing, reporting[0]]}
    inner = app(model.url)

    async def solve(task: lightning.Task) -> float:
        told = lightning.prompt("expert", SEED)
        await inner(task)
        return float(task.split == "train" or ("Reply:" in told and task.id in helped))

    (found,) = fit(tmp_path / "run", model, lightning.Bootstrap(budget=60), solve, seed=0).searches
    assert (found.choosing, found.reporting) == ((0.0, 1.0), (0.0, pytest.approx(1 / 6)))
    assert found.verdict == "no better than the seed, which stays current"
    seed, winner = found.versions["expert"]
    assert winner != seed
    current = max(records(tmp_path / "run").prompts, key=lambda each: each.chosen_at or 0.0)
    assert current.version == seed


def test_what_can_not_be_searched_is_refused_at_start(tmp_path: Path, model: Knowing) -> None:
    with pytest.raises(ConfigError, match="nothing to improve"):
        fit(tmp_path / "a", model, gepa(model), prompts={})
    with pytest.raises(ConfigError, match=r"budget=20\) is too small"):
        fit(tmp_path / "b", model, gepa(model, budget=20))
    with pytest.raises(ConfigError, match=r"is in none of .* calls"):
        fit(tmp_path / "c", model, gepa(model), prompts={"expart": SEED + " more"})
    with pytest.raises(ConfigError, match="has no weights for a remote gateway"):
        fit(tmp_path / "d", model, gepa(model), remote="gateway")


def test_an_agent_without_an_endpoint_is_told_that_the_run_has_no_model(
    tmp_path: Path, model: Knowing
) -> None:
    async def solve(task: lightning.Task) -> float:
        messages: Any = [{"role": "system", "content": SEED}]
        async with client(None, "none") as own:
            with lightning.agent("expert"):
                await own.chat.completions.create(model="m", messages=messages)
        return 1.0

    with pytest.raises(TrainingError, match="this run has no model of its own"):
        fit(tmp_path / "run", model, gepa(model), solve)


def test_halves_hold_each_task_once_and_intervals_hold_the_mean() -> None:
    tasks = [Task(input={"n": n}, split="validation") for n in range(7)]
    choosing, reporting = halves(tasks + tasks, 0)
    assert len(choosing) == 4
    assert {task.id for task in choosing + reporting} == {task.id for task in tasks}
    assert interval([0.5] * 8, 0) == (0.5, 0.5)
    low, high = interval([0.0, 1.0] * 20, 0)
    assert 0.3 < low < 0.5 < high < 0.7


def test_a_search_whose_first_trials_all_failed_is_mended_and_resumed(tmp_path: Path, model: Knowing) -> None:
    async def solve(task: lightning.Task) -> float:
        if not model.reflected:
            raise ConnectionError("away")
        return float(await inner(task))

    inner = app(model.url)
    with pytest.raises(TrainingError, match="away"):
        fit(tmp_path / "run", model, lightning.Bootstrap(budget=60), solve)
    model.reflected.append("it is back")
    found = fit(tmp_path / "run", model, lightning.Bootstrap(budget=60), solve, resume=True).searches[0]
    assert found.rollouts <= 60


def joined(folder: Path, phases: Any, **settings: Any) -> Summary:
    """A search and an algorithm in one run of the local engine; demonstrations are what is rewarded."""

    async def solve(task: lightning.Task) -> float:
        told = lightning.prompt("writer", SEED)
        messages: Any = [{"role": "system", "content": told}, {"role": "user", "content": str(task.input)}]
        async with client(None, "none") as own:
            with lightning.agent("writer"):
                await own.chat.completions.create(model="policy", messages=messages, max_completion_tokens=6)
        if task.split == "validation":
            return float("Reply:" in told)
        return float(next(rewards))

    rewards = itertools.count(1)
    return lightning.Trainer(
        prompts={"writer": SEED},
        algorithm=phases,
        backend=lightning.LocalBackend("tiny"),
        folder=folder,
        progress=False,
        **settings,
    ).fit(solve, train=TRAIN[:4], validation=HELD_OUT[:4])


@pytest.mark.parametrize("first", ["search", "update"])
def test_a_search_stands_before_or_after_an_algorithm_in_one_run(tmp_path: Path, first: str) -> None:
    search = lightning.Phase(lightning.Bootstrap(budget=20))
    update = lightning.Phase(lightning.GRPO(group_size=2, tasks_per_step=1), 1)
    phases = [search, update] if first == "search" else [update, search]
    folder = tmp_path / "run"
    joined(folder, phases, steps=1)
    summary = joined(folder, phases, resume=True)
    assert summary.before is not None
    assert summary.after is not None
    assert (summary.before.greedy, summary.after.greedy) == (0.0, 1.0)
    assert [phase.algorithm for phase in summary.phases] == (
        ["bootstrap", "grpo"] if first == "search" else ["grpo", "bootstrap"]
    )
    (found,) = summary.searches
    old, new = found.versions["writer"]
    pinned = {
        rollout.id.removeprefix("run-")[:2]: rollout.prompt_versions["writer"]
        for rollout in records(folder).rollouts
        if "-s" not in rollout.id
    }
    after_one = {"e1": new, "t1": new} if first == "search" else {"e1": old, "t0": old}
    assert pinned == {"e0": old, **after_one, "e2": new}
    read = records(folder)
    assert {call.policy_version for part in read.calls.values() for call in part} == {0, 1}
