"""The pages' data are the store's and the credit methods' own."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from lightning_core.cli.runs import list_runs as print_runs
from lightning_core.cli.runs import read_line
from lightning_core.cli.training import write_page
from lightning_core.console.asking import PageRequest
from lightning_core.console.reasons import show_step
from lightning_core.console.rollouts import show_rollout
from lightning_core.console.runs import list_runs, show_comparison, show_run
from lightning_core.console.sandbox import show_sandbox
from lightning_core.console.saving import save_page
from lightning_core.console.server import to_json
from lightning_core.console.shelf import Shelf
from lightning_core.credit.whole import uniform
from lightning_core.errors import ConfigError
from lightning_core.insight.verdict import say
from lightning_core.insight.why import CHANGED, CREDIT, Method, reasons_of
from lightning_core.plugins import load_plugins
from lightning_core.records.types import TRIED, Choice, Metrics, Reward, Rollout, Run, Status, Task
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.plan import RolloutPlan
from tests.build import make_call
from tests.console.conftest import JOB, STEPS, command

Ask = Any


@pytest.fixture(scope="module")
def ask(address: str) -> Iterator[Ask]:
    parts = urlsplit(address)
    with httpx.Client(base_url=f"{parts.scheme}://{parts.netloc}", trust_env=False, timeout=60.0) as client:
        client.get(address)

        def answer(name: str, **given: Any) -> Any:
            reply = client.get(f"/api/{name}", params={"run": "finished", **given})
            assert reply.status_code == 200, reply.text
            return reply.json()

        yield answer


async def test_curves_are_the_stored_metrics(ask: Ask, finished: Path) -> None:
    async with SqliteStore(f"sqlite:///{finished}/store.db") as store:
        metrics = await store.list_metrics("finished")
    run = ask("run")
    assert run["steps"] == [each.step + 1 for each in metrics] == list(range(1, STEPS + 1))
    assert run["columns"]["reward"] == [each.values["reward"] for each in metrics]
    newer = ask("run", since=STEPS - 1)
    assert newer["steps"] == [STEPS]
    assert newer["evaluations"] == run["evaluations"]


def test_the_list_of_runs_says_of_the_reward_what_the_summary_says(ask: Ask, finished: Path) -> None:
    [run] = ask("runs")
    summary = json.loads((finished / "summary.json").read_text())
    assert run["change"]["kind"] == "held-out"
    ends = summary["before"]["greedy"], summary["after"]["greedy"]
    assert (run["change"]["first"], run["change"]["last"]) == ends
    line = asyncio.run(read_line(finished))
    assert line.reward == " → ".join(map(say, ends))
    assert run["model"] == "tiny"


async def test_the_list_has_the_steps_and_rewards_of_the_terminal_s(tmp_path: Path) -> None:
    """The second step is of demonstrations, and the fourth goes on."""
    folder, url = tmp_path / "r", f"sqlite:///{tmp_path}/r/store.db"
    with RunFolder(folder, resume=False) as made:
        made.write_address(None, None)
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="r"))
        for step, values in enumerate(({"reward": 0.25}, {"demonstrations": 4.0}, {"reward": 0.75})):
            await store.put_metrics(Metrics(run_id="r", step=step, values=values))
        await store.enqueue([played("r", f"r-{step}", step, reward=1.0) for step in (0, 2, 3)])
    async with Shelf(str(folder), load_plugins()) as shelf:
        [run] = await list_runs(PageRequest(shelf, []))
    assert (run["steps"], run["rewards"]) == (3, [0.25, 0.75])
    assert run["change"] == {"kind": "training", "first": 0.25, "last": 0.75, "steps": 1}
    line = await read_line(folder)
    assert (line.steps, line.reward) == (3, "0.25 → 0.75 *")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"run": "x"}', "\xff"])
async def test_a_folder_that_does_not_say_which_run_it_is_breaks_no_list(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with RunFolder(tmp_path / "good", resume=False) as made:
        made.write_address(None, None)
    async with SqliteStore(made.store_url) as store:
        await store.put_run(Run(id="good"))
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "run.json").write_text(content, encoding="latin-1")
    async with Shelf(str(tmp_path), load_plugins()) as shelf:
        listed = {run["name"]: run.get("error") for run in await list_runs(PageRequest(shelf, []))}
        with pytest.raises(ConfigError, match="does not say which run this is"):
            await show_run(PageRequest(shelf, [("run", "bad")]))
    assert listed["good"] is None
    assert "does not say which run this is" in str(listed["bad"])
    await print_runs(tmp_path, [tmp_path / "good", bad])
    assert "unreadable" in capsys.readouterr().out
    assert (await asyncio.to_thread(save_page, str(tmp_path), load_plugins(), tmp_path / "page")).exists()
    with pytest.raises(ConfigError, match="does not say which run this is"):
        Shelf(str(bad), load_plugins())


async def test_a_side_of_a_trial_whose_rollouts_all_failed_is_not_compared(tmp_path: Path) -> None:
    url, trial = f"sqlite:///{tmp_path}/store.db", "r-try-1"
    failed: dict[str, Any] = {"status": Status.FAILED, "error": "ModelError: no weights"}
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="r"))
        config: dict[str, Any] = {TRIED: "r", "arms": [[0, {}], [1, {}]]}
        await store.put_run(Run(id=trial, status="finished", config=config))
        await store.enqueue([played(trial, f"{trial}-s0-a{n}-0", 0, reward=1.0, number=n) for n in range(3)])
        await store.enqueue([played(trial, f"{trial}-s0-b{n}-0", 0, number=n, **failed) for n in range(3)])
    async with Shelf(url, load_plugins()) as shelf:
        [told] = (await show_sandbox(PageRequest(shelf, [("run", "r")])))["trials"]
    assert [side["failed"] for side in told["failed"]] == [0, 3]
    assert told["failed"][1]["error"] == "ModelError: no weights"
    assert told["difference"] is None


def played(
    run: str, name: str, step: int, reward: float | None = None, number: int = 0, **more: Any
) -> Rollout:
    """With a reward it has ended; without one and without more it waits."""
    ended = {} if reward is None else {"status": Status.SUCCEEDED, "reward": reward}
    task = Task(input={"number": number})
    return Rollout(id=name, run_id=run, group_id="g", step=step, task=task, **ended, **more)


async def test_an_integer_of_more_than_64_bits_is_shown_as_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    task = Task(input={"number": 2**64, "more": [{"small": 1 - 2**63, "said": "half a parrot \ud83e"}]})
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="r"))
        await store.enqueue([Rollout(id="r-0", run_id="r", group_id="g", step=0, task=task)])
    async with Shelf(url, load_plugins()) as shelf:
        told = json.loads(to_json(await show_rollout(PageRequest(shelf, [("run", "r"), ("id", "r-0")]))))
    inner = {"small": 1 - 2**63, "said": "half a parrot \ufffd"}
    assert told["input"] == {"number": str(2**64), "more": [inner]}


async def test_a_page_that_can_t_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path / "r", resume=False) as made:
        made.write_address(None, None)
    async with SqliteStore(made.store_url) as store:
        await store.put_run(Run(id="r", provenance={"versions": None}))
    await asyncio.to_thread(write_page, made.path)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("no page     TypeError: ")


def test_the_verdict_is_that_of_the_run(ask: Ask, finished: Path) -> None:
    told = ask("run")["verdict"]
    assert told["sentence"]
    assert (
        told
        == ask("run", since=STEPS)["verdict"]
        == json.loads((finished / "summary.json").read_text())["verdict"]
    )


async def test_the_verdict_knows_a_step_whose_rollouts_it_had_seen(tmp_path: Path) -> None:
    """They end before the step's numbers are stored."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with SqliteStore(url) as store, Shelf(url, load_plugins()) as shelf:
        await store.put_run(Run(id="r"))
        await store.enqueue([played("r", "r-0", 0, reward=1.0)])
        for step, since in enumerate((None, 1, 2)):
            asked = [("run", "r"), *([] if since is None else [("since", str(since))])]
            before = await show_run(PageRequest(shelf, asked))
            assert before["verdict"]["numbers"]["steps"] == step
            await store.put_metrics(Metrics(run_id="r", step=step, values={"reward": 1.0}))
            after = await show_run(PageRequest(shelf, asked))
            assert after["verdict"]["numbers"]["steps"] == step + 1


