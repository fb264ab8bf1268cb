"""What a run on verl and vLLM would be, told without starting Ray, a worker or a server.

With `address` the cluster is asked what GPUs it has; nothing is left running on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.preflight import Check, Fact, Outline, gib, many, trial
from lightning_core.backends.shape import Shape
from lightning_core.backends.verl.memory import Fit, Serving, Training, fit, networks_beside, shortage
from lightning_core.backends.verl.resources import Supply, enough, find_supply, told_counts, wanted
from lightning_core.backends.verl.settings import VerlSettings, find_device, verl_values
from lightning_core.errors import BackendError


def plan(settings: VerlSettings, shape: Shape, algorithm: Algorithm) -> str:
    """What the backend's part of a run would be, as lines of text."""
    return outline(settings, shape, [algorithm]).text()


def outline(
    settings: VerlSettings, shape: Shape, algorithms: Sequence[Algorithm], supply: Supply | None = None
) -> Outline:
    """The same as facts and checks, for the algorithms of all phases."""
    critic, reference = networks_beside(settings, algorithms)
    lost: tuple[Check, ...] = ()
    if supply is None:
        try:
            supply = find_supply(settings)
        except BackendError as problem:
            supply, lost = Supply((), "Ray"), (Check("Ray", False, str(problem)),)
    found = fit(settings, shape, supply, critic=critic, reference=reference)
    facts = (
        Fact("model", f"{shape.folder}, {many(shape.parameters)} parameters"),
        Fact("context", f"{shape.context:,} tokens of prompt and reply"),
        Fact("trained", _trained(settings, shape)),
        Fact("machines", _machines(settings, found)),
        Fact("memory to train", _training(found.training, critic=critic, reference=reference)),
        Fact("memory to serve", _serving(found.serving)),
        Fact("memory in all", _together(settings, found, supply)),
        Fact("learning rate", f"{settings.rate(shape.parameters):g} after {settings.warmup_steps} steps"),
        Fact("a pass", f"{max(settings.pack_tokens or 16384, shape.context):,} tokens on each GPU"),
    )
    checks = (*_packages(settings, shape, found.gpus), *lost, _gpus(settings, found, supply))
    checks = (*checks, *_memory(settings, shape, supply, found, critic=critic, reference=reference))
    return Outline(facts, checks, shape.context)


# facts ------------------------------------------------------------------------------------
def _trained(settings: VerlSettings, shape: Shape) -> str:
    if settings.lora is None:
        return "all weights, kept in float32"
    share = shape.trained(settings.lora)
    return f"LoRA of rank {settings.lora.rank}: {many(share)} parameters, beside weights that stay"


def _machines(settings: VerlSettings, found: Fit) -> str:
    kind = "process" if find_device() == "cpu" else "GPU"
    training = f"{settings.nodes} x {found.gpus} {kind}{'s' * (found.gpus > 1)} train ({settings.strategy})"
    serving = settings.serving_gpus or found.gpus
    replicas = serving * settings.nodes // settings.tensor_parallel
    how = "and serve in turn" if settings.sleeps else "and serve at the same time"
    if settings.separate:
        how = f"and {settings.nodes} x {settings.serving_gpus} others serve"
    return f"{training} {how}; {replicas} vLLM replica{'s' * (replicas != 1)} of {settings.tensor_parallel}"


def _training(need: Training, *, critic: bool, reference: bool) -> str:
    beside = [name for name, there in (("a critic", critic), ("a reference", reference)) if there]
    more = f"; on top of that {' and '.join(beside)}" if beside else ""
    return (
        f"at most {gib(need.peak)}: weights {gib(need.weights)}, gradients {gib(need.gradients)}, Adam "
        f"{gib(need.optimizer)}, a full pass {gib(need.activations)} with logits {gib(need.logits)} and "
        f"gathered layers {gib(need.gathered)}{more}"
    )


def _serving(need: Serving) -> str:
    return (
        f"at least {gib(need.least)}: weights {gib(need.weights)}, a pass {gib(need.working)}, a reply of "
        f"the full context {gib(need.context)}"
    )


def _together(settings: VerlSettings, found: Fit, supply: Supply) -> str:
    size = supply.smallest
    needed = ", ".join(f"{use.what} {gib(use.need)}" for use in found.uses)
    if size is None:
        return needed
    replies = found.serving.replies(size * settings.gpu_memory)
    return f"{needed}; vLLM's share of {gib(size * settings.gpu_memory)} holds {replies} full replies at once"


# checks -----------------------------------------------------------------------------------
def _packages(settings: VerlSettings, shape: Shape, gpus: int) -> tuple[Check, ...]:
    """verl's version, and the overrides against its configuration, where verl is installed."""
    try:
        version("verl")
    except PackageNotFoundError:
        how = "not installed here: pip install 'agent-lightning-core[verl]'"
        told = f"{len(settings.overrides)} given; verl tells whether it knows them"
        return Check("verl", False, how), Check("overrides", None, told)

    def check_verl() -> str:
        from lightning_core.backends.verl.cluster import VERSIONS

        return f"{version('verl')}, of {VERSIONS[0]} to below {VERSIONS[1]}"

    def check_overrides() -> str:
        from lightning_core.backends.verl.configuration import make_config

        device = find_device()
        values = verl_values(settings, folder=shape.folder, context=shape.context, gpus=gpus, device=device)
        make_config(values, settings.strategy)
        return f"{len(settings.overrides)}, known to verl"

    installed = trial("verl", check_verl)
    return (installed, trial("overrides", check_overrides)) if installed.holds else (installed,)


def _gpus(settings: VerlSettings, found: Fit, supply: Supply) -> Check:
    needed = wanted(settings, supply.counts)
    if find_device() == "cpu":
        asked = (found.gpus + settings.serving_gpus) * settings.nodes
        return Check("GPUs", True, f"{asked} processes in their place, as the environment says")
    told = f"{needed} needed, {supply.source} has {told_counts(supply.counts)}"
    if enough(settings, supply.counts):
        return Check("GPUs", True, told)
    if not supply.machines:
        return Check("GPUs", None, f"{needed} needed")
    return Check(
        "GPUs",
        False,
        f"{told}; lower gpus, nodes or serving_gpus, join a cluster that has them (address=...), or "
        'train on this machine\'s processor with backend="local"',
    )


def _memory(
    settings: VerlSettings, shape: Shape, supply: Supply, found: Fit, *, critic: bool, reference: bool
) -> tuple[Check, ...]:
    if found.short:
        return (
            Check(
                "memory", False, shortage(settings, shape, supply, found, critic=critic, reference=reference)
            ),
        )
    unknown = [use for use in found.uses if use.there is None]
    if unknown:
        return (Check("memory", None, f"{unknown[0].what} needs {gib(unknown[0].need)}"),)
    told = ", ".join(f"{use.what} {gib(use.need)} of {gib(use.there or 0)}" for use in found.uses)
    return (Check("memory", True, told),)
