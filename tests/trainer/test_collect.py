"""From records to trajectories: nothing that was not sampled, nothing twice."""

from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest

import lightning_core as lightning
from lightning_core.errors import TokenIdsError
from lightning_core.experience.returns import last_final, total_return, with_final
from lightning_core.experience.transitions import to_trajectory
from lightning_core.records.types import Call, Choice, Reward, Rollout, Status, Task
from tests.build import make_call
from tests.trainer.watching import PER_STEP, Watched, fit, grpo, records


def call(number: int, agent: str = "writer", trained: bool = True, **changes) -> Call:
    fields = {
        "agent": agent,
        "trained": trained,
        "prompt_ids": [1, 2, number],
        "choices": [Choice(completion_ids=[5, 6], logprobs=[-0.5, -0.25])],
        "policy_version": 3,
    }
    return make_call(f"c{number}", at=float(number), **{**fields, **changes})


rollout = Rollout(
    id="r",
    run_id="run",
    task=Task(id="t", input={}),
    group_id="g",
    step=0,
    status=Status.SUCCEEDED,
    attempts=1,
    reward=1.0,
)


def test_completed_calls_become_transitions_with_their_ids_and_versions():
    trajectory = to_trajectory(rollout, [call(1), call(2, "checker", trained=False)], [])
    assert [(t.agent, t.trained, list(t.prompt_ids), t.policy_version) for t in trajectory.transitions] == [
        ("writer", True, [1, 2, 1], 3),
        ("checker", False, [1, 2, 2], 3),
    ]
    assert (trajectory.reward, trajectory.group_id, trajectory.task_id) == (1.0, "g", "t")


def test_cancelled_and_failed_calls_are_not_trained_on():
    trajectory = to_trajectory(rollout, [call(1, status="cancelled"), call(2, status="failed"), call(3)], [])
    assert [t.call_id for t in trajectory.transitions] == ["c3"]


def test_a_call_that_was_only_seen_is_never_trained_on_whatever_its_record_says():
    """A worker writes such a record itself."""
    seen, bare = call(2, endpoint="https://elsewhere"), call(3, endpoint="https://elsewhere", prompt_ids=None)
    transitions = to_trajectory(rollout, [call(1), seen, bare], []).transitions
    assert [t.call_id for t in transitions if t.trained] == ["c1"]


def test_each_choice_of_a_call_is_a_transition():
    choices = [Choice(index=i, completion_ids=[i], logprobs=[-1.0]) for i in range(3)]
    assert [t.choice for t in to_trajectory(rollout, [call(1, choices=choices)], []).transitions] == [0, 1, 2]


def test_intermediate_rewards_go_to_the_call_they_are_addressed_to():
    rewards = [
        Reward(rollout_id="r", attempt=1, value=-0.1, kind="intermediate", call_id="c1"),
        Reward(rollout_id="r", attempt=1, value=-0.2, kind="intermediate", call_id="c1"),
        Reward(rollout_id="r", attempt=1, value=1.0, kind="final"),
    ]
    trajectory = to_trajectory(rollout, [call(1), call(2)], rewards)
    assert [t.reward for t in trajectory.transitions] == pytest.approx([-0.3, 0.0])


def test_an_intermediate_reward_counts_once_however_many_choices_its_call_has():
    choices = [Choice(index=i, completion_ids=[i], logprobs=[-1.0]) for i in range(4)]
    rewards = [
        Reward(rollout_id="r", attempt=1, value=-0.1, kind="intermediate", call_id="c1"),
        Reward(rollout_id="r", attempt=1, value=-0.2, kind="intermediate", call_id="cancelled"),
    ]
    calls = [call(1, choices=choices), call(2, id="cancelled", status="cancelled")]
    assert to_trajectory(rollout, calls, rewards).intermediate == pytest.approx(-0.3)


def of_call(value: float, call_id: str) -> Reward:
    return Reward(rollout_id="r", attempt=1, value=value, kind="intermediate", call_id=call_id)


def test_a_reward_finds_its_call_by_the_id_of_the_reply_or_of_a_tool_call():
    asking = Choice(completion_ids=[1], logprobs=[-1.0], message={"tool_calls": [{"id": "look-1"}]})
    calls = [call(1, response_id="chatcmpl-1"), call(2, choices=[asking])]
    rewards = [of_call(0.5, "chatcmpl-1"), of_call(0.25, "c1"), of_call(-1.0, "look-1")]
    trajectory = to_trajectory(rollout, calls, rewards)
    assert [t.reward for t in trajectory.transitions] == [0.75, -1.0]
    assert trajectory.intermediate == -0.25


def test_a_reward_about_an_id_that_several_replies_bear_is_no_call_s(caplog):
    calls = [call(1, response_id="0"), call(2, response_id="0")]
    trajectory = to_trajectory(rollout, calls, [of_call(0.5, "0"), of_call(0.25, "elsewhere")])
    assert [t.reward for t in trajectory.transitions] == [0.0, 0.0]
    assert trajectory.intermediate == 0.75
    assert "rollout r: rewards are about '0', 'elsewhere', which is no id" in caplog.text


