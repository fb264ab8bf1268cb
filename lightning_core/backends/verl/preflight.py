"""Whether a model can be trained by verl and served by vLLM on what there is: for `--dry-run` and the start.

Up to four things may be too small: a GPU while it trains; the share of it that vLLM takes; a GPU that serves,
with what training leaves there; and main memory. Training is as `backends.preflight` says. A GPU that serves,
of p = tensor_parallel that share a replica, needs

    weights       b P / p
    working       s (b (2 h + 3 f / p)) + 12 r V      a pass of s = 8,192 tokens, and scores of r replies
    keys, values  2 b k L / p                         of a token; k is no less than one head on each GPU

vLLM takes its share `gpu_memory` of a GPU at the start and fills what is left with keys and values; it does
not start unless one reply of the full context fits. A critic is trained as the policy is, from weights of its
own, without LoRA; a reference policy lies in main memory, and is on the GPU a layer at a time. Attention is
fused, and takes no memory. On a CPU there are no checkpoints, and a pass is one context: tests fill no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends import preflight
from lightning_core.backends.preflight import (
    Check,
    MemoryEstimate,
    MemoryUse,
    RunPlan,
    TrainingMemory,
    gib,
    share,
    training_memory,
    trial,
)
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.verl.resources import (
    Resources,
    check_gpus,
    count_gpus,
    find_resources,
    told_counts,
    wanted,
)
from lightning_core.backends.verl.settings import VerlSettings, verl_values
from lightning_core.backends.weights.sizes import ModelSize
from lightning_core.errors import BackendError, ConfigError

SERVING_TOKENS: Final = 8192
"""Tokens of a pass of vLLM, verl's default."""
BASE: Final = 2 << 30
"""Bytes on each GPU, whatever the model: CUDA's context and libraries, NCCL's buffers, CUDA graphs, a
sleeping server's rest, gaps between tensors. An estimate, meant to be too high rather than too low."""
PROCESS: Final = 1 << 30
"""Main memory of each worker or server: Python and its libraries, measured with torch's CPU build."""


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Bytes of each GPU that serves."""

    weights: int
    working: int
    token: int
    """Keys and values of a token."""
    context: int
    """Keys and values of one reply of the full context."""

    @property
    def least(self) -> int:
        """Without which vLLM does not start."""
        return self.weights + self.working + self.context

    def __str__(self) -> str:
        return (
            f"at least {gib(self.least)}: weights {gib(self.weights)}, a pass {gib(self.working)}, a "
            f"reply of the full context {gib(self.context)}"
        )


def plan_run(
    settings: VerlSettings,
    size: ModelSize,
    algorithms: Sequence[Algorithm],
    resources: Resources | None = None,
) -> RunPlan:
    """Returns the plan of a run with the algorithms of all phases. Ray, workers and servers are not started;
    with `address` the cluster is asked what GPUs it has."""
    lost: tuple[Check, ...] = ()
    try:
        resources = resources or find_resources(settings)
    except BackendError as problem:
        resources, lost = Resources((), "Ray"), (Check("Ray", False, str(problem)),)
    gpus = count_gpus(settings, resources.counts)
    training = policy_memory(settings, size, gpus * settings.nodes)
    critic, reference = networks_beside(settings, algorithms)
    beside = ["a critic"] * critic + ["a reference"] * reference
    more = f"; on top of that {' and '.join(beside)}" if beside else ""
    facts = (
        *size.facts(settings.lora),
        ("machines", _machines(settings, gpus)),
        ("memory to train", f"{training}{more}"),
        ("memory to serve", str(serving_memory(settings, size))),
        ("learning rate", f"{settings.rate(size.parameters):.3g} after {settings.warmup_steps} steps"),
        ("a pass", f"{settings.pass_tokens(size.context):,} tokens on each GPU"),
    )
    fits = check_memory(settings, size, resources, algorithms)
    return RunPlan(facts, (_check_verl(settings, size, gpus), *lost, _check_gpus(settings, resources), fits))


def _machines(settings: VerlSettings, gpus: int) -> str:
    kind = "process" if settings.device == "cpu" else "GPU"
    training = f"{settings.nodes} x {gpus} {kind}{'s' * (gpus > 1)} train ({settings.strategy})"
    replicas = (settings.serving_gpus or gpus) * settings.nodes // settings.tensor_parallel
    how = "and serve in turn" if settings.sleeps else "and serve at the same time"
    if settings.separate:
        how = f"and {settings.nodes} x {settings.serving_gpus} others serve"
    return f"{training} {how}; {replicas} vLLM replica{'s' * (replicas != 1)} of {settings.tensor_parallel}"


def _check_verl(settings: VerlSettings, size: ModelSize, gpus: int) -> Check:
    """verl's version, and the overrides against its configuration, where verl is installed."""
    try:
        version("verl")
    except PackageNotFoundError:
        return Check("verl", False, "not installed here: pip install 'agent-lightning-core[verl]'")

    def check() -> str:
        from lightning_core.backends.verl.cluster import VERSIONS
        from lightning_core.backends.verl.configuration import make_config

        values = verl_values(settings, folder=size.folder, context=size.context, gpus=gpus)
        make_config(values, settings.strategy)
        known = f"; it knows the {len(settings.overrides)} overrides" if settings.overrides else ""
        return f"{version('verl')}, of {VERSIONS[0]} to below {VERSIONS[1]}{known}"

    return trial("verl", check)


