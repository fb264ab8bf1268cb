"""Whether a model fits: what it needs of each GPU and machine, beside what there is.

The formulas are in `needs`. There are up to four things that may be too small: a GPU while it trains; the
share of it that vLLM takes; a GPU that serves, with what training leaves there; and main memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.lora import LoraOptions
from lightning_core.backends.outline import gib
from lightning_core.backends.shape import Shape
from lightning_core.backends.verl.needs import (
    BASE,
    PROCESS,
    Serving,
    Training,
    critic_need,
    serving_need,
    training_need,
)
from lightning_core.backends.verl.settings import VerlSettings, find_device
from lightning_core.backends.verl.supply import Supply, count_gpus, find_supply
from lightning_core.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """One thing that may be too small, in bytes."""

    what: str
    """As in "GPU while training"."""
    need: int
    there: int | None
    """None: unknown."""

    @property
    def short(self) -> int:
        """By how much it is too little."""
        return 0 if self.there is None else max(0, self.need - self.there)


@dataclass(frozen=True, slots=True)
class Fit:
    """What settings make of a model, and what there is for it."""

    training: Training
    serving: Serving
    gpus: int
    """Of each machine that trains; ranks where there is no GPU."""
    uses: tuple[Use, ...]

    @property
    def short(self) -> int:
        """Bytes that are missing in all."""
        return sum(use.short for use in self.uses)


def networks_beside(settings: VerlSettings, algorithms: Sequence[Algorithm]) -> tuple[bool, bool]:
    """Whether the algorithms of a run's phases need a critic and a reference policy. With LoRA the start is
    at hand, without its adapters; what a later phase begins with is not."""
    later = algorithms if settings.lora is None else algorithms[1:]
    critic = any(algorithm.critic is not None for algorithm in algorithms)
    return critic, any(algorithm.needs_reference for algorithm in later)


def fit(
    settings: VerlSettings, shape: Shape, supply: Supply, *, critic: bool = False, reference: bool = False
) -> Fit:
    """Lay the needs beside the supply."""
    device = find_device()
    gpus = count_gpus(settings, supply.counts)
    training = training_need(settings, shape, gpus * settings.nodes, device)
    serving = serving_need(settings, shape, device)
    valuing = critic_need(training, settings, shape, gpus * settings.nodes, device) if critic else None
    kept = training.state + (valuing.state if valuing else 0)
    peak = _peak(training, valuing, offload=settings.offload)
    memory = _main_memory(settings, gpus, kept if settings.offload else 0, critic, reference)
    memory += gpus * 4 * shape.parameters // (gpus * settings.nodes) if reference else 0
    if device == "cpu":
        serve = (settings.serving_gpus or gpus) // settings.tensor_parallel * serving.least
        uses = (Use("main memory", memory + gpus * peak + serve, supply.memory),)
        return Fit(training, serving, gpus, uses)
    beside = 0 if settings.offload else kept
    if valuing is not None:  # it tells values before the servers' memory is freed
        beside += valuing.forward + (valuing.weights if settings.offload else 0)
    return Fit(training, serving, gpus, _gpu_uses(settings, serving, peak, beside, memory, supply))


def _gpu_uses(
    settings: VerlSettings, serving: Serving, peak: int, beside: int, memory: int, supply: Supply
) -> tuple[Use, ...]:
    """`peak` is the most of an update, `beside` the most while the servers answer."""
    size = supply.smallest
    share = None if size is None else int(size * settings.gpu_memory)
    awake = 0 if settings.separate or settings.sleeps else share or serving.least
    uses = [
        Use("each GPU while it trains", BASE + peak + awake, size),
        Use("vLLM's share of each GPU", serving.least, share),
    ]
    if not settings.separate:
        uses.append(Use("each GPU while it serves", BASE + beside + (share or serving.least), size))
    return (*uses, Use("main memory of each machine", memory, supply.memory))


def _peak(policy: Training, critic: Training | None, *, offload: bool) -> int:
    """The most of an update: policy and critic are trained one after the other."""
    if critic is None:
        return policy.peak
    if offload:
        return max(policy.peak, critic.peak)
    working = max(policy.peak - policy.state, critic.peak - critic.state)
    return policy.state + critic.state + working


def _main_memory(settings: VerlSettings, gpus: int, offloaded: int, critic: bool, reference: bool) -> int:
    """Of each machine: its processes, and what was moved there from the GPUs."""
    servers = (settings.serving_gpus or gpus) // settings.tensor_parallel
    return PROCESS * (gpus * (1 + critic + reference) + servers) + gpus * offloaded


def check_memory(
    settings: VerlSettings,
    shape: Shape,
    supply: Supply | None = None,
    *,
    critic: bool = False,
    reference: bool = False,
) -> None:
    """Raise ConfigError, with what would help, if the model can't fit.

    Where nothing is known of the GPUs, as on a machine that only starts the run, that is noted in the log.
    """
    supply = find_supply(settings) if supply is None else supply
    found = fit(settings, shape, supply, critic=critic, reference=reference)
    if supply.smallest is None and find_device() != "cpu":
        log.info("nothing is known of GPUs on %s, so whether the model fits was not checked", supply.source)
    if found.short:
        raise ConfigError(shortage(settings, shape, supply, found, critic=critic, reference=reference))


def shortage(
    settings: VerlSettings, shape: Shape, supply: Supply, found: Fit, *, critic: bool, reference: bool
) -> str:
    """What is needed, what there is, by how much it is too little, and which settings would help."""
    told = "; ".join(
        f"{use.what} needs {gib(use.need)} and has {gib(use.there or 0)}, {gib(use.short)} too little"
        for use in found.uses
        if use.short
    )
    enough, helps = [], []
    for text, changed in _changes(settings, shape, found):
        context = min(shape.context, changed.context or shape.context)
        tried = fit(changed, replace(shape, context=context), supply, critic=critic, reference=reference)
        if not tried.short:
            enough.append(text)
        elif tried.short < 0.98 * found.short:
            helps.append(f"{text} ({gib(found.short - tried.short)})")
    advice = [f"enough would be {' or '.join(enough)}"] if enough else []
    advice += [f"some help {'are' if len(helps) > 1 else 'is'} {', '.join(helps)}"] if helps else []
    return (
        f"model {shape.folder.name!r} with {shape.parameters / 1e9:.3g} B parameters does not fit on "
        f"{supply.source}: {told}; {'; '.join(advice) or 'take a smaller model or larger machines'}"
    )


def _changes(settings: VerlSettings, shape: Shape, found: Fit) -> Iterator[tuple[str, VerlSettings]]:
    """Settings that people turn to make a model fit, with how that is written."""
    tokens = max(settings.pack_tokens or 16384, shape.context)
    half = max(256, shape.context // 2)
    parallel = 2 * settings.tensor_parallel
    shares: list[tuple[str, dict[str, Any]]] = [
        (f"gpu_memory={share}", {"gpu_memory": share}) for share in (0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
    ]
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"gpus={2 * found.gpus}", {"gpus": 2 * found.gpus}),
        (f"tensor_parallel={parallel}", {"tensor_parallel": parallel}),
        ("offload=True", {"offload": True}),
        ("sleep=True", {"sleep": True}),
        ("lora=LoraOptions()", {"lora": settings.lora or LoraOptions()}),
        ("dtype='bfloat16'", {"dtype": "bfloat16"}),
        *shares,
        (f"pack_tokens={tokens // 2}", {"pack_tokens": tokens // 2}),
        (f"context={half}", {"context": half, "pack_tokens": min(tokens, settings.pack_tokens or 16384)}),
        (f"max_batch={settings.max_batch // 4}", {"max_batch": settings.max_batch // 4}),
    ]
    plain = {each.name: getattr(settings, each.name) for each in fields(VerlSettings)}
    for text, change in tried:
        try:
            changed = VerlSettings(**{**plain, **change})
        except ConfigError:
            continue
        yield text, changed
