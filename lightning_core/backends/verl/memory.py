"""What a model needs of each GPU and machine to be trained by verl and served by vLLM, and whether it fits.

Up to four things may be too small: a GPU while it trains; the share of it that vLLM takes; a GPU that serves,
with what training leaves there; and main memory. Figures are in bytes.

Training is shared by n = gpus * nodes ranks; P parameters, T of them trained (all, or LoRA's), b bytes of a
number in the forward pass (2 for bfloat16, 4 for float32), t tokens of a pass, V words of the vocabulary.

    weights       4 P / n           float32, in shards (ZeRO stage 3; Rajbhandari et al., arXiv 1910.02054)
    gradients     4 T / n           the same
    optimizer     8 T / n           Adam's two moments
    gathered      b (2 l + 2 o) + 4 max(l, o)
                                    whole for a moment: a layer l, the next one, and what is outside of the
                                    layers o, with its gradient; then one of them in float32 to be added up
                                    over the ranks (torch's `fully_shard`)
    activations   t b h L + t (b (6 h + 4 f + 4 (q + k)) + 8 h + 4 (q + k))
                                    with checkpoints the input of each of L layers (Korthikanti et al.,
                                    arXiv 2205.05198, section 5), and all of the one that is worked on:
                                    h hidden features, f inner ones, q queries, k keys; norms in float32.
                                    On a CPU there are none: all layers are kept whole, and t is
                                    one context, as tests fill no more
    logits        3 b t V           as they are, normalised, and their gradient
    step          4 T / n           Adam works on all tensors at once; when activations are gone

A pass without gradients keeps one layer's activations at a time, the second line of them, and no more.

Attention takes no memory of its own: it is fused, and a pass has no scores of t * t. The second line of
activations and the logits are what torch keeps for Qwen3's and Llama's layers, found by counting (see
tests/verl/test_memory.py); other architectures differ a little.

Serving, shared by p = tensor_parallel GPUs:

    weights       b P / p
    working       s (b (2 h + 3 f / p)) + 12 r V      a pass of s = 8,192 tokens, and scores of r replies
    keys, values  2 b k L / p                         of a token; k is no less than one head on each GPU

vLLM takes its share `gpu_memory` of a GPU at the start and fills what is left with keys and values; it does
not start unless one reply of the full context fits. A critic is trained as the policy is, from weights of its
own, without LoRA; a reference policy lies in main memory, and is on the GPU a layer at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.preflight import gib
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.shape import Shape
from lightning_core.backends.verl.resources import Supply, count_gpus, find_supply
from lightning_core.backends.verl.settings import VerlSettings, find_device
from lightning_core.errors import ConfigError

SERVING_TOKENS: Final = 8192
"""Tokens of a pass of vLLM, verl's default."""
BASE: Final = 2 << 30
"""Of each GPU, whatever the model: CUDA's context and libraries, NCCL's buffers, CUDA graphs, what a sleeping
server keeps, gaps between tensors. An estimate, meant to be too high rather than too low."""
PROCESS: Final = 1 << 30
"""Of main memory for each worker or server: Python and its libraries, measured with torch's CPU build."""


@dataclass(frozen=True, slots=True)
class Training:
    """Bytes of each rank."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    layer: int
    """Of the activations, those of the layer that is worked on."""
    logits: int
    step: int

    @property
    def state(self) -> int:
        """What lies there between updates, unless it is offloaded."""
        return self.weights + self.optimizer

    @property
    def peak(self) -> int:
        """The most at any moment of an update."""
        working = self.gathered + self.activations + self.logits
        return self.state + self.gradients + max(working, self.step)

    @property
    def forward(self) -> int:
        """Of a pass without gradients, beside the weights: no layer's activations outlast it."""
        return self.gathered + self.layer + self.logits


@dataclass(frozen=True, slots=True)
class Serving:
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

    def replies(self, share: float) -> int:
        """Replies of the full context that fit at once into so many bytes."""
        return max(0, int(share - self.weights - self.working) // self.context)


def number_bytes(settings: VerlSettings, device: str) -> int:
    """Bytes of a number in the forward pass and in the engine."""
    return 4 if settings.number_format(device) == "float32" else 2


def training_need(settings: VerlSettings, shape: Shape, ranks: int, device: str) -> Training:
    """Of each rank, for the policy."""
    b = number_bytes(settings, device)
    trained = shape.trained(settings.lora)
    tokens = shape.context if device == "cpu" else max(settings.pack_tokens or 16384, shape.context)
    wide, narrow = shape.query + shape.keys, shape.hidden
    whole = tokens * (b * (6 * narrow + 4 * shape.inner + 4 * wide) + 8 * narrow + 4 * wide)
    inputs = tokens * b * narrow * shape.layers
    return Training(
        weights=_share(4 * shape.parameters, ranks),
        gradients=_share(4 * trained, ranks),
        optimizer=_share(8 * trained, ranks),
        gathered=2 * b * (shape.layer + shape.outside) + 4 * max(shape.layer, shape.outside),
        activations=shape.layers * whole if device == "cpu" else inputs + whole,
        layer=whole,
        logits=3 * b * tokens * shape.vocabulary,
        step=_share(4 * trained, ranks),
    )


def critic_need(policy: Training, settings: VerlSettings, shape: Shape, ranks: int, device: str) -> Training:
    """Of each rank: all its weights are trained, and it has a head for one number in place of the words."""
    whole = policy if settings.lora is None else training_need(_without_lora(settings), shape, ranks, device)
    return replace(whole, logits=0)


def _without_lora(settings: VerlSettings) -> VerlSettings:
    plain = {each.name: getattr(settings, each.name) for each in fields(VerlSettings)}
    return VerlSettings(**{**plain, "lora": None})


def serving_need(settings: VerlSettings, shape: Shape, device: str) -> Serving:
    """Of each GPU that serves."""
    b, parallel = number_bytes(settings, device), settings.tensor_parallel
    keys = max(_share(shape.keys, parallel), shape.keys // shape.key_heads)
    token = 2 * b * keys * shape.layers
    working = SERVING_TOKENS * b * (2 * shape.hidden + 3 * _share(shape.inner, parallel))
    return Serving(
        weights=_share(b * shape.parameters, parallel),
        working=working + 12 * settings.max_batch * shape.vocabulary,
        token=token,
        context=token * shape.context,
    )


def _share(whole: int, parts: int) -> int:
    """Rounded up."""
    return -(-whole // parts)


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
