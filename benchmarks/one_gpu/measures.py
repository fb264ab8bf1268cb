"""Speed and memory of engine and update, beside what the card could do."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

import torch
from transformers import PreTrainedModel

from benchmarks.engine import Load, run_engine, run_generate
from benchmarks.one_gpu.models import SHIPPED, Where, open_model
from benchmarks.one_gpu.rows import Rows
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.local.decoder import make_decoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.model import memory_bytes
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.local.versions import GPU_PREFILL, PREFIX_TOKENS
from lightning_core.backends.settings import LoraOptions, TrainingSettings
from lightning_core.backends.weights.fourbit import pack
from lightning_core.backends.weights.model import Model, parameter_count
from lightning_core.backends.weights.sources import find_source
from lightning_core.records.types import Trajectory, Transition

GROUP = 8
"""Replies to one prompt."""
GIB = 1 << 30


def machine(where: Where, rows: Rows) -> None:
    """Measures the card's ceilings, by a large copy and a large product."""
    rows.title("The machine")
    cuda = where.device.type == "cuda"
    rows.facts(
        card=torch.cuda.get_device_name() if cuda else "none",
        memory_GiB=round(memory_bytes(where.device) / GIB, 1),
        torch=torch.__version__,
        copy_GBps=round(copy_bandwidth(where) / 1e9),
        product_TFLOPs=round(product_rate(where) / 1e12, 1),
    )


def copy_bandwidth(where: Where) -> float:
    """Bytes read and written each second by a copy."""
    source = torch.randn((1 << 22) if where.quick else (1 << 29), device=where.device)
    target = torch.empty_like(source)
    seconds = timed(partial(target.copy_, source), where, repeats=10)
    return 2 * source.nbytes / seconds


def product_rate(where: Where) -> float:
    """Floating-point operations each second of a product in bfloat16; in float32 on a processor."""
    size = 512 if where.quick else 8_192
    dtype = torch.bfloat16 if where.device.type == "cuda" else torch.float32
    left = torch.randn((size, size), device=where.device, dtype=dtype)
    return 2.0 * size**3 / timed(partial(torch.mm, left, left), where, repeats=10)


def timed(work: Callable[[], object], where: Where, *, repeats: int) -> float:
    """Seconds of the work, the median; it ran twice before."""
    found = []
    for repeat in range(repeats + 2):
        where.synchronise()
        started = time.perf_counter()
        work()
        where.synchronise()
        found.append(time.perf_counter() - started if repeat > 1 else 0.0)
    return statistics.median(found[2:])


# replies --------------------------------------------------------------------------------------
def engine(where: Where, rows: Rows) -> None:
    """Tokens a second at 1, 32 and 128 replies, beside `transformers.generate`."""
    rows.title("Replies: tokens a second")
    bandwidth = copy_bandwidth(where)
    dtype = torch.bfloat16 if where.device.type == "cuda" else torch.float32
    for name in where.models:
        with torch.inference_mode():
            model = open_model(name, where)
        served = start_engine(model, dtype)
        try:
            for replies in (1, 4) if where.quick else (1, 32, 128):
                with rows.row(model=name, replies=replies) as row:
                    load = make_load(model, replies, 16 if where.quick else 128)
                    run_engine(served, load)  # to be warm
                    began = served.steps
                    seconds = timed_once(partial(run_engine, served, load), where)
                    row["tokens/s"] = load.tokens / seconds
                    row["ms a step"] = 1000 * seconds / (served.steps - began)
                    row["share of the floor"] = floor_seconds(model, load, dtype, bandwidth) / seconds
                    with rows.profiled(f"engine-{name}-{replies}"):
                        run_engine(served, make_load(model, replies, 12))
        finally:
            served.close()
        del served
        network = model.network.to(dtype)
        network.set_attn_implementation("sdpa")
        for replies in (1, 4) if where.quick else (1, 32, 128):
            with rows.row(model=name, replies=replies, by="transformers.generate") as row:
                load = make_load(model, replies, 16 if where.quick else 64)
                with torch.inference_mode():
                    generated(network, make_load(model, replies, 4))
                    seconds = timed_once(partial(generated, network, load), where)
                row["tokens/s"] = load.tokens / seconds
        del model, network
        clear()


