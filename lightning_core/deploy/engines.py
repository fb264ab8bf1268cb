"""The engines that run a deployment: the files they read, and the user's programs that start and stop them.

The libraries of an image are what the script had loaded, pinned to what is installed here. What was installed
from a folder, such as this project in a checkout or the user's own package, is built into a wheel: no index
has it. Nothing is started in a way of our own: each step is a command that is printed before it runs, and
that a person could give.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions, packages_distributions
from importlib.resources import files as package_files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import yaml
from packaging.requirements import Requirement

from lightning_core.deploy.deployment import RUNS, Deployment
from lightning_core.deploy.documents import make_compose, make_job, make_task, make_values
from lightning_core.errors import ConfigError
from lightning_core.trainer.folder import write_atomically

log = logging.getLogger(__name__)
Say = Callable[[str], None]
Command = Sequence[str]
PATIENCE_SECONDS: Final = 1800.0
"""For images, machines and the first rollout."""
LOOK_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """One of them: what it reads, and the commands that a person gives. `{name}` and `{files}` stand for the
    deployment's name and the folder of the files."""

    program: str
    main: str
    """The file that must not be there yet."""
    make: Callable[[Deployment, Path], Mapping[str, Any]]
    """File names and contents: documents of YAML."""
    up: tuple[str, ...]
    down: tuple[str, ...]
    stays: tuple[str, ...]
    """Lists what is left by `down`."""
    remove: str
    """Takes that away too; for a person to give."""
    inside: str = ""
    """Runs Python beside the trainer; "": there is no such place, and its log is followed."""
    logs: str = ""
    copied: tuple[str, ...] = ("Dockerfile", "Dockerfile.dockerignore")
    """Files and folders of this package."""
    brings_store: bool = False
    """Whether a PostgreSQL comes with it, where there is no other."""
    secret: str = ""
    """Makes the secret of a cluster, where there is none yet."""


_IMAGES: Final = ("Dockerfile", "Dockerfile.dockerignore")
_COMPOSE: Final = "docker compose --file {files}/compose.yaml"
_CLAIMS: Final = "kubectl get pvc --output name --selector app.kubernetes.io/instance={name}"
_IN_TRAINER: Final = (
    "sh -c 'kubectl exec $(kubectl get pod --output name --field-selector status.phase=Running "
    '--selector app.kubernetes.io/instance={name},app.kubernetes.io/component=trainer) -- python "$@"\' sh'
)
_SECRETS: Final = "kubectl get secret {name} --output name --ignore-not-found"
_REMOVE: Final = (
    "kubectl delete secret {name}; kubectl delete pvc --selector app.kubernetes.io/instance={name}"
)
_SECRET: Final = "kubectl create secret generic {name} --from-env-file {files}/.env"
ENGINES: Final[Mapping[str, Orchestrator]] = {
    "docker": Orchestrator(
        program="docker",
        brings_store=True,
        main="compose.yaml",
        make=lambda deployment, files: {"compose.yaml": make_compose(deployment, files)},
        up=(f"{_COMPOSE} up --build --detach",),
        down=(f"{_COMPOSE} --profile serve down --remove-orphans",),
        stays=("docker volume ls --quiet --filter label=com.docker.compose.project={name}",),
        remove=f"{_COMPOSE} down --volumes",
        inside=f"{_COMPOSE} run --rm --no-deps -T --entrypoint python trainer",
        logs=f"{_COMPOSE} logs trainer",
    ),
    "helm": Orchestrator(
        program="helm",
        brings_store=True,
        main="values.yaml",
        make=lambda deployment, files: {"values.yaml": make_values(deployment)},
        copied=(*_IMAGES, "chart"),
        secret=_SECRET,
        up=("helm upgrade --install {name} {files}/chart --values {files}/values.yaml",),
        down=("helm uninstall {name} --wait",),
        stays=(_CLAIMS, _SECRETS),
        remove=_REMOVE,
        inside=_IN_TRAINER,
        logs="kubectl logs --selector app.kubernetes.io/instance={name},app.kubernetes.io/component=trainer",
    ),
    "ray": Orchestrator(
        program="kubectl",
        main="rayjob.yaml",
        make=lambda deployment, files: {"rayjob.yaml": make_job(deployment)},
        secret=_SECRET,
        up=("kubectl apply --filename {files}/rayjob.yaml",),
        down=("kubectl delete rayjob {name}",),
        stays=(_CLAIMS, _SECRETS),
        remove=_REMOVE,
        logs="kubectl logs --follow job/{name}",
    ),
    "sky": Orchestrator(
        program="sky",
        main="sky.yaml",
        make=lambda deployment, files: {"sky.yaml": make_task(deployment, files)},
        copied=(),
        up=("sky jobs launch --yes --name {name} --secret-file {files}/.env {files}/sky.yaml",),
        down=("sky jobs cancel --yes --name {name}",),
        stays=("sh -c 'sky storage ls | grep --only-matching --word-regexp {name}-runs'",),
        remove="sky storage delete {name}-runs",
        logs="sky jobs logs --name {name}",
    ),
}


