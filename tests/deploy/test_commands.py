"""The rendered chart's commands, started here as processes: same entry point, arguments and variables, with
the addresses of a cluster replaced by those of this machine."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lightning_core.cli.training import call_once, read_launch, start_again
from lightning_core.deploy.deployment import RUNS, Deployment, read_deployment
from lightning_core.deploy.documents import make_values
from lightning_core.deploy.engines import ENGINES, dump, first_reward, write_files
from lightning_core.trainer.trainer import Trainer
from tests.build import agentlightning
from tests.deploy.cases import ROOT, in_folder
from tests.deploy.test_helm import ALL_ON, Helm, helm, pods, template
from tests.stores.postgres_server import PostgresServer, serving
from tests.stores.redis_server import free_port

__all__ = ["helm"]
STEPS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with serving() as one:
        yield one


class Pods:
    """The pods of one release, each a process in a folder of its own."""

    def __init__(self, folder: Path, app: Path, documents: list[dict[str, Any]], store: str) -> None:
        self.folder = folder
        self.app = app
        self.specs = pods(documents)
        self.store = store
        self.port = free_port()
        self.started: list[subprocess.Popen[bytes]] = []
        dockerfile = (files("lightning_core.deploy") / "files/Dockerfile").read_text()
        line = next(line for line in dockerfile.splitlines() if line.startswith("ENTRYPOINT "))
        self.entry: list[str] = json.loads(line.removeprefix("ENTRYPOINT "))

    def here(self, text: str, tmp: Path, port: int) -> str:
        """Replaces a cluster's addresses in a text by this machine's."""
        replaced = {
            "lightning@small-postgres:5432/lightning": self.store.partition("://")[2],
            "$(POD_IP)": "127.0.0.1",
            "$(POD_NAME)": tmp.name,
            "0.0.0.0:8000": f"127.0.0.1:{port}",
            ":8000": f":{port}",
            "/tmp/app": str(tmp / "app"),
            "/app/.": f"{self.app}/.",
            f"{RUNS}/": f"{self.folder}/runs/",
        }
        for before, after in replaced.items():
            text = text.replace(before, after)
        return text

    def start(self, part: str, name: str) -> subprocess.Popen[bytes]:
        """As its container does; it has no variable but those that the chart names."""
        tmp, port = self.folder / name, free_port() if part != "gateway" else self.port
        tmp.mkdir(exist_ok=True)
        (container,) = self.specs[part]["containers"]
        command = [self.here(word, tmp, port) for word in (*self.entry, *container["args"])]
        secrets = {
            each["name"]: "secret" for each in container["env"] if "secretKeyRef" in each.get("valueFrom", ())
        }
        own = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"
        own |= {
            each["name"]: self.here(each["value"], tmp, port) for each in container["env"] if "value" in each
        }
        own |= {"HOME": str(tmp), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=tmp, env={**own, **secrets}, stdout=log, stderr=log)
        process.port = port  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    def said(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log")))

    def until(self, true: Callable[[], object], *living: subprocess.Popen[bytes]) -> None:
        while not true():
            for process in living:
                assert process.poll() is None, self.said()
            time.sleep(0.1)


def read(app: Path) -> Deployment:
    found: list[Deployment] = []
    settings = (f"steps={STEPS}", "progress=false")

    def use(trainer: Trainer, solve: object, **tasks: object) -> None:
        found.append(read_deployment(trainer, Path("small.py"), (), settings, workers=2))

    with in_folder(app):
        call_once(Path("small.py"), (), read_launch(settings, {}), use)
    return found[0]


def test_what_the_chart_starts_trains_to_the_end_though_trainer_and_worker_are_ended(
    server: PostgresServer, helm: Helm, tmp_path: Path
) -> None:
    app = tmp_path / "project"
    app.mkdir()
    shutil.copy(ROOT / "tests/cli/small_job.py", app / "small.py")
    (tmp_path / "runs").mkdir()
    documents = template(helm, tmp_path, dump(make_values(read(app))), *ALL_ON)
    (trigger,) = [each["spec"]["triggers"][0] for each in documents if each["kind"] == "ScaledObject"]
    run = Pods(tmp_path, app, documents, server.url())
    folder = tmp_path / "runs/small"

    def steps() -> int:
        return max((int(each.name[5:]) for each in folder.glob("checkpoints/step-*")), default=0)

    def waiting() -> int:
        with psycopg.connect(server.url()) as connection:
            (row,) = connection.execute(trigger["metadata"]["query"]).fetchall()
            return int(row[0])

    try:
        gateway, one = run.start("gateway", "gateway-0"), run.start("worker", "worker-a")
        trainer, two = run.start("trainer", "trainer-0"), run.start("worker", "worker-b")
        run.until(lambda: steps() >= 1, trainer, gateway, one, two)
        assert waiting() >= 0
        look = [sys.executable, *first_reward(str(folder))]
        assert "first reward" in subprocess.run(look, capture_output=True, text=True, check=True).stdout
        one.kill()
        two.send_signal(signal.SIGTERM)
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(120) == 130, run.said()
        assert two.wait(120) == 0, run.said()
        made = steps()
        run.start("worker", "worker-a")
        again = run.start("trainer", "trainer-1")
        run.until(lambda: again.poll() is not None, gateway)
        assert again.returncode == 0, run.said()
        assert 1 <= made <= steps() == STEPS
        assert waiting() == 0
        serve = run.start("serve", "serve-0")
        url = f"http://127.0.0.1:{serve.port}"  # type: ignore[attr-defined]
        run.until(lambda: answers(f"{url}/healthz"), serve)
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(60) == 0, run.said()
    finally:
        for process in run.started:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def install_editable(source: Path, site: Path, name: str) -> None:
    """A project of one module, and what pip's `-e` leaves of it among the installed ones."""
    records = site / f"{name}-1.dist-info"
    source.mkdir()
    records.mkdir(parents=True)
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    (source / "pyproject.toml").write_text(f'{build}[project]\nname = "{name}"\nversion = "1"\n')
    (source / f"{name}.py").touch()
    (records / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (records / "RECORD").write_text(f"{name}.pth,,\n")
    (records / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {}}))


