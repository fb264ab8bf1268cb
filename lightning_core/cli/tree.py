"""A rollout's trace as a tree for the terminal."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from lightning_core import transcript
from lightning_core.trace import Item, Node, Trace
from lightning_core.types import Call, Reward, Rollout, Span, ToolEvent

_WORDS = 60
"""Characters shown of a prompt, a reply, arguments or a result."""
_BAD = "red"


def rollout_tree(trace: Trace) -> Tree:
    """One line for each record, under what it belongs to."""
    top = Tree(_rollout(trace.rollout))
    branches: dict[int, Tree] = {}
    for node, parent in trace.walk():
        below = top if parent is None else branches[id(parent)]
        branches[id(node)] = below.add(_line(node))
    return top


def _line(node: Node) -> Text:
    item: Item = node.item
    match item:
        case Call():
            return _call(item)
        case ToolEvent():
            return _tool(item)
        case Span():
            return _span(item)
        case Reward():
            return _reward(item)


def _rollout(rollout: Rollout) -> Text:
    reward = "" if rollout.reward is None else f", reward {rollout.reward:+.3f}"
    line = Text.assemble(
        (f"rollout {rollout.id}", "bold"),
        f"  task {rollout.task.id}, {rollout.split}, step {rollout.step}, "
        f"attempt {rollout.attempts} of {rollout.max_attempts}: {rollout.status}{reward}",
    )
    return line.append(f"\n{rollout.error}", _BAD) if rollout.error else line


def _call(call: Call) -> Text:
    line = Text.assemble((call.agent, "bold cyan"), f"  {_tokens(call)}{_seconds(call)}")
    if call.endpoint is not None:
        line.append(f"  seen only, answered by {call.endpoint}", "yellow")
    elif not call.trained:
        line.append("  not trained", "dim")
    if call.status != "completed":
        line.append(f"  {call.status}: {_short(call.error or '')}", _BAD)
    line.append(f"\n{_short(transcript.text(transcript.prompt(call)[-1:]))}", "dim")
    return line.append(f" → {_short(transcript.text(transcript.replies(call)))}")


def _tokens(call: Call) -> str:
    read, written = transcript.tokens_read(call), transcript.tokens_written(call)
    return "" if read is None and written is None else f"{read or 0} → {written or 0} tokens, "


def _tool(event: ToolEvent) -> Text:
    line = Text.assemble((event.name, "magenta"), f"({_short(event.arguments)})  {_seconds(event)}")
    if event.error is not None:
        return line.append(f"  {event.error_type or 'failed'}: {_short(event.error)}", _BAD)
    return line.append(f" → {_short(event.result or '')}")


def _span(span: Span) -> Text:
    agent = f", agent {span.agent}" if span.agent else ""
    line = Text(f"span {span.name}{agent}  {_seconds(span)}", "blue")
    return line if span.error is None else line.append(f"  failed: {_short(span.error)}", _BAD)


def _reward(reward: Reward) -> Text:
    line = Text(f"{reward.kind} reward {reward.value:+.3f}", "green" if reward.value > 0 else "yellow")
    if reward.agent is not None and reward.kind == "final":  # an intermediate one lies under its call
        line.append(f" of {reward.agent}", "bold cyan")
    line.append(f"  by {reward.source}", "dim")
    return line.append(f": {_short(reward.reason)}") if reward.reason else line


def _seconds(item: Call | ToolEvent | Span) -> str:
    return f"{item.ended_at - item.started_at:.2f} s"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WORDS else line[: _WORDS - 1] + "…"
