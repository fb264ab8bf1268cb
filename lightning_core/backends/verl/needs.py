"""What a model needs of each GPU, in bytes, to be trained by verl and served by vLLM.

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
tests/verl/test_needs.py); other architectures differ a little.

Serving, shared by p = tensor_parallel GPUs:

    weights       b P / p
    working       s (b (2 h + 3 f / p)) + 12 r V      a pass of s = 8,192 tokens, and scores of r replies
    keys, values  2 b k L / p                         of a token; k is no less than one head on each GPU

vLLM takes its share `gpu_memory` of a GPU at the start and fills what is left with keys and values; it does
not start unless one reply of the full context fits. A critic is trained as the policy is, from weights of its
own, without LoRA; a reference policy lies in main memory, and is on the GPU a layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from lightning_core.backends.shape import Shape
from lightning_core.backends.verl.settings import VerlSettings

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
