"""The command's verbs; each says in its help what it does, what it writes and what comes next."""

from __future__ import annotations

import atexit
import gc
import inspect
import io
import logging
import signal
import sys
from collections import Counter
from types import FrameType
from typing import Annotated

import typer

from lightning_core import __version__, telemetry
from lightning_core.cli import asking, evaluating, models, runs, serving, starting, training
from lightning_core.errors import LightningError
from lightning_core.insight.failures import VARIES
from lightning_core.texts.terminal import Plain, Terminal

app = typer.Typer(
    name="agentlightning",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app, name="models")
app.add_typer(runs.app, name="runs")


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


app.command()(starting.init)
_with_script = app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
_with_script(training.train)
app.command("try", context_settings={"allow_extra_args": True})(asking.try_script)
_with_script(evaluating.evaluate)
_with_script(training.worker)
_with_script(training.deploy)
app.command()(serving.serve)
app.command()(serving.gateway)
app.command()(serving.api)
app.command()(serving.token)
app.command()(runs.show)
app.command()(asking.why)
app.command()(asking.whatif)
app.command()(asking.report)
app.command()(serving.console)
app.command()(runs.alerts)
app.command()(runs.sync)
app.command()(runs.plugins)


def flow(text: str) -> str:
    """A docstring whose paragraphs are one line each, for any width of a terminal; what is indented stays."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else " ".join(each.split()) for each in paragraphs)


for verb in (
    *app.registered_commands,
    *models.app.registered_commands,
    *runs.app.registered_commands,
):
    verb.help = flow((verb.callback and verb.callback.__doc__) or "")


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
        said = record.name, VARIES.sub("…", str(record.msg))
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
