"""Pre-flight: what a run would be, and whether it fits into memory, before anything is started.

`--dry-run` prints a `RunPlan`; the verl backend makes the same estimate at its start. Only a model's
`config.json` is read. Figures are bytes: upper bounds for Qwen3's and Llama's layers, found by counting (see
tests/verl/test_memory.py); other architectures differ a little.

Training is shared by n ranks (1 in the local backend); P parameters, T of them trained (all, or LoRA's), b
bytes of a number in the forward pass (2 for bfloat16, 4 for float32), t tokens of a pass, V words:

    weights       4 P / n           float32, in shards (ZeRO stage 3; Rajbhandari et al., arXiv 1910.02054)
    gradients     4 T / n           the same
    optimizer     8 T / n           Adam's two moments
    gathered      b (2 l + 2 o) + 4 max(l, o)
                                    with shards, whole for a moment: a layer l, the next one, and what is
                                    outside of the layers o, with its gradient; then one of them in float32 to
                                    be added up over the ranks (torch's `fully_shard`)
    activations   t b h L + t (b (6 h + 4 f + 4 (q + k)) + 8 h + 4 (q + k))
                                    with checkpoints the input of each of L layers (Korthikanti et al.,
                                    arXiv 2205.05198, section 5), and all of the one that is worked on:
                                    h hidden features, f inner ones, q queries, k keys; norms in float32.
                                    Without checkpoints L times the second term
    logits        3 b t V           as they are, normalised, and their gradient
    step          4 T / n           Adam works on all tensors at once; when activations are gone
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.weights.sizes import Disk, ModelSize
from lightning_core.errors import LightningError


# what is told ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold at the start."""

    name: str
    holds: bool | None
    """None: it can't be told here."""
    told: str
    """The finding, or the problem and its remedy."""

    @property
    def verdict(self) -> str:
        """ "ok", "fails" or "unknown"."""
        return "unknown" if self.holds is None else "ok" if self.holds else "fails"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The facts of a planned run, in reading order."""

    facts: tuple[tuple[str, str], ...] = ()
    """Names and values."""
    checks: tuple[Check, ...] = ()
    disk: Disk | None = None
    """Sizes of what the run writes; None if the backend does not tell."""
    memory: MemoryEstimate | None = None
    """The memory at the same time; None if the backend does not tell."""


def trial(name: str, attempt: Callable[[], str]) -> Check:
    """A check that holds unless `attempt` raises an error of this package; it returns what to say."""
    try:
        return Check(name, True, attempt())
    except LightningError as problem:
        return Check(name, False, str(problem))


def gib(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / (1 << 30):.1f} GiB" if count >= (1 << 30) / 10 else f"{count / (1 << 20):.0f} MiB"


# how much memory it takes ---------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of each rank."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    layer: int
    """Activations of the layer that is worked on."""
    logits: int
    step: int

    @property
    def state(self) -> int:
        """Memory in use between updates, unless it is offloaded."""
        return self.weights + self.optimizer

    @property
    def peak(self) -> int:
        """The most at any moment of an update."""
        working = self.gathered + self.activations + self.logits
        return self.state + self.gradients + max(working, self.step)

    @property
    def forward(self) -> int:
        """Memory of a pass without gradients, beside the weights: no layer's activations outlast it."""
        return self.gathered + self.layer + self.logits

    def __str__(self) -> str:
        return (
            f"at most {gib(self.peak)}: weights {gib(self.weights)}, gradients {gib(self.gradients)}, Adam "
            f"{gib(self.optimizer)}, a full pass {gib(self.gathered + self.activations + self.logits)}"
        )


def training_memory(
    size: ModelSize,
    lora: LoraOptions | None,
    *,
    tokens: int,
    number: int,
    ranks: int = 1,
    checkpoints: bool = False,
    shards: bool = False,
    moments: float = 8,
) -> TrainingMemory:
    """Returns the memory of each rank, for passes of `tokens` tokens with numbers of `number` bytes; Adam's
    two moments of a weight take `moments`."""
    trained, outside = size.trained(lora), max(0, size.parameters - size.layers * size.layer)
    layer = size.layer_bytes(tokens, number)
    inputs = tokens * number * size.hidden * size.layers
    gathered = 2 * number * (size.layer + outside) + 4 * max(size.layer, outside)
    return TrainingMemory(
        weights=share(size.weight_bytes(lora), ranks),
        gradients=share(4 * trained, ranks),
        optimizer=share(int(moments * trained), ranks),
        gathered=gathered if shards else 0,
        activations=inputs + layer if checkpoints else size.layers * layer,
        layer=layer,
        logits=3 * number * tokens * size.vocabulary,
        step=share(4 * trained, ranks),
    )


def share(whole: int, parts: int) -> int:
    """Rounded up."""
    return -(-whole // parts)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One thing that may be too small, in bytes."""

    what: str
    """As in "GPU while training"."""
    need: int
    there: int | None
    """None: unknown."""
    held: int = 0
    """The part of `need` that is in use between updates too."""

    @property
    def missing(self) -> int:
        return 0 if self.there is None else max(0, self.need - self.there)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """All that may be too small."""

    uses: tuple[MemoryUse, ...]

    @property
    def missing(self) -> int:
        """Bytes, in all."""
        return sum(use.missing for use in self.uses)


def check_memory(
    size: ModelSize, where: str, found: MemoryEstimate, others: Iterable[tuple[str, MemoryEstimate]]
) -> Check:
    """Whether the model fits; if not, by how much it is too little, and which settings would help: `others`
    has what they make of it."""
    if not found.missing:
        known = all(use.there is not None for use in found.uses)
        told = (
            f"{use.what} {gib(use.need)}" + ("" if use.there is None else f" of {gib(use.there)}")
            for use in found.uses
        )
        return Check("memory", True if known else None, ", ".join(told))
    told = (
        f"{use.what} needs {gib(use.need)} and has {gib(use.there or 0)}, {gib(use.missing)} too little"
        for use in found.uses
        if use.missing
    )
    return Check(
        "memory",
        False,
        f"model {size.folder.name!r} with {size.parameters / 1e9:.3g} B parameters does not fit on {where}: "
        f"{'; '.join(told)}; {_advice(found, others)}",
    )


def _advice(found: MemoryEstimate, others: Iterable[tuple[str, MemoryEstimate]]) -> str:
    enough, helps = [], []
    for text, tried in others:
        if not tried.missing:
            enough.append(text)
        elif tried.missing < 0.98 * found.missing:
            helps.append(f"{text} ({gib(found.missing - tried.missing)})")
    advice = [f"enough would be {' or '.join(enough)}"] if enough else []
    advice += [f"some help {'are' if len(helps) > 1 else 'is'} {', '.join(helps)}"] if helps else []
    return "; ".join(advice) or "take a smaller model or larger machines"
