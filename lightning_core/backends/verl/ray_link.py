"""The Ray cluster: joining one or beginning one here, its actors' ends, and its errors in our words.

Nothing of verl is here. A cluster that was begun here is gone when this process is, however it ends: Ray's
daemons die with it, and then the workers (what these have started: `guard`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError

from lightning_core import telemetry
from lightning_core.backends.verl.guard import set_guard
from lightning_core.backends.verl.resources import COLOCATED, check_free, groups, unreachable
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.errors import BackendError
from lightning_core.texts.masking import is_secret

ALIVE_SECONDS: Final = 30.0
"""How long an actor may take to say that it lives."""
ASKS: Final = 3
"""Times in a row that it is asked before its silence counts as its end: a busy one is slow to answer."""
FREE_SECONDS: Final = 30.0
"""How long what was given back may take to be seen."""
LOOK_SECONDS: Final = 5.0
"""Between two looks at servers to which weights are sent."""
LOOPBACK: Final = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the machine's address in the network, where others reach it."""


class RayLink:
    """This process's connection to a Ray cluster."""

    def __init__(self, settings: VerlSettings) -> None:
        self._settings = settings
        self._joined = False
        self._claim: int | None = None

    def open(self, gpus: int) -> None:
        """Join the cluster, or begin one, for a run that trains on so many GPUs of each machine.

        Raises BackendError if it can't be reached, if others use the GPUs, or if another run is in the way.
        """
        if not ray.is_initialized():
            self._join(gpus)
        check_free(groups(self._settings, gpus))
        self._claim = _claim()

    def close(self) -> None:
        """Leave it, and end it if it was begun here. A second time does nothing."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None
        if self._joined:
            ray.shutdown()
            self._joined = False

    def _join(self, gpus: int) -> None:
        address = self._settings.address
        where = self._here(gpus) if address is None else {"address": address}
        environment = {"env_vars": _environment()}
        shown = logging.getLogger(__name__).isEnabledFor(logging.INFO)
        try:
            ray.init(**where, log_to_driver=shown, runtime_env=environment)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise unreachable(address, error) from error
        self._joined = True

    def _here(self, gpus: int) -> dict[str, Any]:
        """A cluster of this machine alone. What speaks HTTP is on loopback; Ray's own services are not to be
        kept from the network, and ask for a token."""
        all_gpus = gpus + self._settings.serving_gpus
        where: dict[str, Any] = {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, 2 * COLOCATED * all_gpus),
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
        }
        return {**where, "num_gpus": all_gpus} if self._settings.device == "cpu" else where


def _claim() -> int:
    """Keep other runs of the same number in Ray from this machine, until the file that is returned is closed.

    verl's workers hand weights to the servers through sockets in /tmp that have Ray's number of the run for
    their names, and each cluster counts from 1: with another run's workers the weights would go astray.
    Raises BackendError if there is another.
    """
    number = ray.get_runtime_context().get_job_id()
    path = f"/tmp/rl-colocate-zmq-{number}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, 0o666)
        os.fchmod(file, 0o666)  # the next run may be another user's
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise BackendError(
            "another run on this machine trains with verl in a Ray cluster of its own, and is there the "
            f"number that this one is here, {number}: weights of one would reach servers of the other. Let "
            'both join one cluster: `ray start --head`, then address="auto"'
        ) from error
    return file


def _environment() -> dict[str, str]:
    """Returns the variables that workers need of this process's environment; Ray passes on its own.

    Ray writes it to logs that every user of a machine may read, so no key is among it. Workers here
    inherit keys; on other machines, set them where Ray is started.
    """
    ours = ("VERL_", "VLLM_", "HF_", "NCCL_", "GLOO_", "OMP_", "TOKENIZERS_", "PYTHONPATH", "CUDA_LAUNCH")
    passed = (*ours, telemetry.SWITCH, *telemetry.VARIABLES)
    quiet = {"TOKENIZERS_PARALLELISM": "true", "VLLM_LOGGING_LEVEL": "WARN", "HYDRA_FULL_ERROR": "1"}
    given = {name: value for name, value in os.environ.items() if name.startswith(passed)}
    return {name: value for name, value in (quiet | given).items() if not is_secret(name)}


def done(answer: Any) -> Any:
    """A worker group gives some answers as promises."""
    return answer.get() if hasattr(answer, "get") and type(answer).__name__.endswith("Future") else answer


def alive(servers: Iterable[Any], *, busy: bool = False) -> bool:
    """Whether all of a replica's servers, and the engines behind them, say that they live. One that is `busy`
    may be silent."""
    servers = list(servers)
    for _ in range(1 if busy else ASKS):
        try:
            ray.get([server.get_server_address.remote() for server in servers], timeout=ALIVE_SECONDS)
            checks = [server.collective_rpc.remote("check_health") for server in servers]
            ray.get(checks, timeout=ALIVE_SECONDS)
        except GetTimeoutError:
            continue
        except RayError:
            return False
        return True
    return busy


@contextmanager
def ending_if(gone: Callable[[], bool], actors: Sequence[Any]) -> Iterator[None]:
    """In this context the actors are killed once what they wait for is gone: they would wait for ever."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            if gone():
                kill(actors)
                return

    watching = threading.Thread(target=watch, name="lightning-verl-watch", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def give_back(pool: Any) -> None:
    """Free the GPUs of a pool whose actors have ended."""
    for group in pool.pgs or ():
        ray.util.remove_placement_group(group)


def wait_until_free(pools: Iterable[Any]) -> None:
    """Return once Ray tells that the GPUs are free which these pools gave back: a moment later than they are,
    and verl looks once."""
    bundles = [bundle for pool in pools for group in pool.pgs or () for bundle in group.bundle_specs]
    gpus = sum(bundle.get("GPU", 0) for bundle in bundles)
    end = time.monotonic() + FREE_SECONDS
    while ray.available_resources().get("GPU", 0) < gpus and time.monotonic() < end:
        time.sleep(0.1)


def guard_all(servers: Iterable[Any]) -> None:
    """See to it that no engine outlives its server."""
    ray.get([server.__ray_call__.remote(set_guard) for server in servers])


def kill(actors: Iterable[Any]) -> None:
    """End them; what they were doing is lost."""
    for actor in actors:
        ray.kill(actor)


@contextmanager
def told(what: str) -> Iterator[None]:
    """In this context an error of Ray or verl becomes a BackendError that says what it led to."""
    try:
        yield
    except (RayError, OSError, RuntimeError, ValueError, AssertionError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise BackendError(
            f"{what}: {said[-1]}; what the workers said is in Ray's logs "
            "(/tmp/ray/session_latest/logs). Mend the cause, then resume the run"
        ) from error