def test_the_last_final_reward_counts_for_the_rollout_and_for_each_agent():
    def final(value: float, agent: str | None = None) -> Reward:
        return Reward(rollout_id="r", attempt=1, value=value, agent=agent)

    rewards = [final(0.1), final(0.2, "writer"), final(0.3), final(0.4, "writer"), final(0.5, "critic")]
    trajectory = to_trajectory(rollout, [call(1)], rewards)
    assert (trajectory.reward, trajectory.agent_rewards) == (0.3, {"writer": 0.4, "critic": 0.5})
    assert [trajectory.final(name) for name in ("writer", "critic", "checker")] == [0.4, 0.5, 0.3]


def test_the_last_is_the_one_given_last_whichever_was_stored_first():
    later = Reward(rollout_id="r", attempt=1, value=1.0, created_at=20.0)
    earlier = Reward(rollout_id="r", attempt=1, value=0.0, created_at=10.0)
    assert to_trajectory(rollout, [call(1)], [later, earlier]).reward == 1.0
    assert with_final(rollout, [later, earlier]).reward == 1.0
    assert last_final([later, earlier], 1) == 1.0


def test_a_final_reward_of_an_agent_who_made_no_call_is_named_with_those_who_did(caplog):
    calls = [call(1), call(2, "critic", trained=False)]
    given = [
        Reward(rollout_id="r", attempt=1, value=0.5, agent=agent) for agent in ("writer", "critic", None)
    ]
    to_trajectory(rollout, calls, given)
    assert caplog.text == ""
    given.append(Reward(rollout_id="r", attempt=1, value=0.5, agent="writter"))
    to_trajectory(rollout, calls, given)
    assert "rollout r: final rewards are for 'writter', who made no call in it" in caplog.text
    assert "Agents seen in it: 'critic', 'writer'" in caplog.text


def test_a_penalised_rollout_has_its_penalty_for_every_agent():
    failed = rollout.model_copy(update={"status": Status.FAILED, "reward": -1.0})
    given = [Reward(rollout_id="r", attempt=1, value=1.0, agent=agent) for agent in (None, "writer")]
    trajectory = to_trajectory(failed, [call(1)], given)
    assert (trajectory.reward, trajectory.final("writer")) == (-1.0, -1.0)


def test_the_penalty_of_a_rollout_is_its_whole_return():
    failed = rollout.model_copy(update={"status": Status.FAILED, "reward": -1.0})
    given = [
        Reward(rollout_id="r", attempt=1, value=-0.2, kind="intermediate", call_id=call_id)
        for call_id in ("c1", None)
    ]
    trajectory = to_trajectory(failed, [call(1)], given)
    assert total_return(trajectory, "writer") == -1.0
    assert [t.reward for t in trajectory.transitions] == [0.0]
    ended = to_trajectory(rollout, [call(1)], given)
    assert (total_return(ended, "writer"), ended.transitions[0].reward) == (1.0 - 0.4, -0.2)


def test_a_version_that_is_not_known_is_no_version():
    calls = [call(1, policy_version=None), call(2, policy_version=0)]
    assert [t.policy_version for t in to_trajectory(rollout, calls, []).transitions] == [None, 0]


def test_a_trained_call_without_token_ids_is_refused_by_name():
    bare = [Choice(message={"content": "hello"})]
    with pytest.raises(TokenIdsError, match=r"'c1'.*'writer'"):
        to_trajectory(rollout, [call(1, choices=bare, prompt_ids=None)], [])
    assert not to_trajectory(rollout, [call(1, trained=False, choices=bare, prompt_ids=None)], []).transitions


class Breaks(httpx.AsyncHTTPTransport):
    """Loses the first reply to each call, after the server has sent it."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        await response.aread()
        call_id = request.headers["x-lightning-call"]
        if call_id not in self.lost:
            self.lost.add(call_id)
            raise httpx.ReadError("connection reset", request=request)
        return response


def test_of_a_call_that_the_client_sends_again_only_the_reply_that_it_got_is_trained_on(tmp_path: Path):
    got: list[str] = []
    turns: Counter[str] = Counter()

    async def app(task: lightning.Task) -> float:
        breaking = httpx.AsyncClient(transport=Breaks())
        async with openai.AsyncOpenAI(api_key="x", http_client=breaking) as client:
            with lightning.agent("writer"):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": "go"}], max_completion_tokens=2
                )
        got.append(reply.id)
        turns[task.id] += 1
        return float(turns[task.id] % 2)

    backend = Watched()
    fit(tmp_path / "run", grpo(), app, backend=backend, steps=1)
    (batch,) = backend.batches[0]
    trained = [t.call_id for each in batch for t in each.transitions if t.trained]
    calls = [call for part in records(tmp_path / "run").calls.values() for call in part]
    assert len(got) == len(trained) == PER_STEP
    assert len(calls) == 2 * PER_STEP
    assert sorted(call.response_id for call in calls if call.id in trained) == sorted(got)
