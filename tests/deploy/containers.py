"""Build the images, start each role as a container by Compose itself, end some of them, compare the curves.

    python -m tests.deploy.containers --folder /var/tmp/agent-lightning-containers

Compose talks to podman, which takes Docker's place. No registry is asked: the base image is Debian's own, by
debootstrap, and pip reads wheels that this machine's pip fetched. The folder keeps these for the next time.
Wants root, podman, catatonit, runc, iptables and debootstrap. It listens on the loopback address only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import yaml

ROOT = Path(__file__).parents[2]
BINARIES = Path(sys.executable).parent
MIRROR = "http://deb.debian.org/debian"
SCRIPT = "examples/sql/train.py"
PER_STEP = 64
"""Rollouts of a step of the SQL example: 8 tasks in groups of 8."""
WHEELS_PORT = 8911
"""The same each time: it stands in the base image, whose layers are then found again."""
SETTINGS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
"""For a machine without systemd, and a user who may not raise limits."""
LOOK = """
SELECT json_build_object(
    'steps', (SELECT coalesce(json_agg(step ORDER BY step), '[]') FROM lightning.metrics),
    'rollouts', (SELECT coalesce(json_agg(json_build_array(step, id, status, attempts, reward)
                                          ORDER BY step, id), '[]')
                 FROM lightning.rollouts WHERE split = 'train'))
"""
"""Reads the run's state in the database, for little: Python would take seconds for each look."""
Rollouts = list[tuple[int, str, str, int, float]]
"""Step, id, status, attempts and reward of each."""


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def expect(true: object, what: str) -> None:
    if not true:
        raise SystemExit(f"FAULT: {what}")


class Engine:
    """A podman with its own storage in a folder, and a `docker` that is Compose and this podman."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "containers.conf").write_text(SETTINGS)
        places = f"--root {folder}/storage --runroot {folder}/run --tmpdir {folder}/tmp"
        self.podman = self._program(
            "podman",
            f"export CONTAINERS_CONF={folder}/containers.conf BUILDAH_ISOLATION=chroot\n"
            f'exec {shutil.which("podman")} {places} "$@"',
        )
        self._program(
            "docker",
            f'[ "$1" = compose ] && shift && exec {BINARIES}/docker-compose "$@"\nexec {self.podman} "$@"',
        )
        self.environment = {
            **os.environ,
            "PATH": f"{folder}/bin:{BINARIES}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{folder}/podman.sock",
            "DOCKER_BUILDKIT": "0",  # podman builds as Docker did before BuildKit
            "COMPOSE_PARALLEL_LIMIT": "1",  # so that the second image finds the layers of the first
            "BASE": "localhost/lightning-python",
            "POSTGRES_IMAGE": "localhost/lightning-postgres",
            "OMP_NUM_THREADS": "1",
        }

    def _program(self, name: str, text: str) -> Path:
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def run(self, *command: str | Path, cwd: Path | None = None) -> None:
        say(f"$ {' '.join(map(str, command))}")
        done = subprocess.run(command, cwd=cwd or self.folder, env=self.environment)
        expect(done.returncode == 0, f"{command[0]} ended with {done.returncode}")

    def ask(self, *words: str) -> list[str]:
        """Lines that podman answers."""
        return subprocess.run([self.podman, *words], capture_output=True, text=True).stdout.splitlines()

    def has(self, image: str) -> bool:
        return subprocess.run([self.podman, "image", "exists", image]).returncode == 0

    def beat(self) -> None:
        """Ask containers for their health again and again, as systemd's timers do where it runs."""
        while True:
            for name in self.ask("ps", "--quiet", "--filter", "health=starting"):
                self.ask("healthcheck", "run", name)
            time.sleep(2)

    def make_base(self) -> None:
        """Debian with Python, and a PostgreSQL that is set up as the official image is."""
        if not self.has("lightning-base"):
            debian = self.folder / "debian"
            more = ("--variant=minbase", "--include=python3,python3-venv")
            self.run("debootstrap", *more, "bookworm", str(debian), MIRROR)
            with subprocess.Popen(["tar", "-C", debian, "-c", "."], stdout=subprocess.PIPE) as tar:
                subprocess.run([self.podman, "import", "-", "lightning-base"], stdin=tar.stdout, check=True)
            shutil.rmtree(debian)
        if not self.has("lightning-postgres"):
            self.run(self.podman, "build", "--tag", "lightning-postgres", Path(__file__).parent / "postgres")

    def make_wheels(self, python: Path) -> None:
        """Makes the wheels that the images install, fetched by this machine's pip, and a base image that
        reads them there."""
        wheels = self.folder / "wheels"
        wheels.mkdir(exist_ok=True)
        wanted = [line for name in ("", "-local") for line in _lines(python / f"requirements{name}.txt")]
        here = self.folder / "requirements.txt"
        here.write_text("\n".join(line.replace("file:///python/", f"{python.as_uri()}/") for line in wanted))
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--constraint", python / "constraints.txt")
        self.run(*pip, "--requirement", here, "--dest", wheels)
        server = ThreadingHTTPServer(("127.0.0.1", WHEELS_PORT), partial(Wheels, directory=str(wheels)))
        Thread(target=server.serve_forever, daemon=True).start()
        based = self.folder / "based"
        based.mkdir(exist_ok=True)
        links = f"PIP_NO_INDEX=1 PIP_FIND_LINKS=http://127.0.0.1:{WHEELS_PORT}/"
        (based / "Dockerfile").write_text(f"FROM localhost/lightning-base\nENV {links}\n")
        self.run(self.podman, "build", "--quiet", "--tag", "lightning-python", based)


