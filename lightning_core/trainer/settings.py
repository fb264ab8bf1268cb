"""The settings of a run: one frozen value, which every part of the trainer reads and none changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter, signature
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Final, Literal, Self

from lightning_core.air.base import AIR
from lightning_core.alerts.watch import Alerts
from lightning_core.algorithms.base import Algorithm, Phase
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.algorithms.search import Search, is_search
from lightning_core.backends.settings import BackendSettings, PolicyOptions
from lightning_core.errors import ConfigError
from lightning_core.experience.returns import FailurePolicy
from lightning_core.gateway.naming import Naming
from lightning_core.judge.judge import Judge
from lightning_core.prompts import ALL, Prompt
from lightning_core.ranges import check_kind, check_range
from lightning_core.records.types import Role
from lightning_core.runner.ray_workers import RayWorkers, Workers, parse_workers
from lightning_core.stores.versions import POLICY, is_taken
from lightning_core.trackers.base import Tracker

DEFAULT_STEPS = 40
EVALUATE_EVERY = 10
"""Updates between evaluations where nothing says how many updates to make."""
LARGEST_PORT: Final = 65_535
POLICY_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
TINY: Final = "tiny"
"""The model that the project ships for its examples."""
MODELS: Final = (
    'give model="smollm2" (135 M parameters, reads English), a transformers folder, a .gguf file, or a name '
    'on the hub such as "Qwen/Qwen3-0.6B"; "tiny" writes only the queries of examples/sql, for a trial. On '
    "the command line: --set model=...; which model suits: docs/own-model.md"
)
"""The models that one can name, for someone who named none."""
REMOTE_ROLES: Final[tuple[Role, ...]] = ("gateway", "runner")
"""Roles that other processes can play; the trainer's is here."""

KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = MappingProxyType(
    {
        "model": ((str, Path, NoneType), "a model's name or a folder"),
        "agents": ((str, Sequence, NoneType), "names or globs of agents, or None"),
        "policies": ((Mapping,), '{"AGENT": "the name of a policy"}, or PolicyOptions(...) in its place'),
        "names": ((Mapping,), '{"AGENT": "a regular expression in its system prompt"}'),
        "prompts": ((str, Mapping), '{"AGENT": "its system prompt"}, or "all"'),
        "store": ((str, NoneType), "a URL, or None"),
        "folder": ((str, Path, NoneType), "a path, or None"),
        "remote": ((str, Sequence), f"names among {', '.join(REMOTE_ROLES)}"),
        "listen": ((str,), "HOST:PORT, such as 0.0.0.0:8000"),
        "address": ((str, NoneType), "a URL, or None"),
        "workers": ((int, str, RayWorkers, NoneType), "a number, 'ray:8', RayWorkers(...) or None"),
        "on_failure": ((FailurePolicy,), 'FailurePolicy(...), or with --set {"then": "drop"}'),
        "constrain": ((bool,), "True or False"),
        "stop_when_solved": ((bool,), "True or False"),
        "export_best": ((bool,), "True or False"),
        "air": ((AIR, bool, NoneType), "True, False or AIR(...)"),
        "judge": ((Judge, NoneType), 'Judge(...), with --set {"model": ...}, or None'),
        "trackers": ((str, Sequence), "names or objects of trackers"),
        "group_by": ((str, NoneType), "the name of a field of the tasks, or None"),
        "progress": ((bool,), "True or False"),
    }
)
"""Types of each setting, and their description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked arguments of `Trainer`; the parts of a run read them."""

    model: str | Path | None = None
    """A transformers folder, a .gguf file, a name on the hub, "smollm2" (135 M parameters, reads English), or
    "tiny", which only writes SQLite for the examples. The local backend takes architectures like Llama's and
    Qwen's. A run that trains weights needs one, here or in a backend object. None where prompts alone are
    searched or no agent is trained: then every agent stays at its own endpoint."""
    agents: Sequence[str] | str | None = None
    """Names or globs of the agents to train; None trains all. [] with `steps=0` trains none: their calls are
    recorded where the app sends them."""
    policies: Mapping[str, str | PolicyOptions] = field(default_factory=dict)
    """Further policies beside the run's own: names or globs of agents, and the name of the policy that they
    play, or `PolicyOptions` with its name. Each has weights, an optimizer and versions of its own. Agents
    that match none play the run's own policy, as do all where this is empty; see docs/policies.md."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names for the calls of a program that names no agent: the name, and a regular expression that is found
    in the system prompt of its calls. A call that matches two of them is refused by both names."""
    prompts: Mapping[str, str | Prompt] | Literal["all"] = field(default_factory=dict)
    """The system prompt of each agent whose prompt has versions, as the app sends it; `Prompt` says where the
    app puts values into it. Rollouts are pinned to a version of each. "all": those of `agents` that a few
    rollouts show, for a search."""
    algorithm: Algorithm | Search | str | Sequence[Phase] = field(default_factory=GRPO)
    """An algorithm with its options, or the name of one with its defaults; or a search for better prompts.
    Several in turn as `Phase`s."""
    backend: Any = "local"
    """A backend's name, or a backend object, which then has the model instead of `model`."""
    store: str | None = None
    """URL of the store; by default an SQLite file in the run's folder."""
    steps: int | None = None
    """Updates to make: by default 40, or as many as the phases have."""
    folder: str | Path | None = None
    """Where the run lies; by default `runs/<date-time>`."""
    resume: bool | Literal["auto"] = False
    """Go on with the run in `folder`; if none is given, with the newest in `runs/`. "auto": if there is one
    in `folder`, else begin it; for a command that something else starts again, such as a container's."""
    seed: int = 0
    remote: Sequence[str] | str = ()
    """Roles that other processes play: "runner" (`agentlightning worker`), "gateway" (`agentlightning
    gateway`) or both. They meet in the store; see docs/machines.md."""
    listen: str = "127.0.0.1:0"
    """HOST:PORT of the gateway. By default only this machine can reach it; port 0 is a free one, which a
    resumed run keeps."""
    address: str | None = None
    """URL at which workers reach the gateway, if it is another than `listen` says."""
    concurrency: int = 32
    """Rollouts at the same time in this process. With 64, the connection pool of the app's own HTTP client
    costs a third more CPU per call than with 32 (it looks at every connection at each request); below 16 the
    engine idles."""
    timeout: float | None = 300.0
    """Seconds one rollout may take."""
    workers: Workers = None
    """Worker processes on this machine, which run one rollout at a time each; "ray:8" or `RayWorkers` for
    those of a Ray cluster. None: rollouts run in this process."""
    on_failure: FailurePolicy = field(default_factory=FailurePolicy)
    temperature: float = 1.0
    """At which training rollouts are sampled, and trained on. 1 is the policy itself; more explores more."""
    constrain: bool = True
    """Hold replies of trained agents to the form that their requests ask for, such as a JSON Schema. False:
    the prompt asks for it, and AIR's rule `unfit_reply` sees replies that do not fit."""
    air: AIR | bool | None = None
    """Automatic intermediate rewards: True for the default rules, or an `AIR` of your own."""
    judge: Judge | None = None
    """Gives the rollouts of each group their final reward. Evaluations are not judged: there the reward of
    `solve` counts."""
    max_logprob_gap: float | None = None
    """Stop if what is trained is not what was sampled: if log-probabilities of an update's own tokens, as
    sampled and as trained, are more nats apart on average. None: 0.2 in float32, 0.5 in half precision.
    With a large number, such as 1e9, nothing stops."""
    alerts: Alerts | bool = True
    """Say when something about the run looks wrong: False for nothing, or an `Alerts` with thresholds of your
    own. An alert never stops a run."""
    trackers: Sequence[Tracker | str] | str = ()
    """Where else the numbers go: "tensorboard", "wandb", "mlflow", or objects such as
    `trackers.wandb.Wandb("my-project")`. One that fails stops nothing."""
    evaluate_every: int | None = None
    """Also evaluate after every so many steps; before and after training it is done anyway. None: every ten,
    if neither `steps` nor phases are given, else not in between."""
    stop_when_solved: bool = True
    """End early once two evaluations in a row solve every held-out task: greedy, each with a reward of 1, and
    no reward other than 0 and 1. It needs evaluations in between."""
    stop_when_stuck: int | None = 10
    """End early after so many updates in a row in which all rollouts of every task got the same reward, so
    that no reply was better than another. None goes on. Of several phases only the last is watched."""
    export_best: bool = True
    """Export the trained version with the highest greedy held-out reward, the newest of equals, and make it
    the current one. False: the last version. Evaluations in between give a choice."""
    group_by: str | None = None
    """A field of the tasks' input by which success is shown separately, such as the kind of question."""
    checkpoint_every: int = 1
    keep_checkpoints: int | None = None
    """How many of the newest checkpoints are kept, to resume from. None keeps two while the run goes on, and
    one without the optimizer's state once it has finished. The best version by evaluation is kept too, and
    never deleted is what something points at."""
    progress: bool = True
    """Show progress on the terminal (standard error)."""

    # A dataclass makes its own __init__, which answers an unknown name with a bare TypeError. One written by
    # hand would repeat the 40 fields; this runs before it, and the message names the nearest setting.
    def __new__(cls, *_: object, **given: object) -> Self:
        taken = signature(cls.__init__).parameters.values()
        if not any(each.kind is Parameter.VAR_KEYWORD for each in taken):  # a subclass may take more
            check_names(given, [each.name for each in taken][1:])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, (kinds, give) in KINDS.items():
            check_kind(name, getattr(self, name), kinds, give)
        check_range("seed", self.seed, whole=True)
        counts = {
            "steps": 0,
            "concurrency": 1,
            "checkpoint_every": 1,
            "evaluate_every": 1,
            "stop_when_stuck": 1,
            "keep_checkpoints": 1,
        }
        for name, least in counts.items():
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, least=least, whole=True)
        parse_listen(self.listen)
        assert self.declared_prompts is not None  # raises for those that can't be used
        if self.resume not in (True, False, "auto"):
            raise ConfigError(f"resume={self.resume!r}: give True, False or 'auto'")
        if self.resume == "auto" and self.folder is None:
            raise ConfigError("resume='auto' needs the run's folder: give folder=... (--folder)")
        if isinstance(self.workers, int):
            check_range("workers", self.workers, least=1, whole=True)
        elif isinstance(self.workers, str):
            parse_workers(self.workers)
        if self.address is not None and not self.address.startswith(("http://", "https://")):
            raise ConfigError(f"address={self.address!r}: must be a URL, such as 'http://trainer.local:8000'")
        if "gateway" in self.remote_roles:
            self._check_remote_gateway()
        if self.agents is not None and not self.agents and self.steps != 0:
            raise ConfigError(
                "agents=[] trains no agent: give names or globs, None to train all, or steps=0 to record only"
            )
        Naming(self.names)
        check_policies(self.agent_policies)
        list(self.named_policies)  # raises for two that contradict one another
        check_range("temperature", self.temperature, above=0, most=2)
        if self.timeout is not None:
            check_range("timeout", self.timeout, above=0)
        if self.max_logprob_gap is not None:
            check_range("max_logprob_gap", self.max_logprob_gap, above=0)

    @property
    def host(self) -> str:
        """Host in `listen`."""
        return parse_listen(self.listen)[0]

    @property
    def port(self) -> int | None:
        """Port in `listen`; None for a free one."""
        return parse_listen(self.listen)[1] or None

    @property
    def total_steps(self) -> int:
        """Updates to make in all."""
        return self.steps if self.steps is not None else sum(phase.steps for phase in self.phases)

    @property
    def evaluations_between(self) -> range:
        """Updates after which the policy is evaluated, the start and the end left out."""
        every, named = self.evaluate_every, isinstance(self.algorithm, str)
        planned = self.steps is not None or (
            not named and (isinstance(self.algorithm, Sequence) or is_search(self.algorithm))
        )
        if every is None and not planned:
            every = EVALUATE_EVERY
        return range(every, self.total_steps, every) if every is not None else range(0)

    @property
    def phases(self) -> list[Phase]:
        """The phases of all updates; an algorithm alone is one.

        Raises ConfigError if they have fewer updates than `steps`.
        """
        if not isinstance(self.algorithm, Sequence) or isinstance(self.algorithm, str):
            if is_search(self.algorithm):
                return [Phase(self.algorithm, 1 if self.steps is None else self.steps)]
            return [Phase(self.algorithm, DEFAULT_STEPS if self.steps is None else self.steps)]
        phases = list(self.algorithm)
        if not all(isinstance(phase, Phase) for phase in phases):
            raise ConfigError("algorithm=[...] takes phases, such as Phase(SFT(), steps=10)")
        total = sum(phase.steps for phase in phases)
        if not phases or any(phase.steps < 1 for phase in phases):
            raise ConfigError("algorithm=[...] needs phases of at least one step each")
        if self.steps is not None and self.steps > total:
            raise ConfigError(f"steps={self.steps!r}, but the phases have {total} in all: leave steps out")
        return phases

    @property
    def asks_for_rollouts(self) -> bool:
        """Whether any update needs tasks, or whether all are made from demonstrations."""
        named = [phase.algorithm for phase in self.phases]
        return any(isinstance(each, str) or is_search(each) or each.learns_from is None for each in named)

    @property
    def searches(self) -> dict[int, Search]:
        """The searches of the run, by step."""
        found, first = {}, 0
        for phase in self.phases:
            if is_search(phase.algorithm):
                if phase.steps > 1:
                    raise ConfigError(f"{phase.algorithm.name!r} is one step of a run, not {phase.steps}")
                found[first] = phase.algorithm
            first += phase.steps
        return found

    @property
    def served_model(self) -> str | Path | None:
        """`model`, or the backend object's; None for a run without weights.

        Raises ConfigError if weights are trained and neither is named.
        """
        model: str | Path | None = (
            self.model if self.model is not None else getattr(self.backend, "model", None)
        )
        searching = bool(self.phases) and all(is_search(each.algorithm) for each in self.phases)
        if model is None and not (self.backend == "local" and (searching or self.patterns == ())):
            raise ConfigError(f"no model is named: {MODELS}")
        return model

    @property
    def patterns(self) -> tuple[str, ...] | None:
        """`agents` as a tuple; a single string is one pattern."""
        if self.agents is None:
            return None
        return (self.agents,) if isinstance(self.agents, str) else tuple(self.agents)

    @property
    def agent_policies(self) -> dict[str, str]:
        """`policies` as agents, by name or glob, and the name of the policy that each plays."""
        return {
            agent: policy.name if isinstance(policy, PolicyOptions) else policy
            for agent, policy in self.policies.items()
        }

    @property
    def named_policies(self) -> list[PolicyOptions]:
        """The policies in `policies`, each once. Raises ConfigError for one with two sets of options."""
        found = {name: PolicyOptions(name) for name in self.agent_policies.values()}
        plain = dict(found)
        for each in self.policies.values():
            if isinstance(each, PolicyOptions):
                if found[each.name] not in (plain[each.name], each):
                    raise ConfigError(
                        f"policies={{...}} gives policy {each.name!r} two sets of options, "
                        f"{found[each.name]!r} and {each!r}: give them once, and its name alone elsewhere"
                    )
                found[each.name] = each
        return list(found.values())

    @property
    def declared_prompts(self) -> dict[str, Prompt]:
        """`prompts`, each with its placeholders.

        Empty with "all": they are found in the run. Raises ConfigError for an empty prompt, and for a name
        that other versions have.
        """
        if isinstance(self.prompts, str):
            if self.prompts != ALL:
                raise ConfigError(
                    f'prompts={self.prompts!r}: give {{"AGENT": "its system prompt"}}, or "all"'
                )
            if not self.searches:
                raise ConfigError('prompts="all" finds prompts for a search, and this run has none: add one')
            return {}
        if taken := list(filter(is_taken, self.prompts)):
            raise ConfigError(f"prompts={{{taken[0]!r}: ...}}: the name is taken; rename the agent or prompt")
        given = self.prompts.items()
        return {name: each if isinstance(each, Prompt) else Prompt(each) for name, each in given}

    def _check_remote_gateway(self) -> None:
        """Raise ConfigError for what only a gateway in this process can do."""
        given = {"listen": self.listen != "127.0.0.1:0", "address": self.address}
        for name, value in given.items():
            if value:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is of the trainer's own gateway, and the gateway is "
                    f"remote: leave {name} out here, and give it to `agentlightning gateway`"
                )
        if self.checkpoint_every != 1:
            raise ConfigError(
                f"checkpoint_every={self.checkpoint_every!r}: a remote gateway serves what was saved, so "
                "each version must be; leave checkpoint_every at 1"
            )

    @property
    def remote_roles(self) -> frozenset[Role]:
        """`remote` as a set; of a string, the names between its commas.

        Raises ConfigError for what is no such role, or for a store that only this process can see.
        """
        given = self.remote.split(",") if isinstance(self.remote, str) else self.remote
        names = {name.strip() for name in given} - {""}
        roles = frozenset(role for role in REMOTE_ROLES if role in names)
        if unknown := sorted(names.difference(REMOTE_ROLES)):
            raise ConfigError(f"remote={unknown!r}: roles that can be remote are {', '.join(REMOTE_ROLES)}")
        if roles and (self.store or "").startswith("memory:"):
            raise ConfigError(
                f"store {self.store!r} can't be read by another process, so none can be "
                f"{' or '.join(sorted(roles))}; use 'sqlite:///runs.db' on one machine, 'postgresql://…' or "
                "'redis://…' on several"
            )
        return roles


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise ConfigError for a setting that there is not, and say where those of other parts go."""
    parts = {
        "backend": ("LocalBackend(MODEL, {}=...)", BackendSettings),
        "algorithm": ("GRPO({}=...)", GRPO),
    }
    for name in (name for name in given if name not in known):
        for part, (make, owner) in parts.items():
            if name in {each.name for each in fields(owner)}:
                raise ConfigError(
                    f"a trainer has no setting {name}; it is the {part}'s: {part}=lightning."
                    f"{make.format(name)}, or --set {part}.{name}=..."
                )
        raise ConfigError(f"a trainer has no setting {name}; it has {', '.join(known)}")


def check_policies(policies: Mapping[str, str]) -> None:
    """Raise ConfigError for a name that no policy can have: it is a folder's, and a model's for clients."""
    for agent, name in policies.items():
        if not (isinstance(agent, str) and isinstance(name, str) and POLICY_NAME.fullmatch(name)):
            raise ConfigError(
                f"policies={{{agent!r}: {name!r}}}: give an agent's name or glob, and a policy's name of up "
                "to 64 letters, digits, '_' and '-', such as \"checker\""
            )
        if name == POLICY:
            raise ConfigError(
                f"policies={{{agent!r}: {name!r}}}: {name!r} is the run's own policy, which every agent "
                "plays that is left out; leave this one out, or give its policy another name"
            )


def parse_listen(listen: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises ConfigError for anything else."""
    host, _, port = listen.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else None
    if not host or number is None or number > LARGEST_PORT:
        raise ConfigError(f"listen={listen!r}: give HOST:PORT, such as 0.0.0.0:8000; port 0 is a free one")
    return host.strip("[]"), number