def write_files(
    engine: Orchestrator, deployment: Deployment, files: Path, loaded: Sequence[str], title: str
) -> None:
    """Write all that the engine reads to the folder. Raises ConfigError if its files are there already: a
    person may have edited them."""
    if (files / engine.main).exists():
        raise ConfigError(
            f"{str(files / engine.main)!r} is there already, and may have been edited: start it with --up, "
            "or remove it, or give another folder with --out"
        )
    documents = engine.make(deployment, files)
    (files / "python").mkdir(parents=True, exist_ok=True)
    (files / ".gitignore").write_text(".env\n")
    write_lock(files / "python", deployment, loaded)
    for name in engine.copied:
        _copy(name, files)
    for name, document in documents.items():
        (files / name).write_text(f"# {title}\n{dump(document)}")


def dump(document: Any) -> str:
    """YAML in the order of the document; several documents for a list."""
    documents = document if isinstance(document, list) else [document]
    text: str = yaml.safe_dump_all(documents, sort_keys=False, width=110, allow_unicode=True)
    return text


def _copy(name: str, files: Path) -> None:
    source = package_files("lightning_core.deploy") / "files" / name
    if source.is_dir():
        for each in source.iterdir():
            (files / name).mkdir(parents=True, exist_ok=True)
            _copy(f"{name}/{each.name}", files)
    else:
        (files / name).write_bytes(source.read_bytes())


# the libraries of an image -----------------------------------------------------------------
OWN = "agent-lightning-core"
STORES = {"PGPASSWORD": "postgres", "REDISCLI_AUTH": "redis"}
"""The store's variable to the extra with its driver."""


def write_lock(folder: Path, deployment: Deployment, loaded: Iterable[str]) -> None:
    """Write `requirements.txt`, `requirements-local.txt`, `constraints.txt` and wheels to `folder`.

    `loaded` are names of modules. Lines of the user's own `requirements.txt` in this folder are added, for
    what the script loads later. Raises ConfigError if a wheel can't be built.
    """
    installed = {_plain(each.metadata["Name"]): each for each in distributions()}
    tops = {name.partition(".")[0] for name in loaded}
    owners = packages_distributions()
    used = {_plain(name) for top in tops for name in owners.get(top, ())} & installed.keys()
    sources = dict(_sources(installed))
    for name, file in sorted(_left_out(tops, sources.values())):
        log.warning(
            "the image will not have %s (%s): it is neither below this folder nor in a package; move it "
            "here, or install it with pip",
            name,
            file,
        )
    used |= {name for name, source in sources.items() if _holds(source, tops)}
    heavy = _required_by(installed.get(OWN), "local") - _required_by(installed.get(OWN))
    wheels = {name: _build(folder, sources[name]) for name in sorted((used | {OWN}) & sources.keys())}

    def line(name: str, extra: str = "") -> str:
        wheel = wheels.get(name)
        asked = f"[{extra}]" if extra else ""
        return f"{name}{asked} @ file:///python/{wheel}" if wheel else f"{name}{asked}"

    store = STORES.get(deployment.password, "")
    core = [line(OWN, store), *map(line, _roots((used - heavy) | {OWN}, installed))]
    extras = ",".join(filter(None, [store, "local"]))
    own = Path("requirements.txt")
    theirs = own.read_text().splitlines() if own.is_file() else []
    _write(folder / "requirements.txt", [*core, *theirs])
    _write(folder / "requirements-local.txt", [line(OWN, extras), *_roots(used & heavy, installed)])
    # Without what says for which processor a version was built: an index may have it for another.
    pins = (f"{name}=={each.version.partition('+')[0]}" for name, each in sorted(installed.items()))
    _write(folder / "constraints.txt", [pin for pin in pins if pin.partition("==")[0] not in wheels])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _roots(names: set[str], installed: Mapping[str, Distribution]) -> list[str]:
    """Returns the names that none of the others requires, or that require one another; without this project's
    own."""
    needs = {name: _required_by(installed.get(name)) for name in names}
    return [
        name
        for name in sorted(names - {OWN})
        if not any(name in needs[other] and other not in needs[name] for other in names - {name})
    ]


def _required_by(one: Distribution | None, extra: str = "") -> set[str]:
    """Returns the requirements of a distribution, with an extra."""
    wanted = [Requirement(each) for each in (one.requires or () if one else ())]
    return {_plain(each.name) for each in wanted if not each.marker or each.marker.evaluate({"extra": extra})}


def _sources(installed: Mapping[str, Distribution]) -> Iterable[tuple[str, Path]]:
    """Distributions that were installed from a folder of this machine."""
    for name, each in installed.items():
        said = each.read_text("direct_url.json")
        url = urlsplit(json.loads(said)["url"]) if said else None
        if url is not None and url.scheme == "file" and Path(unquote(url.path)).is_dir():
            yield name, Path(unquote(url.path))