def _check_gpus(settings: VerlSettings, resources: Resources) -> Check:
    if settings.device != "cpu" and not resources.machines:
        return Check("GPUs", None, f"{wanted(settings, ())} needed")

    def check() -> str:
        check_gpus(settings, resources)
        if settings.device == "cpu":
            return "processes in their place, as the environment says"
        needed = wanted(settings, resources.counts)
        return f"{needed} needed, {resources.source} has {told_counts(resources.counts)}"

    return trial("GPUs", check)


# memory ---------------------------------------------------------------------------------------
def check_memory(
    settings: VerlSettings, size: ModelSize, resources: Resources, algorithms: Sequence[Algorithm]
) -> Check:
    """Whether the model fits, for the algorithms of all phases; if not, with what would help."""
    found = estimate(settings, size, resources, algorithms)
    others = (
        (
            text,
            estimate(
                changed,
                replace(size, context=min(size.context, changed.context or size.context)),
                resources,
                algorithms,
            ),
        )
        for text, changed in _changes(settings, size, count_gpus(settings, resources.counts))
    )
    return preflight.check_memory(size, resources.source, found, others)


def estimate(
    settings: VerlSettings, size: ModelSize, resources: Resources, algorithms: Sequence[Algorithm]
) -> MemoryEstimate:
    """All that may be too small, with what there is of it."""
    gpus = count_gpus(settings, resources.counts)
    ranks = gpus * settings.nodes
    critic, reference = networks_beside(settings, algorithms)
    training, serving = policy_memory(settings, size, ranks), serving_memory(settings, size)
    valuing = critic_memory(settings, size, ranks) if critic else None
    kept = training.state + (valuing.state if valuing else 0)
    peak = _peak(training, valuing, offload=settings.offload)
    servers = (settings.serving_gpus or gpus) // settings.tensor_parallel
    main = PROCESS * (gpus * (1 + critic + reference) + servers)
    main += gpus * kept * settings.offload + 4 * size.parameters // settings.nodes * reference
    if settings.device == "cpu":
        total = main + gpus * peak + servers * serving.least
        return MemoryEstimate((MemoryUse("main memory", total, resources.memory),))
    beside = 0 if settings.offload else kept
    if valuing is not None:  # it tells values before the servers' memory is freed
        beside += valuing.forward + valuing.weights * settings.offload
    part = None if resources.smallest is None else int(resources.smallest * settings.gpu_memory)
    awake = 0 if settings.separate or settings.sleeps else part or serving.least
    serves = BASE + beside + (part or serving.least)
    uses = [
        MemoryUse("each GPU while it trains", BASE + peak + awake, resources.smallest),
        MemoryUse("vLLM's share of each GPU", serving.least, part),
        *([] if settings.separate else [MemoryUse("each GPU while it serves", serves, resources.smallest)]),
        MemoryUse("main memory of each machine", main, resources.memory),
    ]
    return MemoryEstimate(tuple(uses))


