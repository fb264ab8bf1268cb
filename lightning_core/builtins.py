"""The core's own parts, registered through the same hooks that a plugin uses.

Only names and paths: a part is imported when it is first asked for.
"""

from __future__ import annotations

from lightning_core.hookspecs import Register, hookimpl


@hookimpl
def lightning_register_stores(register: Register) -> None:
    register("memory", "lightning_core.stores.memory:MemoryStore")
    register("sqlite", "lightning_core.stores.sqlite:SqliteStore")
    for scheme in ("postgresql", "postgres"):
        register(scheme, "lightning_core.stores.postgres:PostgresStore")
    for scheme in ("redis", "rediss"):
        register(scheme, "lightning_core.stores.redis_store:RedisStore")


@hookimpl
def lightning_register_backends(register: Register) -> None:
    register("local", "lightning_core.backends.local:LocalBackend")
    register("verl", "lightning_core.backends.verl.backend:VerlBackend")


@hookimpl
def lightning_register_credit(register: Register) -> None:
    register("uniform", "lightning_core.credit.uniform:uniform")
    register("per_agent", "lightning_core.credit.per_agent:per_agent")
    register("discounted", "lightning_core.credit.discounted:Discounted")
    register("turn", "lightning_core.credit.turn:turn")
    register("anchor", "lightning_core.credit.anchor:Anchor")
    register("gae", "lightning_core.credit.gae:Gae")
    register("state", "lightning_core.credit.state:state")
    register("relevance", "lightning_core.credit.relevance:Relevance")
    register("tabular", "lightning_core.credit.tabular:Tabular")
    register("hierarchical", "lightning_core.credit.hierarchical:Hierarchical")


@hookimpl
def lightning_register_algorithms(register: Register) -> None:
    register("grpo", "lightning_core.algorithms.grpo:GRPO")
    register("rloo", "lightning_core.algorithms.rloo:RLOO")
    register("reinforce++", "lightning_core.algorithms.reinforce_pp:ReinforcePP")
    register("ppo", "lightning_core.algorithms.ppo:PPO")
    register("dpo", "lightning_core.algorithms.dpo:DPO")
    register("sft", "lightning_core.algorithms.sft:SFT")


@hookimpl
def lightning_register_air(register: Register) -> None:
    register("tool_raised", "lightning_core.air.tools:tool_raised")
    register("timed_out", "lightning_core.air.tools:timed_out")
    register("unknown_tool", "lightning_core.air.tools:unknown_tool")
    register("invalid_arguments", "lightning_core.air.tools:invalid_arguments")
    register("empty_result", "lightning_core.air.tools:empty_result")
    register("sql_error", "lightning_core.air.sql:sql_error")
    register("repeated_call", "lightning_core.air.replies:repeated_call")
    register("cut_by_length", "lightning_core.air.replies:cut_by_length")


@hookimpl
def lightning_register_executors(register: Register) -> None:
    register("asyncio", "lightning_core.runner.in_process:InProcess")
    register("processes", "lightning_core.runner.processes:Processes")
    register("ray", "lightning_core.runner.ray_actors:RayActors")


@hookimpl
def lightning_register_alerts(register: Register) -> None:
    register("reward_collapse", "lightning_core.alerts.reward:RewardCollapse")
    register("entropy_collapse", "lightning_core.alerts.entropy:EntropyCollapse")
    register("logprob_gap", "lightning_core.alerts.logprobs:LogprobGap")
    register("zero_variance", "lightning_core.alerts.variance:ZeroVariance")
    register("failing_rollouts", "lightning_core.alerts.failures:FailingRollouts")
    register("failed_update", "lightning_core.alerts.updates:failed_update")
    register("unusable_groups", "lightning_core.alerts.updates:unusable_groups")
    register("staleness", "lightning_core.alerts.staleness:staleness")
    register("stuck_worker", "lightning_core.alerts.workers:StuckWorker")
    register("stuck_rollout", "lightning_core.alerts.rollouts:StuckRollout")
    register("disk_filling", "lightning_core.alerts.disk:DiskFilling")


@hookimpl
def lightning_register_trackers(register: Register) -> None:
    register("tensorboard", "lightning_core.trackers.tensorboard:TensorBoard")
    register("wandb", "lightning_core.trackers.wandb:Wandb")
    register("mlflow", "lightning_core.trackers.mlflow:MLflow")
