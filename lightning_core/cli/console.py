"""`agentlightning console`: the page on what runs have left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lightning_core.cli.serving import say
from lightning_core.errors import LightningError


def console(
    what: Annotated[
        str,
        typer.Argument(metavar="RUN|STORE", help="A run's folder, a folder of runs, or a store's URL."),
    ] = "runs",
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")] = 0,
    export: Annotated[
        Path | None,
        typer.Option(help="Write a page that opens from disk to this new folder, and end."),
    ] = None,
) -> None:
    """Show runs in the browser, during and after training: curves, rollouts, replay, and why.

    It listens only on this machine. The printed address holds a token: anyone who has it can open the page.

        agentlightning console runs/demo
    """
    if export is None:
        asyncio.run(serve_console(what, port))
    else:
        export_console(what, export)


async def serve_console(what: str, port: int) -> None:
    """Serve until interrupted. Raises ConfigError if there is no run."""
    from lightning_core.console.server import Console
    from lightning_core.console.shelf import Shelf
    from lightning_core.gateway.server import GatewayServer
    from lightning_core.plugins import load_plugins
    from lightning_core.trainer.roles.joining import until_signal

    async with Shelf(what, load_plugins()) as shelf:
        made = Console(shelf)
        async with GatewayServer(made, port=port, name="lightning-console") as server:
            stop = until_signal()
            say(f"{server.url}/?token={made.token}")
            say("open this address in a browser, and keep it private (Ctrl-C ends)")
            await stop.wait()


def export_console(what: str, folder: Path) -> None:
    """Write the console's page with its answers. Raises ConfigError if something is in the folder."""
    from lightning_core.console.export import export
    from lightning_core.plugins import load_plugins

    say(f"wrote {export(what, load_plugins(), folder)}; it opens in any browser")


def write_report(folder: Path) -> None:
    """Write the page of a finished run into its folder. What keeps it from that is told, and ends nothing."""
    from lightning_core.console.export import write_report as write
    from lightning_core.plugins import load_plugins

    try:
        say(f"page        {write(folder, load_plugins())}")
    except (LightningError, OSError) as problem:
        say(f"no page     {problem}")
