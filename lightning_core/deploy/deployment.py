"""The deployment: one frozen value, read from the script's own trainer, of which every writer makes files.

The commands are those of the command line. They are checked here, by making the settings that the container
will make, so that what a start would refuse is refused before a file is written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range
from lightning_core.texts.masking import mask, without_password
from lightning_core.trainer.settings import Settings
from lightning_core.trainer.trainer import Trainer

Image = Literal["core", "local", "verl"]
PORT: Final = 8000
"""At which gateways and `serve` listen."""
USER: Final = 10001
"""Number of the user in the images, and of the group that owns the volumes."""
RUNS: Final = "/runs"
"""Where the volume of the runs is mounted."""
SPARE_SECONDS: Final = 30
"""Added to the longest rollout: to give attempts back and to close the store."""
UNBOUNDED_SECONDS: Final = 3600
"""Seconds allowed for a rollout without a time-out."""
OWN_STORE: Final = "postgresql://lightning@{host}:5432/lightning"
PASSWORDS: Final = {
    "postgresql": "PGPASSWORD",
    "postgres": "PGPASSWORD",
    "redis": "REDISCLI_AUTH",
    "rediss": "REDISCLI_AUTH",
    "http": "LIGHTNING_API_TOKEN",
    "https": "LIGHTNING_API_TOKEN",
}
"""Store's scheme to the variable that says its password."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(
    r"\b(sk-|hf_|gh[opsu]_|github_pat_|xox[abp]-|AKIA|AIza|eyJ)[\w.-]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""How keys of well-known services begin."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """`--gpu L40S:2`."""

    name: str
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Gpu:
        """NAME or NAME:COUNT. Raises ConfigError for anything else."""
        name, mark, count = text.partition(":")
        if not re.fullmatch(r"[A-Za-z][\w-]*", name) or (mark and not re.fullmatch(r"[1-9]\d{0,2}", count)):
            raise ConfigError(f"--gpu {text!r}: give NAME:COUNT, such as L40S:1")
        return cls(name, int(count or 1))


@dataclass(frozen=True, slots=True)
class DeploymentPlace:
    """Where the parts are to be found in one engine."""

    store: str | None
    """URL, without a password; None: a file in the run's folder."""
    folder: str
    """Folder of the run."""
    gateway: str | None = None
    """URL under which workers reach the gateway; None: rollouts run in the trainer's own process."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One training run, and what it is made of. Holds names of secrets, never a secret."""

    name: str
    script: str
    """Relative to the folder that goes into the image."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script itself."""
    settings: tuple[str, ...] = ()
    """NAME=VALUE, over the script's own."""
    backend: str = "local"
    image: Image = "local"
    """Image of the parts that hold weights: trainer, gateway, `serve`."""
    store: str | None = None
    """URL of a server of the user's own, without its password; None: a PostgreSQL is deployed beside."""
    gateway: bool = True
    """Whether the gateway is a process of its own. False: it is in the trainer's, where the GPU is."""
    workers: int = 2
    concurrency: int = 32
    """Rollouts at a time in one worker."""
    gpu: Gpu | None = None
    secrets: tuple[str, ...] = ()
    """Names of environment variables."""
    longest: float | None = 300.0
    """Seconds that one rollout may take."""
    clouds: tuple[str, ...] = ()
    """Clouds that SkyPilot may choose from."""
    spot: bool = False
    """On machines that may be taken away."""
    python: str = "3.11"

    def __post_init__(self) -> None:
        check_range("workers", self.workers, least=1, whole=True)
        for name in self.secrets:
            if not _NAME.fullmatch(name) or _KEY.search(name):
                shown = name.partition("=")[0] if _NAME.fullmatch(name.partition("=")[0]) else "..."
                raise ConfigError(
                    f"--secret {shown}: give the name of an environment variable alone, such as "
                    "OPENAI_API_KEY; its value never stands in a file or on a command line"
                )
        for cloud in self.clouds:
            if not re.fullmatch(r"[a-z0-9]+", cloud):
                raise ConfigError(f"--cloud {cloud!r}: give names such as aws,azure")
        if self.store is not None and without_password(self.store) != self.store:
            raise ConfigError(
                f"store {without_password(self.store)!r} was given with a password: leave it out"
            )
        for text in (*self.settings, *self.arguments):
            refuse_key(text)

    @property
    def grace(self) -> int:
        """Seconds between SIGTERM and SIGKILL."""
        return int(self.longest or UNBOUNDED_SECONDS) + SPARE_SECONDS

    @property
    def password(self) -> str:
        """The variable with the store's password."""
        return PASSWORDS[urlsplit(self.store).scheme if self.store else "postgresql"]

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of all secrets, the store's first."""
        return tuple(dict.fromkeys((self.password, *self.secrets)))

    def train(self, place: DeploymentPlace) -> list[str]:
        """Arguments of `agentlightning` for the trainer, the same for its first start and for any other."""
        options = ["--folder", place.folder, "--set", "resume=auto"]
        if place.store is not None:
            options += ["--store", place.store]
        if place.gateway is not None and self.gateway:
            options += _set("remote=runner,gateway")
        elif place.gateway is not None:
            options += _set("remote=runner", f"listen=0.0.0.0:{PORT}", f"address={place.gateway}")
        return ["train", self.script, *options, *_set(*self.settings), *self._own()]

    def work(self, place: DeploymentPlace, *options: str) -> list[str]:
        """Returns the command of a worker."""
        return [
            *("worker", self.script, "--store", str(place.store), *options),
            *_set(f"concurrency={self.concurrency}", *self.settings),
            *self._own(),
        ]

    def answer(self, place: DeploymentPlace, *options: str) -> list[str]:
        """Returns the command of a gateway of its own."""
        listen = ("--listen", f"0.0.0.0:{PORT}", "--address", str(place.gateway))
        return ["gateway", "--store", str(place.store), *options, *listen]

    def serve(self, place: DeploymentPlace, host: str, version: str = "") -> list[str]:
        """Returns the command that serves the trained policy; `version`: "@12" in place of the current
        one."""
        listen = ("--listen", f"0.0.0.0:{PORT}", "--allow-host", host)
        return ["serve", f"{place.folder}{version}", *listen]

    def _own(self) -> list[str]:
        return ["--", *self.arguments] if self.arguments else []