def test_a_module_that_the_image_will_not_have_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here, beside = tmp_path_factory.mktemp("app"), tmp_path_factory.mktemp("beside")
    for name, folder in (("apps_helper", here), ("stray_helper", beside)):
        (folder / f"{name}.py").touch()
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    (here / "small.py").write_text((ROOT / "tests/cli/small_job.py").read_text())
    with in_folder(here):
        loaded = ["json", "torch", "yaml", "pytest", "lightning_core", "apps_helper", "stray_helper"]
        write_files(ENGINES["docker"], read(here), Path("out"), loaded, "Made by a test.")
    (said,) = [record.getMessage() for record in caplog.records if "will not have" in record.getMessage()]
    assert said.startswith(f"the image will not have stray_helper ({beside / 'stray_helper.py'})")


def test_an_image_gets_what_the_script_had_loaded_in_the_versions_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # hatchling is here
    (tmp_path / "requirements.txt").write_text("boats>=1\n")
    (tmp_path / "small.py").write_text((ROOT / "tests/cli/small_job.py").read_text())
    install_editable(tmp_path / "theirs", tmp_path / "site", "harbour")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "theirs")
    stale = tmp_path / "out/python/harbour-1-py2.py3-none-any.whl"
    stale.parent.mkdir(parents=True)
    stale.touch()  # of an earlier time
    with in_folder(tmp_path):
        importlib.import_module("harbour")
        deployment = read(tmp_path)
        loaded = ["openai.types", "torch", "lightning_core.records.types", "harbour", "json"]
        write_files(ENGINES["docker"], deployment, Path("out"), loaded, "Made by a test.")
    python = tmp_path / "out/python"
    (wheel,) = python.glob("agent_lightning_core-*.whl")
    own = f"@ file:///python/{wheel.name}"
    core, local, pins = (
        (python / f"{name}.txt").read_text().splitlines()
        for name in ("requirements", "requirements-local", "constraints")
    )
    theirs = "harbour @ file:///python/harbour-1-py2.py3-none-any.whl"
    assert core == [f"agent-lightning-core[postgres] {own}", theirs, "openai", "boats>=1"]
    assert "harbour.py" in zipfile.ZipFile(python / "harbour-1-py2.py3-none-any.whl").namelist()
    assert local == [f"agent-lightning-core[postgres,local] {own}", "torch"]
    assert f"openai=={version('openai')}" in pins
    assert not any("+" in pin for pin in pins)
    assert "lightning_core/deploy/files/chart/Chart.yaml" in zipfile.ZipFile(wheel).namelist()
    assert (tmp_path / "out/.gitignore").read_text() == ".env\n"
    assert (tmp_path / "out/compose.yaml").read_text().startswith("# Made by a test.\nname: small\n")


def test_the_start_line_is_the_command_itself_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my train.py").write_text((ROOT / "tests/cli/small_job.py").read_text())
    options = ["--workers", "3", "--set", "steps=2", "--set=seed=7", "--secret", "OPENAI_API_KEY"]
    given = ["deploy", "docker", "my train.py", *options, "--out", "$(my) files"]
    own = ["--", "--data", "all boats"]
    monkeypatch.setenv("COLUMNS", "500")
    with in_folder(tmp_path):
        agentlightning(*given, *own)
    said = capsys.readouterr()
    (line,) = [line for line in (said.out + said.err).splitlines() if line.startswith("start it: ")]
    assert shlex.split(line.removeprefix("start it: ")) == ["agentlightning", *given, "--up", *own]
    assert (tmp_path / "$(my) files/compose.yaml").exists()


@pytest.mark.parametrize("option", ["--set=store=", "store="])
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@db.example/runs", "postgresql://me@db.example/runs"),
        ("https://pw@db.example/api", "https://db.example/api"),
    ],
)
def test_the_start_line_holds_no_password(option: str, url: str, shown: str) -> None:
    given = ["deploy", "docker", "train.py", "--set", option + url]
    assert start_again(given) == ["agentlightning", *given[:-1], option + shown, "--up"]