def policy_memory(settings: VerlSettings, size: ModelSize, ranks: int) -> TrainingMemory:
    """Returns the policy's memory on each rank."""
    return training_memory(
        size,
        settings.lora,
        tokens=size.context if settings.device == "cpu" else settings.pass_tokens(size.context),
        number=settings.number_bytes,
        ranks=ranks,
        checkpoints=settings.device != "cpu",
        shards=True,
    )


def critic_memory(settings: VerlSettings, size: ModelSize, ranks: int) -> TrainingMemory:
    """Returns the critic's memory on each rank: all its weights are trained, and its head has one number in
    place of the words."""
    return replace(policy_memory(_changed(settings, lora=None), size, ranks), logits=0)


def serving_memory(settings: VerlSettings, size: ModelSize) -> ServingMemory:
    """Returns the memory of each GPU that serves."""
    b, parallel = settings.number_bytes, settings.tensor_parallel
    token = 2 * b * max(share(size.keys, parallel), size.keys // size.key_heads) * size.layers
    working = SERVING_TOKENS * b * (2 * size.hidden + 3 * share(size.inner, parallel))
    return ServingMemory(
        weights=share(b * size.parameters, parallel),
        working=working + 12 * settings.max_batch * size.vocabulary,
        token=token,
        context=token * size.context,
    )


def networks_beside(settings: VerlSettings, algorithms: Sequence[Algorithm]) -> tuple[bool, bool]:
    """Whether the algorithms of a run's phases need a critic and a reference policy. With LoRA the start is
    at hand, without its adapters; what a later phase begins with is not."""
    later = algorithms if settings.lora is None else algorithms[1:]
    critic = any(algorithm.critic is not None for algorithm in algorithms)
    return critic, any(algorithm.needs_reference for algorithm in later)


def _peak(policy: TrainingMemory, critic: TrainingMemory | None, *, offload: bool) -> int:
    """The most of an update: policy and critic are trained one after the other."""
    if critic is None:
        return policy.peak
    if offload:
        return max(policy.peak, critic.peak)
    working = max(policy.peak - policy.state, critic.peak - critic.state)
    return policy.state + critic.state + working


def _changes(settings: VerlSettings, size: ModelSize, gpus: int) -> Iterator[tuple[str, VerlSettings]]:
    """Settings that people turn to make a model fit, with how that is written."""
    parallel = 2 * settings.tensor_parallel
    tokens, half = settings.pass_tokens(size.context), max(256, size.context // 2)
    tried: list[tuple[str, dict[str, Any]]] = [
        (f"gpus={2 * gpus}", {"gpus": 2 * gpus}),
        (f"tensor_parallel={parallel}", {"tensor_parallel": parallel}),
        ("offload=True", {"offload": True}),
        ("sleep=True", {"sleep": True}),
        ("lora=LoraOptions()", {"lora": settings.lora or LoraOptions()}),
        ("dtype='bfloat16'", {"dtype": "bfloat16"}),
        *((f"gpu_memory={part}", {"gpu_memory": part}) for part in (0.3, 0.4, 0.6, 0.7, 0.8, 0.9)),
        (f"pack_tokens={tokens // 2}", {"pack_tokens": tokens // 2}),
        (f"context={half}", {"context": half, "pack_tokens": settings.pass_tokens(0)}),
        (f"max_batch={settings.max_batch // 4}", {"max_batch": settings.max_batch // 4}),
    ]
    for text, change in tried:
        try:
            yield text, _changed(settings, **change)
        except ConfigError:
            continue


def _changed(settings: VerlSettings, **change: object) -> VerlSettings:
    plain: dict[str, Any] = {
        each.name: getattr(settings, each.name) for each in fields(VerlSettings) if each.init
    }
    return VerlSettings(**{**plain, **change})
