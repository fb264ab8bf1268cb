"""The command's verbs; each says in its help what it does, what it writes and what comes next."""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import io
import logging
import signal
import sys
from collections import Counter
from types import FrameType
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main

from lightning_core import __version__, telemetry
from lightning_core.errors import LightningError
from lightning_core.texts.masking import without_details
from lightning_core.texts.terminal import Plain, Terminal


class Verb(typer.core.TyperCommand):
    """A verb in the list of verbs; its module is imported when the verb runs or shows its own help."""

    def __init__(self, name: str, home: str, summary: str, *, extra_args: bool = False) -> None:
        super().__init__(name, help=summary)
        self._home = home
        self._context_settings = {"allow_extra_args": True} if extra_args else {}

    def load(self) -> Any:
        """The command itself, or the group of commands, from its module."""
        module, name = self._home.split(".")
        found = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(pretty_exceptions_enable=False)
            alone.command(self.name, context_settings=self._context_settings)(found)
            found = alone
        for command in found.registered_commands:
            command.help = flow((command.callback and command.callback.__doc__) or "")
        made: Any = typer.main.get_command(found)
        for each in (made, *getattr(made, "commands", {}).values()):
            for option in each.params:
                if getattr(option, "is_flag", False):
                    option.metavar = ""  # typer writes <bool> behind it, and it takes no value
        return made

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the loaded command; it, not this one, is what runs in it."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


VERBS: Final = (
    Verb(
        "init",
        "starting.init",
        "Write a small app that trains as it is: the app, train.py with its reward, and tasks.jsonl.",
    ),
    Verb(
        "train",
        "training.train",
        "Run a training script; these options replace its settings.",
        extra_args=True,
    ),
    Verb(
        "try",
        "asking.try_script",
        "Run your app on a task or two with the model as it is, and show calls, replies and rewards.",
        extra_args=True,
    ),
    Verb(
        "evaluate",
        "evaluating.evaluate",
        "Evaluate one or more policies on the same tasks, and compare each with the first.",
        extra_args=True,
    ),
    Verb(
        "worker",
        "training.worker",
        "Run rollouts for a trainer that was started with `train --set remote=runner`.",
        extra_args=True,
    ),
    Verb(
        "deploy",
        "training.deploy",
        "Write files that run a script in containers: trainer, gateway, workers and PostgreSQL.",
        extra_args=True,
    ),
    Verb(
        "serve",
        "serving.serve",
        "Serve a model, or the current version of a run, behind the recording gateway, without training.",
    ),
    Verb(
        "gateway",
        "serving.gateway",
        "Serve the rollouts of a run that was started with `train --set remote=gateway`.",
    ),
    Verb("api", "serving.api", "Serve a store over REST, for workers and clients in any language."),
    Verb("token", "serving.token", "Print a token for the REST API."),
    Verb(
        "show",
        "runs.show",
        "Show a run: curve, held-out reward before and after, figures of each agent, "
        "failures, and a verdict.",
    ),
    Verb(
        "why",
        "asking.why",
        "Say why the calls of a trained rollout got their advantages: one sentence each, then the terms.",
    ),
    Verb(
        "fork",
        "forking.fork",
        "Go back to a call of a recorded rollout, sample other replies, and compare the rewards.",
        extra_args=True,
    ),
    Verb(
        "whatif",
        "asking.whatif",
        "Credit a step again in another way, and list the calls whose advantage moves most.",
    ),
    Verb(
        "report",
        "asking.report",
        "Write the console's pages of a run as one file, report.html, into its folder: to "
        "send on or to keep.",
    ),
    Verb(
        "console",
        "serving.console",
        "Show runs in the browser, during and after training: curves, rollouts, replay, and why.",
        extra_args=True,
    ),
    Verb(
        "alerts",
        "runs.alerts",
        "List the warnings of a run, oldest first: what happened, to what, and what to do.",
    ),
    Verb(
        "sync",
        "sending.sync",
        "Send a run's records to an OpenTelemetry collector (a URL), or write them for "
        "TensorBoard (a folder).",
    ),
    Verb(
        "plugins",
        "runs.plugins",
        "List the installed plugins, the hooks they implement, and those that could not be loaded.",
    ),
    Verb("models", "models.app", "List, compare, choose and export versions of a run's weights and prompts."),
    Verb("runs", "runs.app", "List runs; delete them, or what they need no more."),
)
"""All verbs, in the order of the list. Each summary is the first paragraph of the verb's own help."""


class Verbs(typer.core.TyperGroup):
    """The command with its verbs; none of their modules is imported yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for verb in VERBS:
            self.add_command(verb)


app = typer.Typer(
    cls=Verbs,
    name="agentlightning",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version, and end."),
    ] = False,
) -> None:
    """Train the agents you already have."""


def flow(text: str) -> str:
    """A docstring whose paragraphs are one line each, for any width of a terminal; what is indented stays."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else " ".join(each.split()) for each in paragraphs)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM does what Ctrl-C does. Without this the first process of a container would ignore it."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if not callable(on_interrupt):
        raise KeyboardInterrupt
    on_interrupt(number, frame)


def _shut_out_ctrl_c() -> None:
    """Where Ctrl-C is ignored, as in a job that a script starts with &, keep it out by blocking the signal.

    asyncio ends its tasks in order only with its own handler of Ctrl-C, which it does not set where that is
    ignored. SIGTERM uses that handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _replace_what_a_stream_lacks() -> None:
    """Print ? for a character that the terminal's encoding lacks, such as an arrow in Latin-1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class Once(logging.Filter):
    """Shows a warning of another library once, and counts how often it came again.

    Frameworks warn in every call, of which a run makes thousands. Messages that differ in numbers or names
    alone are one. What this package says, and errors, are all shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.name.startswith("lightning_"):
            return True
        said = record.name, without_details(str(record.msg))
        self.counts[said] += 1
        return self.counts[said] == 1

    def repeated(self) -> list[str]:
        """A line for each warning that came again."""
        return [
            f"{name} logged this {count - 1} more times: {message}"
            for (name, message), count in self.counts.items()
            if count > 1
        ]


def main() -> None:
    """Entry point: errors of this package are shown as one message, without a traceback."""
    atexit.register(gc.freeze)  # Python's last collection of torch's and transformers' objects takes 1.5 s
    _shut_out_ctrl_c()
    signal.signal(signal.SIGTERM, _interrupt)
    telemetry.obey()
    _replace_what_a_stream_lacks()
    logging.basicConfig(level=logging.WARNING)
    once = Once()
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(once)
        handler.setFormatter(Plain("%(levelname)s %(name)s: %(message)s"))
    try:
        app()
    except LightningError as error:
        Terminal(stderr=True).print(f"[red]{type(error).__name__}[/red]: ", end="")
        Terminal(stderr=True).print(str(error), markup=False, highlight=False)
        sys.exit(1)
    finally:
        for handler in handlers:
            handler.removeFilter(once)
        for line in once.repeated():
            Terminal(stderr=True).print(line, markup=False, highlight=False, style="dim", soft_wrap=True)