def test_the_terms_add_up_to_the_advantage_of_each_call(ask: Ask) -> None:
    credited = 0
    for step in range(STEPS):
        for row in ask("rollouts", step=step, split="train")["rows"]:
            told = ask("rollout", id=row["id"])["reasons"]
            assert told["problem"] is None
            for reason in (one for call in told["calls"].values() for one in call):
                if reason["advantage"] is None:
                    assert reason["sentence"].startswith("No advantage: ")
                    continue
                credited += 1
                terms = sum(term["amount"] for term in reason["terms"])
                assert (terms - reason["mean"]) / reason["unit"] == pytest.approx(
                    reason["advantage"], abs=1e-6
                )
                for term in reason["terms"]:
                    worth = sum(part["factor"] * part["value"] for part in term["parts"])
                    assert not term["parts"] or worth == pytest.approx(term["value"], abs=1e-6)
    assert credited > 0
    assert credited == sum(ask("run")["columns"]["agent/writer/transitions"])


def test_the_terminal_says_why_too(ask: Ask, finished: Path) -> None:
    group = next(g for s in range(STEPS) for g in ask("step", step=s)["groups"] if g["deviation"])
    rollout = group["rollouts"][0]["id"]
    shown = subprocess.run(
        command("show", str(finished), "--rollout", rollout, "--full"), capture_output=True, text=True
    ).stdout
    (reason,) = next(iter(ask("rollout", id=rollout)["reasons"]["calls"].values()))
    assert f"advantage {reason['advantage']:+.3f}, {reason['share']:.1%} of the loss of its step" in shown
    assert "agent 'critic' is not trained" in shown