class Wheels(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


@contextmanager
def serving(folder: Path) -> Iterator[Engine]:
    """An engine that answers Compose, until the end."""
    engine = Engine(folder)
    (folder / "podman.sock").unlink(missing_ok=True)
    with (folder / "service.log").open("wb") as log:
        command = [engine.podman, "system", "service", "--time", "0", engine.environment["DOCKER_HOST"]]
        service = subprocess.Popen(command, stdout=log, stderr=log)
    Thread(target=engine.beat, daemon=True).start()
    try:
        yield engine
    finally:
        engine.ask("rm", "--all", "--force", "--time", "2")
        engine.ask("volume", "rm", "--all", "--force")
        service.terminate()
        service.wait()


class Run:
    """One training run in containers, by the commands that a person gives."""

    def __init__(self, engine: Engine, project: Path, steps: int) -> None:
        self.engine = engine
        self.project = project
        self.words = ("agentlightning", "deploy", "docker", SCRIPT)
        self.words += ("--set", f"steps={steps}", "--set", "progress=false")
        self.steps = steps

    def command(self, *more: str) -> None:
        few = ("--", "--held-out-tasks", "8")  # the test is of the containers
        self.engine.run(BINARIES / self.words[0], *self.words[1:], *more, *few, cwd=self.project)

    def compose(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "compose", "--file", "deploy/compose.yaml", *words]
        return subprocess.run(
            command, cwd=self.project, env=self.engine.environment, capture_output=True, text=True
        )

    def look(self) -> tuple[list[int], Rollouts]:
        """The steps made so far, and the rollouts."""
        psql = 'PGPASSWORD=$POSTGRES_PASSWORD exec psql -h 127.0.0.1 -U lightning -tAc "$1"'
        done = self.compose("exec", "-T", "postgres", "sh", "-c", psql, "sh", LOOK)
        if done.returncode:
            return [], []  # the trainer has made no tables yet
        seen = json.loads(done.stdout)
        return seen["steps"], [tuple(each) for each in seen["rollouts"]]

    def strike(self, container: str, number: signal.Signals) -> None:
        """End the processes of a container as a lost machine or an eviction does, unasked for."""
        (pid,) = self.engine.ask("inspect", "--format", "{{.State.Pid}}", container)
        expect(pid != "0", f"{container} runs")
        os.kill(int(pid), number)
        say(f"{number.name} to {container} after {len(self.look()[0])} steps")

    def until(self, true: Callable[[], object], what: str, seconds: float = 1800) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                said = self.compose("logs", "--tail", "20").stdout
                raise SystemExit(f"FAULT: not within {seconds:.0f} s: {what}\n{said}")
            time.sleep(3)

    def made(self, steps: int) -> Callable[[], bool]:
        return lambda: len(self.look()[0]) >= steps

    def state(self, container: str) -> str:
        return "".join(
            self.engine.ask("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", container)
        )

    def train(self, disturb: bool) -> Rollouts:
        """Train to the end; returns the rollouts. With `disturb` trainer and workers are ended meanwhile."""
        began = time.monotonic()
        self.command("--up")
        say(f"first reward after {time.monotonic() - began:.0f} s")
        if disturb:
            strikes = (
                ("sql-trainer-1", signal.SIGKILL),
                ("sql-worker-1", signal.SIGTERM),
                ("sql-trainer-1", signal.SIGTERM),
                ("sql-worker-2", signal.SIGKILL),
            )
            for after, (victim, number) in enumerate(strikes, start=1):
                self.until(self.made(after), f"{after} steps")
                self.strike(victim, number)
                self.until(lambda name=victim: self.state(name).startswith("running"), f"{victim} is back")
        self.until(lambda: self.state("sql-trainer-1") == "exited 0", "the trainer ends with 0")
        say(f"{self.steps} steps after {time.monotonic() - began:.0f} s")
        steps, rollouts = self.look()
        expect(steps == list(range(self.steps)), f"each step once, not {steps}")
        per_step = Counter(step for step, *_ in rollouts)
        expect(set(per_step.values()) == {PER_STEP}, f"{PER_STEP} rollouts a step, not {per_step}")
        ends = Counter(status for _, _, status, *_ in rollouts)
        expect(ends == {"succeeded": len(rollouts)}, f"all succeed, not {ends}")
        return rollouts

    def serve(self) -> None:
        """The trained policy answers, the current version and the one before, to which one would go back."""
        for version in ("", str(self.steps - 1)):
            self.engine.environment["SERVE_VERSION"] = version
            done = self.compose("--profile", "serve", "up", "--detach", "--no-deps", "serve")
            expect(done.returncode == 0, f"serve starts: {done.stderr}")
            self.until(lambda: answers("http://127.0.0.1:8000/healthz"), "serve answers", 300)
            with urllib.request.urlopen("http://127.0.0.1:8000/v1/models", timeout=30) as reply:
                say(f"serve{'@' + version if version else ''}: {reply.read().decode()[:200]}")

    def end(self) -> None:
        """`--down`, and the command that it prints for what holds the runs; then nothing is left."""
        self.command("--down")
        kept = self.engine.ask("volume", "ls", "--quiet")
        expect(sorted(kept) == ["sql_postgres", "sql_runs"], f"the volumes stay, and not {kept}")
        expect(self.compose("down", "--volumes").returncode == 0, "the volumes go")
        kinds = (("ps", "--all"), ("volume", "ls"), ("network", "ls", "--filter", "name=sql"))
        left = [line for words in kinds for line in self.engine.ask(*words, "--quiet")]
        expect(not left, f"nothing is left, and not {left}")
        say("nothing is left")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def curve(rollouts: Rollouts) -> Mapping[int, float]:
    """Step to mean reward."""
    sums: dict[int, float] = {}
    for step, *_, reward in rollouts:
        sums[step] = sums.get(step, 0.0) + reward / PER_STEP
    return sums


def compare(killed: Rollouts, calm: Rollouts) -> None:
    """Every rollout has the reward that it has in peace."""
    say(f"disturbed: {[round(value, 4) for value in curve(killed).values()]}")
    say(f"in peace:  {[round(value, 4) for value in curve(calm).values()]}")
    again = Counter(step for step, _, _, attempts, _ in killed if attempts > 1)
    say(f"{again.total()} of {len(killed)} rollouts ran again, by step: {dict(again)}")
    other = [
        mine
        for mine, theirs in zip(killed, calm, strict=True)
        if (mine[1], mine[4]) != (theirs[1], theirs[4])
    ]
    expect(not other, f"{len(other)} rollouts have another reward than in peace, the first {other[:1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/agent-lightning-containers"))
    parser.add_argument("--steps", type=int, default=6, help="at least 5 (default: 6)")
    options = parser.parse_args()
    for program in ("podman", "catatonit", "runc", "iptables", "debootstrap"):
        expect(shutil.which(program), f"{program} is not installed")
    project = options.folder / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(
        ROOT / "examples/sql", project / "examples/sql", ignore=shutil.ignore_patterns("__pycache__")
    )
    with serving(options.folder) as engine:
        run = Run(engine, project, options.steps)
        engine.make_base()
        run.command()
        engine.make_wheels(project / "deploy/python")
        parts = yaml.safe_load((project / "deploy/compose.yaml").read_text())["services"]
        expect(
            parts.keys() == {"trainer", "gateway", "worker", "serve", "postgres"}, f"all roles, not {parts}"
        )
        killed = run.train(disturb=True)
        run.serve()
        run.end()
        calm = run.train(disturb=False)
        run.end()
        compare(killed, calm)
        engine.ask("rmi", "sql-core", "sql-local")


if __name__ == "__main__":
    main()