def _left_out(modules: Iterable[str], sources: Iterable[Path]) -> Iterable[tuple[str, Path]]:
    """Loaded modules that a person put elsewhere, found by a path of their own."""
    places = [Path.cwd(), *sources, *(Path(each) for each in sysconfig.get_paths().values())]
    for name in set(modules) - sys.stdlib_module_names - {"__main__"}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and not any(
            Path(file).resolve().is_relative_to(place.resolve()) for place in places
        ):
            yield name, Path(file)


def _holds(source: Path, modules: Iterable[str]) -> bool:
    """Whether one of the loaded modules lies there: the records of an editable install name none."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    paths = [Path(path) for path in found if path is not None]
    return any(path.is_relative_to(source) and "site-packages" not in path.parts for path in paths)


def _build(folder: Path, source: Path) -> str:
    """The file name of a fresh wheel in `folder`."""
    with TemporaryDirectory() as fresh:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", fresh, str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        made = list(Path(fresh).glob("*.whl"))
        if done.returncode or len(made) != 1:
            raise ConfigError(
                f"can't build a wheel of {str(source)!r}, which no index has:\n{done.stderr[-800:]}"
            )
        shutil.copy(made[0], folder)
        return made[0].name


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))


# starting and stopping -------------------------------------------------------------------
def start(engine: Orchestrator, deployment: Deployment, files: Path, say: Say) -> None:
    """Start it with the user's program, and follow until a rollout has a reward.

    Raises ConfigError if the program is missing or fails, or if there is no reward for half an hour.
    """
    _check_program(engine)
    _check_secrets(engine, deployment, files, say)
    if engine.secret and not _ask(["kubectl", "get", "secret", deployment.name, "--output", "name"]):
        _run(_words(engine.secret, deployment, files), say)
    for command in engine.up:
        _run(_words(command, deployment, files), say)
    if engine.inside:
        _follow(engine, deployment, files, say)
    elif engine.logs:
        _run(_words(engine.logs, deployment, files), say)


def stop(engine: Orchestrator, deployment: Deployment, files: Path, say: Say) -> None:
    """Take everything away but what holds data, and say what that is."""
    _check_program(engine)
    for command in engine.down:
        _run(_words(command, deployment, files), say)
    left = [line for command in engine.stays for line in _ask(_words(command, deployment, files))]
    if left:
        say(f"what stays, as it holds the runs: {', '.join(left)}")
        quoted = shlex.quote(str(files))
        say(f"take it away too: {engine.remove.format(name=deployment.name, files=quoted)}")
    else:
        say("nothing is left")


def _words(command: str, deployment: Deployment, files: Path) -> list[str]:
    return [word.format(name=deployment.name, files=files) for word in shlex.split(command)]


def _check_program(engine: Orchestrator) -> None:
    if shutil.which(engine.program) is None:
        raise ConfigError(
            f"{engine.program!r} is not installed here, which starts and stops this; install it, or give the "
            "files to a machine that has it"
        )


def _check_secrets(engine: Orchestrator, deployment: Deployment, files: Path, say: Say) -> None:
    """Each has a value in `.env`; a database of our own gets a password there."""
    file = files / ".env"
    text = file.read_text() if file.exists() else ""
    known = {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line}
    wanted = deployment.variables if engine.brings_store or deployment.store else deployment.secrets
    missing = [name for name in wanted if name not in known]
    if not file.exists():
        write_atomically(file, b"")
    if deployment.store is None and deployment.password in missing:
        missing.remove(deployment.password)
        made = f"{deployment.password}={secrets.token_urlsafe(24)}"
        write_atomically(file, f"{text.rstrip()}\n{made}\n".lstrip().encode())
        say(f"made a password for PostgreSQL: {file}, which only you may read; do not commit it")
    if missing:
        raise ConfigError(f"{', '.join(missing)} has no value: write NAME=value to {str(file)!r}")


def _run(command: Command, say: Say) -> None:
    say(f"$ {shlex.join(command)}")
    code = subprocess.run(command).returncode
    if code:
        raise ConfigError(
            f"{command[0]!r} ended with {code}; what it printed says why: {shlex.join(command)}"
        )


def _ask(command: Command) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def _follow(engine: Orchestrator, deployment: Deployment, files: Path, say: Say) -> None:
    """Ask beside the trainer again and again, as its container may still be on its way."""
    look = (*_words(engine.inside, deployment, files), *first_reward(f"{RUNS}/{deployment.name}"))
    logs = shlex.join(_words(engine.logs, deployment, files))
    say(f"waiting for the first reward; meanwhile: {logs}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        done = subprocess.run(look, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            say(done.stdout.strip())
            return
        time.sleep(LOOK_SECONDS)
    raise ConfigError(f"no rollout had a reward for {PATIENCE_SECONDS / 60:.0f} minutes: {logs}")


def first_reward(folder: str) -> list[str]:
    """Arguments of Python that print the first reward of a run, or fail while there is none."""
    return ["-m", "lightning_core.deploy.first_reward", folder]