def test_records_that_were_changed_after_the_update_are_named(ask: Ask, finished: Path, tmp_path: Path):
    copy = shutil.copytree(finished, tmp_path / "finished")
    group = next(g for s in range(STEPS) for g in ask("step", step=s)["groups"] if g["deviation"])
    first, last = sorted(group["rollouts"], key=lambda one: one["return"])[:: len(group["rollouts"]) - 1]

    async def swap() -> list[tuple[str | None, str | None]]:
        async with SqliteStore(f"sqlite:///{copy}/store.db") as store:
            rollouts = await store.get_rollouts([first["id"], last["id"]])
            told = [(await reasons_of(store, one))[1] for one in rollouts]
            await store.add_rewards(
                [Reward(rollout_id=last["id"], attempt=1, value=-5.0, kind="final", source="me")]
            )
            return [(old, (await reasons_of(store, one))[1]) for old, one in zip(told, rollouts, strict=True)]

    assert asyncio.run(swap()) == [(None, CHANGED), (None, CHANGED)]


async def test_groups_are_counted_by_what_was_compared(tmp_path: Path) -> None:
    """In group a the rollouts earned the same, and the writer did not; in group b it is the other way."""
    own = {"a": ((1.0, 0.0), (1.0, 1.0)), "b": ((0.0, 1.0), (1.0, 1.0)), "c": ((1.0, 1.0), (1.0, 1.0))}
    await write_groups(url := f"sqlite:///{tmp_path}/store.db", own)
    async with Shelf(url, load_plugins()) as shelf:
        groups = (await show_step(PageRequest(shelf, [("run", "r"), ("step", "0")])))["groups"]
    told = {group["id"]: (group["deviation"], group["taught"]) for group in groups}
    assert told == {"a": (0.0, True), "b": (0.5, False), "c": (0.0, False)}


async def write_groups(url: str, groups: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Record a step of run `r`: each rollout's reward, and that of its writer, who made its one call."""
    method = Method(uniform).written()
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="r", config={CREDIT: [method]}, status="finished"))
        for group, rewards in groups.items():
            task = Task(id=group, input={"question": f"question {group}"})
            made = [
                Rollout(
                    id=f"{group}-{n}", run_id="r", task=task, group_id=group, step=0, place=f"{group}-{n}"
                )
                for n in range(len(rewards))
            ]
            await store.enqueue(made)
            for attempt, (whole, own) in zip(await store.lease("w", len(made), 60.0), rewards, strict=True):
                name = attempt.rollout.id
                said = [Choice(completion_ids=[4, 5], logprobs=[-1.0, -1.0], message={"content": "so"})]
                await store.add_call(
                    make_call(f"c-{name}", rollout_id=name, agent="writer", prompt_ids=[1, 2], choices=said)
                )
                await store.add_rewards([Reward(rollout_id=name, attempt=1, value=own, agent="writer")])
                await store.finish(attempt, reward=whole)


