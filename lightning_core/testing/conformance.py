"""The conformance suite: an adapter's tests import all of it and say how an app is run in their framework.

    from lightning_core.testing.conformance import *

    class Mine(Framework):
        plugin, modules = "mine", ("my_framework",)
        ...

    @pytest.fixture
    def framework():
        return Mine()

See docs/plugins/write-an-adapter.md. Needs pytest, pytest-asyncio and openai: the extra `testing`.
"""

from __future__ import annotations

from lightning_core.testing.framework import Ability, Framework, Member
from lightning_core.testing.naming_laws import (
    test_a_time_out_and_a_retry_are_one_call,
    test_an_app_that_has_ended_leaves_no_name,
    test_an_untrained_agent_keeps_its_own_endpoint,
    test_between_a_streams_items_and_after_leaving_it_nobody_is_named,
    test_loops_and_threads_at_once_never_mix,
    test_many_rollouts_at_once_never_mix,
    test_one_app_serves_many_rollouts,
    test_outside_a_rollout_nothing_is_touched,
    test_retries_keep_the_call_id,
    test_the_innermost_scope_names_the_call,
    test_threads_and_pools_of_a_tool_are_the_agents,
)
from lightning_core.testing.plugin_laws import (
    framework,
    stage,
    test_a_tool_that_raised_is_reported_with_its_error,
    test_every_tool_run_is_reported,
    test_loading_and_asking_it_imports_no_framework,
    test_the_plugin_is_found_by_its_entry_point,
)

__all__ = [
    "Ability",
    "Framework",
    "Member",
    "framework",
    "stage",
    "test_a_time_out_and_a_retry_are_one_call",
    "test_a_tool_that_raised_is_reported_with_its_error",
    "test_an_app_that_has_ended_leaves_no_name",
    "test_an_untrained_agent_keeps_its_own_endpoint",
    "test_between_a_streams_items_and_after_leaving_it_nobody_is_named",
    "test_every_tool_run_is_reported",
    "test_loading_and_asking_it_imports_no_framework",
    "test_loops_and_threads_at_once_never_mix",
    "test_many_rollouts_at_once_never_mix",
    "test_one_app_serves_many_rollouts",
    "test_outside_a_rollout_nothing_is_touched",
    "test_retries_keep_the_call_id",
    "test_the_innermost_scope_names_the_call",
    "test_the_plugin_is_found_by_its_entry_point",
    "test_threads_and_pools_of_a_tool_are_the_agents",
]