def _set(*settings: str) -> list[str]:
    return [part for each in settings for part in ("--set", each)]


def read_deployment(
    trainer: Trainer,
    script: Path,
    arguments: Sequence[str],
    settings: Sequence[str],
    *,
    workers: int,
    gpu: str | None = None,
    secrets: Sequence[str] = (),
    clouds: Sequence[str] = (),
    spot: bool = False,
) -> Deployment:
    """Reads the deployment from the script's trainer, with the command line's settings over its own.

    Raises ConfigError for what can't be taken elsewhere: a script or a model outside of this folder,
    a store of this machine, settings that fit no deployment.
    """
    backend = trainer.backend if isinstance(trainer.backend, str) else str(trainer.backend.name)
    _check_model(trainer)
    store = _outer_store(trainer.store)
    gateway = backend == "local" and trainer.checkpoint_every == 1 and gpu is None
    deployment = Deployment(
        name=_name(script),
        script=inside(script),
        arguments=tuple(arguments),
        settings=_without_own(settings),
        backend=backend,
        image="verl" if backend == "verl" else "local",
        store=store,
        gateway=gateway,
        workers=workers,
        concurrency=trainer.concurrency,
        gpu=None if gpu is None else Gpu.read(gpu),
        secrets=tuple(secrets),
        longest=trainer.timeout,
        clouds=tuple(clouds),
        spot=spot,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    if backend == "verl" and deployment.gpu is None:
        raise ConfigError("backend 'verl' trains on GPUs: say which with --gpu, such as --gpu L40S:1")
    _try_settings(trainer, gateway)
    return deployment


_OWN: Final = ("store", "folder", "resume", "remote", "listen", "address")
"""Settings that the deployment itself makes."""


def _without_own(settings: Sequence[str]) -> tuple[str, ...]:
    """`--set store=…` says where the store is, and stands in no command; the others must be left out."""
    for each in settings:
        if (name := each.partition("=")[0]) in _OWN[1:]:
            raise ConfigError(f"--set {name}=...: the deployment sets it; leave it out")
    return tuple(each for each in settings if not each.startswith("store="))


def _try_settings(trainer: Settings, gateway: bool) -> None:
    """Raise ConfigError for what the trainer's start would refuse in its container."""
    own: dict[str, Any] = {"store": OWN_STORE, "folder": RUNS, "resume": "auto", "listen": "127.0.0.1:0"}
    roles = ("runner", "gateway") if gateway else ("runner",)
    replace(trainer, **{**own, "address": None, "remote": roles})


def _outer_store(url: str | None) -> str | None:
    """The URL of a server that other machines reach, without its password; None for a file or memory."""
    if url is None or urlsplit(url).scheme not in PASSWORDS:
        return None
    shown = without_password(url)
    if urlsplit(shown).hostname in (None, "localhost", "127.0.0.1", "::1"):
        raise ConfigError(
            f"store {shown!r} is on this machine, which a container does not reach: give the URL of a server "
            "(--set store=postgresql://user@db.example/runs), or leave it out and one is deployed"
        )
    return shown


def _check_model(trainer: Settings) -> None:
    model = str(trainer.served_model)
    if Path(model).is_dir() and (Path(model).is_absolute() or ".." in Path(model).parts):
        raise ConfigError(
            f"model {model!r} lies outside of the folder that goes into the image: give a path below "
            "this folder, or a name on the hub"
        )


def inside(path: Path) -> str:
    """The path relative to this folder. Raises ConfigError for one that is not below it."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        raise ConfigError(
            f"{str(path)!r} is not below {str(Path.cwd())!r}, which goes into the image: give the command "
            "in your project's folder"
        ) from None


def _name(script: Path) -> str:
    """Returns the name of the script, or of its folder if the script's own says nothing, as a valid host
    name."""
    path = script.resolve()
    stem = path.parent.name if path.stem in ("train", "main", "run") else path.stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower())[:30].strip("-") or "agent"


def refuse_key(text: str) -> None:
    """Raise ConfigError if an argument that would stand in a file looks like a key or a password."""
    if mask(text) != text or _KEY.search(text):
        raise ConfigError(
            f"{mask(_KEY.sub('***', text))!r} looks like a key, and would stand in a file: give its name "
            "with --secret NAME, and let the script read it from the environment"
        )


def hosts_of(store: str) -> dict[str, str]:
    """Host, port, user and database of a PostgreSQL URL, and the schema of the store's tables."""
    parts = urlsplit(store)
    schema = re.search(r"(?:^|&)schema=(\w+)", parts.query)
    return {
        "host": parts.hostname or "",
        "port": str(parts.port or 5432),
        "userName": parts.username or "",
        "dbName": parts.path.lstrip("/"),
        "schema": schema[1] if schema else "lightning",
    }