def test_with_the_run_s_own_settings_nothing_changes(ask: Ask) -> None:
    for step in range(STEPS):
        assert ask("whatif", step=step)["moved"] == 0
        own = ask("whatif", step=step, credit="own", baseline="own", scale="own", air="own")
        assert own["changes"] == []


def test_another_scale_moves_what_it_scales(ask: Ask) -> None:
    step = next(s for s in range(STEPS) if any(g["deviation"] for g in ask("step", step=s)["groups"]))
    made = ask("whatif", step=step, scale="none")
    assert made["moved"] > 0
    sizes = [abs((one["after"] or 0) - (one["before"] or 0)) for one in made["changes"]]
    assert sizes == sorted(sizes, reverse=True)


def test_another_reward_function_turns_every_advantage(ask: Ask) -> None:
    step = next(s for s in range(STEPS) if any(g["deviation"] for g in ask("step", step=s)["groups"]))
    assert ask("step", step=step)["rewards"] == ["turned"]
    made = ask("whatif", step=step, reward="turned", air="none", credit="uniform")["changes"]
    plain = ask("whatif", step=step, air="none", credit="uniform", scale="none", reward="turned")["changes"]
    for one in plain:
        assert one["before"] * one["after"] < 0
    assert {one["rollout"] for one in made} == {one["rollout"] for one in plain}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("nowhere.py:reward", "there is no file 'nowhere.py'"),
        (f"{JOB}:absent", "defines no function 'absent'"),
    ],
)
def test_a_reward_function_that_is_not_there_is_refused(given: str, problem: str, finished: Path) -> None:
    done = subprocess.run(
        command("console", str(finished), "--reward", given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert problem in " ".join(done.stderr.split())


def test_a_page_on_disk_takes_no_reward_function(finished: Path, tmp_path: Path) -> None:
    asked = command("console", str(finished), "--reward", f"{JOB}:turned", "--save", str(tmp_path / "page"))
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--reward is for the live page" in done.stderr
    assert not (tmp_path / "page").exists()


def test_the_most_surprising_come_first_when_asked_for(ask: Ask) -> None:
    found = [row["surprise"] for row in ask("rollouts", order="surprising")["rows"]]
    assert found == sorted(found, reverse=True)
    assert sorted(found) == sorted(row["surprise"] for row in ask("rollouts")["rows"])
    assert len(set(found)) > 1


def test_each_sampled_token_is_read(ask: Ask) -> None:
    row = ask("rollouts", split="train")["rows"][0]
    for node in ask("rollout", id=row["id"])["nodes"]:
        for reply in node.get("replies", ()):
            assert len(reply["pieces"]) == len(reply["ids"]) == len(reply["logprobs"])
            said = "".join(part["content"] for part in reply["parts"])
            assert said.strip() in "".join(reply["pieces"])


def test_the_parts_of_the_time_are_the_steps(ask: Ask) -> None:
    time = ask("time")
    assert sum(part["seconds"] for part in time["parts"]) == pytest.approx(time["seconds"])
    assert {agent["name"] for agent in time["agents"]} == {"writer", "critic"}


async def test_runs_are_compared_by_their_last_whole_evaluation(tmp_path: Path) -> None:
    """Neither by one that was withdrawn, nor by what a search has tried."""
    url = f"sqlite:///{tmp_path}/store.db"
    tasks = [Task(input={"number": number}, split="validation") for number in range(3)]
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="r"))
        await store.enqueue(RolloutPlan("r", 0).evaluate(tasks))
        for attempt in await store.lease("w", 6, 60.0):
            await store.finish(attempt, reward=attempt.rollout.sampling.temperature == 0.0)
        withdrawn = RolloutPlan("r", 1).evaluate(tasks)
        await store.enqueue(withdrawn)
        await store.cancel([one.id for one in withdrawn])
        await store.enqueue(RolloutPlan("r", 2).search([("a", "0", {}, tasks[0])], 1))
        for attempt in await store.lease("w", 1, 60.0):
            await store.finish(attempt, reward=0.25)
    async with Shelf(url, load_plugins()) as shelf:
        told = await show_comparison(PageRequest(shelf, [("with", "r")]))
    assert [(one["tasks"], one["mean"]) for one in told["held_out"]] == [(3, 1.0)]


def test_a_run_equals_itself(ask: Ask) -> None:
    made = ask("compare", **{"with": ["finished", "finished"]})
    assert made["settings"] == {}
    assert made["tasks"] == []
