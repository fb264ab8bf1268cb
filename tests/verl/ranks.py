"""One rank of verl's training workers, without Ray: `python tests/verl/ranks.py JOB RESULT`.

Each rank is a process of its own and runs the same `Learner`, as if it were the driver: it gives its worker
its own share of each batch, and what the workers infer is gathered by all. The engine, the sharding and the
optimizer are verl's. JOB is a pickle of what to do; the first rank writes RESULT.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import torch
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from lightning_core.backends.rows import make_rows, share
from lightning_core.backends.settings import BETAS
from lightning_core.backends.verl.batch import entry_values, to_batch
from lightning_core.backends.verl.learning import Learner
from lightning_core.backends.verl.loss import mask_outputs
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.experience.trajectories import Floats
from lightning_core.records.types import Key

MICRO_TOKENS = 160
"""Tokens of a micro-batch, few enough that there are several; a longer reply has one of its own."""


class Ranks:
    """The cluster's side of `Learner`, with one worker in each process."""

    def __init__(self, settings: VerlSettings, longest: int, *, packed: bool) -> None:
        """`longest` reply, prompt included. `packed`: the rows of a micro-batch pass as one sequence, as on
        GPUs; else padded."""
        self._settings, self._packed = settings, packed
        self._micro_tokens = max(longest, MICRO_TOKENS)
        self._policy = self._worker("language_model")
        self._reference = self._worker("language_model")
        self._critic = self._worker("value_model")
        self.ranks = torch.distributed.get_world_size()

    def _worker(self, kind: str) -> TrainingWorker:
        settings = self._settings
        model = HFModelConfig(
            path=str(settings.model),
            use_remove_padding=self._packed,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "sdpa"},
        )
        engine = FSDPEngineConfig(
            strategy=settings.strategy,
            model_dtype="fp32",
            dtype="float32",
            mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            use_torch_compile=False,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=self._micro_tokens,
            infer_max_token_len_per_gpu=self._micro_tokens,
        )
        optimizer = FSDPOptimizerConfig(
            lr=0.0,
            total_training_steps=100,
            betas=BETAS,
            weight_decay=0.0,
            clip_grad=settings.max_grad_norm,
        )
        worker = TrainingWorker(
            TrainingWorkerConfig(
                model_type=kind,
                model_config=model,
                engine_config=engine,
                optimizer_config=optimizer,
                checkpoint_config=CheckpointConfig(),
            )
        )
        worker.reset()
        if kind == "language_model":
            mask_outputs(worker.engine)
        return worker

    def train(self, batch: TensorDict, loss: Callable[..., Any], rate: float) -> dict[str, Any]:
        return self._train(self._policy, batch, loss, rate)

    def train_critic(self, batch: TensorDict, loss: Callable[..., Any], rate: float) -> dict[str, Any]:
        return self._train(self._critic, batch, loss, rate)

    def infer(self, batch: TensorDict) -> torch.Tensor:
        return self._infer(self._policy, batch, "log_probs")

    def infer_reference(self, batch: TensorDict, folder: Path | None) -> torch.Tensor:
        assert folder is None
        return self._infer(self._reference, batch, "log_probs")

    def infer_values(self, batch: TensorDict) -> torch.Tensor:
        return self._infer(self._critic, batch, "values")

    def _train(
        self, worker: TrainingWorker, batch: TensorDict, loss: Callable[..., Any], rate: float
    ) -> dict[str, Any]:
        worker.set_loss_fn(loss)
        for group in worker.engine.optimizer.param_groups:
            group["lr"] = rate
        part = self._mine(batch)
        tensordict_utils.assign_non_tensor(
            part, num_mini_batch=1, epochs=1, seed=0, dataloader_kwargs={"shuffle": False}
        )
        metrics: dict[str, Any] = tensordict_utils.get(worker.train_mini_batch(part), "metrics")
        return metrics

    def _infer(self, worker: TrainingWorker, batch: TensorDict, name: str) -> torch.Tensor:
        part = self._mine(batch)
        tokens = part["input_ids"].offsets().diff().tolist()
        tensordict_utils.assign_non_tensor(part, compute_loss=False, global_token_num=tokens)
        found: list[list[torch.Tensor]] = [[]] * self.ranks
        torch.distributed.all_gather_object(found, list(worker.infer_batch(part)[name].unbind()))
        return torch.nested.as_nested_tensor([row for part in found for row in part], layout=torch.jagged)

    def _mine(self, batch: TensorDict) -> TensorDict:
        return tensordict_utils.chunk_tensordict(batch, self.ranks)[torch.distributed.get_rank()]


class Found(TypedDict):
    """Results of the updates on the ranks."""

    metrics: list[dict[str, float]]
    """Metrics of each update."""
    logprobs: Floats
    """Log-probabilities of all replies of the first batch after the last update, in the order of their
    rows."""
    before: dict[Key, float]
    """The critic's values of the last batch before any update."""
    after: dict[Key, float]


def main(job: Path, result: Path) -> None:
    """Make the updates that are asked for, and tell what came of them."""
    settings, packed, updates = pickle.loads(job.read_bytes())
    replies = [t for batch, _ in updates for each in batch for t in each.transitions]
    longest = max(len(t.prompt_ids) + len(t.completion_ids) for t in replies)
    ranks = Ranks(settings, longest, packed=packed)
    learner = Learner(ranks, settings, parameters=1)  # type: ignore[arg-type]
    before = learner.values(updates[-1][0])
    metrics = [learner.update(batch, algorithm) for batch, algorithm in updates]
    after = learner.values(updates[-1][0])
    batch = updates[0][0]
    rows = share(make_rows(batch, {t.key: 1.0 for each in batch for t in each.transitions}), ranks.ranks)
    logprobs = entry_values(ranks.infer(to_batch(rows)), rows)
    if torch.distributed.get_rank() == 0:
        found = Found(metrics=metrics, logprobs=logprobs, before=before, after=after)
        result.write_bytes(pickle.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
