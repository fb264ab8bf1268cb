"""The core's own parts, registered through the same hook that a plugin uses.

Only names and paths: a part is imported when it is first asked for.
"""

from __future__ import annotations

from lightning_core.hookspecs import Register, hookimpl


@hookimpl
def lightning_register(register: Register) -> None:
    register("store", "memory", "lightning_core.stores.sqlite:MemoryStore")
    register("store", "sqlite", "lightning_core.stores.sqlite:SqliteStore")
    for scheme in ("http", "https"):
        register("store", scheme, "lightning_core.stores.http_store:HttpStore")
    for scheme in ("postgresql", "postgres"):
        register("store", scheme, "lightning_core.stores.postgres:PostgresStore")
    for scheme in ("redis", "rediss"):
        register("store", scheme, "lightning_core.stores.redis_store:RedisStore")

    register("backend", "local", "lightning_core.backends.local:LocalBackend")
    register("backend", "verl", "lightning_core.backends.verl.backend:VerlBackend")
    register("backend", "tinker", "lightning_core.backends.tinker.backend:TinkerBackend")

    register("credit", "uniform", "lightning_core.credit.whole:uniform")
    register("credit", "per_agent", "lightning_core.credit.whole:per_agent")
    register("credit", "discounted", "lightning_core.credit.discounted:Discounted")
    register("credit", "turn", "lightning_core.credit.discounted:turn")
    register("credit", "anchor", "lightning_core.credit.anchor:Anchor")
    register("credit", "gae", "lightning_core.credit.gae:Gae")
    register("credit", "state", "lightning_core.credit.tabular:state")
    register("credit", "evidence", "lightning_core.credit.evidence:BatchEvidence")
    register("credit", "relevance", "lightning_core.credit.relevance:Relevance")
    register("credit", "tabular", "lightning_core.credit.tabular:Tabular")
    register("credit", "hierarchical", "lightning_core.credit.hierarchical:Hierarchical")

    register("algorithm", "grpo", "lightning_core.algorithms.policy_gradient:GRPO")
    register("algorithm", "rloo", "lightning_core.algorithms.policy_gradient:RLOO")
    register("algorithm", "reinforce++", "lightning_core.algorithms.policy_gradient:ReinforcePP")
    register("algorithm", "ppo", "lightning_core.algorithms.policy_gradient:PPO")
    register("algorithm", "dpo", "lightning_core.algorithms.dpo:DPO")
    register("algorithm", "sft", "lightning_core.algorithms.sft:SFT")
    register("algorithm", "sdpo", "lightning_core.algorithms.sdpo:SDPO")

    register("air", "tool_raised", "lightning_core.air.tools:tool_raised")
    register("air", "timed_out", "lightning_core.air.tools:timed_out")
    register("air", "unknown_tool", "lightning_core.air.tools:unknown_tool")
    register("air", "invalid_arguments", "lightning_core.air.tools:invalid_arguments")
    register("air", "unfit_reply", "lightning_core.air.tools:unfit_reply")
    register("air", "empty_result", "lightning_core.air.tools:empty_result")
    register("air", "sql_error", "lightning_core.air.sql:sql_error")
    register("air", "repeated_call", "lightning_core.air.tools:repeated_call")
    register("air", "cut_by_length", "lightning_core.air.tools:cut_by_length")

    register("alert", "reward_collapse", "lightning_core.alerts.rules:RewardCollapse")
    register("alert", "entropy_collapse", "lightning_core.alerts.rules:EntropyCollapse")
    register("alert", "logprob_gap", "lightning_core.alerts.rules:LogprobGap")
    register("alert", "nothing_earned", "lightning_core.alerts.rules:nothing_earned")
    register("alert", "zero_variance", "lightning_core.alerts.rules:ZeroVariance")
    register("alert", "failing_rollouts", "lightning_core.alerts.rules:FailingRollouts")
    register("alert", "failures_by_reply", "lightning_core.alerts.rules:FailuresByReply")
    register("alert", "failed_update", "lightning_core.alerts.rules:failed_update")
    register("alert", "unusable_groups", "lightning_core.alerts.rules:unusable_groups")
    register("alert", "staleness", "lightning_core.alerts.rules:staleness")
    register("alert", "unseen_calls", "lightning_core.alerts.rules:unseen_calls")
    register("alert", "rollouts_without_calls", "lightning_core.alerts.rules:RolloutsWithoutCalls")
    register("alert", "stuck_worker", "lightning_core.alerts.liveness:StuckWorker")
    register("alert", "stuck_rollout", "lightning_core.alerts.liveness:StuckRollout")
    register("alert", "disk_filling", "lightning_core.alerts.liveness:DiskFilling")

    register("tracker", "tensorboard", "lightning_core.trackers.tensorboard:TensorBoard")
    register("tracker", "wandb", "lightning_core.trackers.wandb:Wandb")
    register("tracker", "mlflow", "lightning_core.trackers.mlflow:MLflow")
