"""Measuring a policy in the SQL app: the same prompts, the same database, the same turns, in batches.

The graph of `examples.sql.app` asks one question at a time over HTTP; here all questions go through its steps
together, so that a few hundred take seconds.
"""

from collections import defaultdict

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.sql.app import MAX_REWRITES, State, clean_sql, execute, next_step, read_schema
from examples.sql.prompts import check_prompt, rewrite_prompt, write_prompt
from examples.sql.reward import execution_match
from recipes.answering import answer

Task = dict[str, str]


def run_app(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], greedy: bool
) -> list[State]:
    """The final state of the app on each task."""
    states: list[State] = [
        {"question": t["question"], "database": t["database"], "rewrites": 0} for t in tasks
    ]
    for state in states:
        state.update(read_schema(state))  # type: ignore[typeddict-item]
    asked = [write_prompt(state["schema"], state["question"]) for state in states]
    for state, reply in zip(states, answer(model, tokenizer, asked, greedy), strict=True):
        state["sql"] = clean_sql(reply)
    open_states = states
    for _ in range(MAX_REWRITES + 1):
        open_states = _check(model, tokenizer, open_states, greedy)
        if not open_states:
            break
        asked = [rewrite_prompt(s["schema"], s["question"], s["sql"], s["feedback"]) for s in open_states]
        for state, reply in zip(open_states, answer(model, tokenizer, asked, greedy), strict=True):
            state["sql"] = clean_sql(reply)
            state["rewrites"] += 1
    return states


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], greedy: bool
) -> dict[str, float]:
    """Execution match by form of question, and over all tasks under "all"."""
    states = run_app(model, tokenizer, tasks, greedy)
    rewards = [
        execution_match(s["sql"], t["gold"], t["database"]) for s, t in zip(states, tasks, strict=True)
    ]
    by_form: dict[str, list[float]] = defaultdict(list)
    for task, reward in zip(tasks, rewards, strict=True):
        by_form[task["form"]].append(reward)
    return {name: sum(values) / len(values) for name, values in [*sorted(by_form.items()), ("all", rewards)]}


def _check(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, states: list[State], greedy: bool
) -> list[State]:
    """Run the queries and ask for verdicts; the states that go on to a rewrite."""
    for state in states:
        state.update(execute(state))  # type: ignore[typeddict-item]
    asked = [check_prompt(s["question"], s["sql"], s["feedback"]) for s in states]
    for state, verdict in zip(states, answer(model, tokenizer, asked, greedy), strict=True):
        state["verdict"] = verdict
    return [state for state in states if next_step(state) == "rewrite_query"]
