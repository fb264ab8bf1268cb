"""An app of a framework goes on from a reply that a person wrote: it runs the tool that the reply calls."""

from __future__ import annotations

import json
from collections import Counter

from lightning_core.records.types import Fork
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.forking import read_edit, write_reply
from tests.apps.langgraph_sql_agent import APP, GENERATE
from tests.apps.stage import Script, play, seen


async def test_a_graph_runs_the_edited_query_and_goes_on() -> None:
    store = MemoryStore()
    first = await play(APP, Script(roles=APP.roles), store=store)
    (checked,) = (call for call in first.recorded if call.agent == "check_query")
    assert checked.rollout_id is not None
    message = json.loads(write_reply(checked))
    message["tool_calls"][0]["function"]["arguments"] = '{"query": "SELECT tracks + 33 FROM genre"}'
    edit = read_edit(json.dumps(message), None)
    fork = Fork(rollout_id=checked.rollout_id, call_id=checked.id, reply=edit.reply)
    engine = Script(roles=APP.roles, told=Counter({GENERATE: 1}))
    second = await play(APP, engine, store=store, fork=fork)
    assert (second.error, second.refused, second.said) == (None, [], APP.answer)
    assert [call.agent for call in second.recorded] == [call.agent for call in first.recorded]
    before = first.recorded.index(checked)
    assert seen(second.recorded[:before], "") == seen(first.recorded[:before], "")
    (last,) = engine.requests  # the replies before come from the record, and the edited one from a person
    assert last.messages[-1]["content"] == "[(42,)]"
    edited = next(call for call in second.recorded if call.id == checked.id)
    assert edited.choices[0].message["tool_calls"] == message["tool_calls"]
    assert (edited.choices[0].completion_ids, edited.choices[0].logprobs, edited.trained) == (
        None,
        None,
        False,
    )
