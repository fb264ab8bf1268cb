"""The parts that settings name, made: phases with their credit, store, backend and AIR's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import cast

from lightning_core.air.base import AIR
from lightning_core.air.rulebook import Rulebook
from lightning_core.algorithms.base import Algorithm, Phase, check_credit
from lightning_core.algorithms.search import is_search
from lightning_core.backends.base import Backend
from lightning_core.backends.no_weights import NoWeights
from lightning_core.credit.base import Credit
from lightning_core.errors import ConfigError
from lightning_core.plugins import Plugins
from lightning_core.records.types import ResourceVersion, Run
from lightning_core.stores.base import Store
from lightning_core.stores.versions import model_of, policy_of
from lightning_core.trainer.settings import Settings


@dataclass(frozen=True, slots=True)
class ResolvedPhase:
    """One phase: updates `first` to `end` - 1."""

    algorithm: Algorithm
    credit: Credit
    first: int
    end: int


def resolve_phases(phases: Sequence[Phase], plugins: Plugins) -> list[ResolvedPhase]:
    """Each phase that trains weights, with its credit method and its place in the run."""
    resolved: list[ResolvedPhase] = []
    first = 0
    for phase in phases:
        named = phase.algorithm
        if is_search(named):
            first += phase.steps
            continue
        algorithm: Algorithm = plugins.part("algorithm", named)() if isinstance(named, str) else named
        if not callable(getattr(algorithm, "loss", None)):
            raise ConfigError(
                f"algorithm={named!r} is none: give an algorithm such as GRPO(), or its name; on the command "
                "line its options are --set algorithm.NAME=VALUE"
            )
        credit = make_credit(algorithm.credit, plugins)
        check_credit(algorithm, credit)
        resolved.append(ResolvedPhase(algorithm, credit, first, first + phase.steps))
        first += phase.steps
    return resolved


def check_signals(phases: Sequence[ResolvedPhase], *, air: bool, judge: bool) -> None:
    """Raise ConfigError if rewards are to be made of rollouts and no update has any."""
    if any(phase.algorithm.learns_from is None for phase in phases):
        return
    for option, given in (("air", air), ("judge", judge)):
        if given:
            raise ConfigError(
                f"{option}=... gives rewards to training rollouts, and a run that learns only from "
                f"demonstrations has none; leave {option} out, or add a phase with rollouts"
            )


def make_credit(credit: str | Credit, plugins: Plugins) -> Credit:
    """The method given, or the one registered under a name; a class is made with its defaults."""
    if not isinstance(credit, str):
        return credit
    part = plugins.part("credit", credit)
    made: Credit = part() if isinstance(part, type) else part
    return made


def make_rulebook(setting: AIR | bool | None, plugins: Plugins) -> Rulebook | None:
    """The rules that `Trainer(air=...)` asks for; None if it is off.

    Raises ConfigError for a name under which no rule is registered.
    """
    if not setting:
        return None
    air = AIR() if setting is True else setting
    return Rulebook(air, tuple((name, plugins.part("air", name)) for name in air.rules))


def make_backend(settings: Settings, plugins: Plugins) -> Backend:
    """The backend named or given by the settings."""
    if isinstance(settings.backend, str):
        model = settings.served_model
        if model is None:
            if "gateway" in settings.remote_roles:
                raise ConfigError("a run without a model has no weights for a remote gateway: leave it out")
            return cast(Backend, NoWeights())  # it lacks what only training needs
        backend: Backend = plugins.part("backend", settings.backend)(model=model)
        backend.seed = settings.seed
        return backend
    if not hasattr(settings.backend, "model"):
        raise ConfigError(
            f"backend={settings.backend!r} is none: give a backend such as LocalBackend(...), or its name; "
            "on the command line its options are --set backend.NAME=VALUE"
        )
    given: Backend = settings.backend
    given.seed = settings.seed
    if settings.model is not None and str(settings.model) != str(given.model):
        raise ConfigError(
            f"model={str(settings.model)!r} and a backend object with model {given.model!r}: "
            "give the model to the backend alone"
        )
    return given


def open_store(url: str, plugins: Plugins) -> Store:
    """The store for a URL, by its scheme; enter it to open it."""
    store: Store = plugins.part("store", url.partition(":")[0])(url)
    return store


def open_reader(run: Run, versions: list[ResourceVersion], plugins: Plugins) -> Backend:
    """A backend that is not started, to read the run's versions with: of the kind that trained it. The local
    one stands in for a script's own backend object, which has no registered name, and for verl's where there
    is no vLLM."""
    kind = str(run.config.get("backend"))
    if kind not in plugins.names("backend") or (kind == "verl" and find_spec("vllm") is None):
        kind = "local"
    made: Backend = plugins.part("backend", kind)(model=base_model(run, versions))
    return made


def base_model(run: Run, versions: list[ResourceVersion]) -> str:
    """The model that the policy of these versions began with: its version 0, or what the run's record
    says."""
    start = next((version.uri for version in versions if version.version == 0), None)
    return start or str(model_of(run, policy_of(versions[0].name)))