def start_engine(model: Model, dtype: torch.dtype) -> Engine:
    """As `LocalBackend` makes it, for 128 replies."""
    shape = kv_shape(model.network, dtype)
    memory = memory_bytes(model.network.device)
    options = EngineOptions(
        max_batch=128,
        prefill_tokens=GPU_PREFILL if model.network.device.type == "cuda" else 512,
        slot_bytes=memory // 8,
        prefix_bytes=min(memory // 16, PREFIX_TOKENS * shape.token_bytes),
    )
    decoder = make_decoder(model.network, dtype, model.context)
    served = Engine(decoder, shape, frozenset(), options, torch.get_num_threads())
    served.start()
    return served


def make_load(model: Model, replies: int, tokens: int) -> Load:
    """Groups of equal prompts of 150 to 190 tokens; no prompt was seen before."""
    draw, prompts = random.Random(), []
    for _ in range(0, replies, GROUP):
        ids = [draw.randrange(5, 700) for _ in range(draw.randrange(150, 190))]
        prompts += [ids] * min(GROUP, replies)
    return Load(prompts, [tokens] * len(prompts))


def generated(network: PreTrainedModel, load: Load) -> None:
    run_generate(network, load, len(load.prompts))


def floor_seconds(model: Model, load: Load, dtype: torch.dtype, bandwidth: float) -> float:
    """Each step reads all weights and what the cache holds by then, at the speed of a copy."""
    weights = parameter_count(model.network) * dtype.itemsize
    token = kv_shape(model.network, dtype).token_bytes
    steps = max(load.replies)
    cache = sum(len(prompt) + steps / 2 for prompt in load.prompts) * token
    return steps * (weights + cache) / bandwidth


def timed_once(work: Callable[[], object], where: Where) -> float:
    where.synchronise()
    started = time.perf_counter()
    work()
    where.synchronise()
    return time.perf_counter() - started


def trained() -> dict[str, LoraOptions | None]:
    """The kinds of training here, by name; weights in 4 bits need bitsandbytes."""
    kinds: dict[str, LoraOptions | None] = {"all weights": None, "LoRA": LoraOptions()}
    if find_spec("bitsandbytes"):
        kinds["LoRA on 4 bits"] = LoraOptions(load_in_4bit=True)
    return kinds


# updates --------------------------------------------------------------------------------------
def update(where: Where, rows: Rows) -> None:
    """Tokens a second of an update, as a share of what a product reaches."""
    rows.title("Updates: 32 sequences of 1,024 tokens, 256 of them sampled")
    peak = product_rate(where)
    for name in where.models:
        for kind, lora in trained().items():
            with rows.row(model=name, trained=kind) as row:
                optimizer, policy = make_optimizer(name, where, lora)
                count, length = (2, 128) if where.quick else (32, 1_024)
                batch = make_batch(count, length, 256 if length > 512 else 32)
                if where.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                first = timed_once(partial(optimizer.update, batch, GRPO(correction=None)), where)
                second = timed_once(partial(optimizer.update, batch, GRPO(correction=None)), where)
                with rows.profiled(f"update-{name}-{kind}"):
                    metrics = optimizer.update(batch, GRPO(correction=None))
                tokens = metrics["forward_tokens"]
                row["tokens/s"] = tokens / second
                row["share of peak"] = operations(policy, batch, lora) / second / peak
                row["GiB at most"] = peak_memory(where)
                row["seconds"], row["seconds at first"] = second, first
            optimizer = policy = None  # type: ignore[assignment]
            clear()


def make_optimizer(name: str, where: Where, lora: LoraOptions | None) -> tuple[Optimizer, Policy]:
    model = open_model(name, where, context=1 << 17)
    if lora is not None and lora.load_in_4bit:
        pack(model.network)
    policy = Policy(model, lora)
    source = find_source(SHIPPED)[0]
    bfloat16 = where.device.type == "cuda"
    return Optimizer(policy, TrainingSettings(), source=source, bfloat16=bfloat16), policy


def make_batch(count: int, length: int, sampled: int) -> tuple[Trajectory, ...]:
    """Rollouts of one call, that share nothing, half praised and half blamed."""
    draw, found = random.Random(0), []
    for index in range(count):
        ids = [draw.randrange(5, 700) for _ in range(length)]
        prompt, reply = ids[: length - sampled], ids[length - sampled :]
        call = Transition(
            f"r{index}", "c", 0, "agent", True, prompt, reply, [-5.0] * sampled, 0, advantage=(-1.0) ** index
        )
        found.append(Trajectory(f"r{index}", f"g{index // GROUP}", "t", (-1.0) ** index, (call,)))
    return tuple(found)


def operations(policy: Policy, batch: Sequence[Trajectory], lora: LoraOptions | None) -> float:
    """Floating-point operations that the gradient needs: 6 for each weight and token (4 with LoRA, whose base
    has no gradient), the output layer where a token was sampled, and attention by halves of a square."""
    config = policy.base.config
    outside = policy.base.get_input_embeddings().weight.numel()
    inside = parameter_count(policy.base) - outside
    passes = 3.0 if lora is None else 2.0
    heads = config.num_attention_heads * getattr(
        config, "head_dim", config.hidden_size // config.num_attention_heads
    )
    total = 0.0
    for trajectory in batch:
        for call in trajectory.transitions:
            count, sampled = len(call.prompt_ids) + len(call.completion_ids), len(call.completion_ids)
            total += 2 * passes * (inside * count + outside * sampled)
            total += 6.0 * config.num_hidden_layers * heads * count**2
    return total


def peak_memory(where: Where) -> float:
    return torch.cuda.max_memory_allocated() / GIB if where.device.type == "cuda" else 0.0


def longest(where: Where, rows: Rows) -> None:
    """The longest sequence that an update takes, doubled until memory ends."""
    rows.title("Longest context that trains")
    for name in (SHIPPED,) if where.quick else ("0.6B", "1.7B"):
        for kind, lora in trained().items():
            length = 256 if where.quick else 1 << 14
            while length <= (512 if where.quick else 1 << 17):
                with rows.row(model=name, trained=kind, tokens=length) as row:
                    optimizer, _ = make_optimizer(name, where, lora)
                    batch = make_batch(2, length, 64)[:1]
                    row["seconds"] = timed_once(
                        partial(optimizer.update, batch, GRPO(correction=None)), where
                    )
                    row["GiB at most"] = peak_memory(where)
                optimizer = None  # type: ignore[assignment]
                clear()
                if "error" in row:
                    break
                length *= 2


def clear() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
