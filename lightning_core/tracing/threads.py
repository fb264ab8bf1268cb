"""Carry rollout and agent into the threads that the app starts itself.

A new thread begins with an empty context, so calls from an app's own pool would lose their rollout.
Inside a rollout `ThreadPoolExecutor.submit` and `Thread.start` hand the caller's context on; outside
one they do what they always did. Pools of `multiprocessing` are seen to in `runner.tagging`. Not reached:
threads that were waiting for work before the rollout began and take it from the app's own queue; their calls
are noticed (`unseen`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from threading import Thread
from typing import Any

from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import current_scope


def install() -> Callable[[], None]:
    """Carry the context into threads until the returned function is called. May be nested."""
    user = object()
    undo = [patch(ThreadPoolExecutor, "submit", user, _submit), patch(Thread, "start", user, _start)]

    def uninstall() -> None:
        for take_back in undo:
            take_back()

    return uninstall


def _submit(original: Callable[..., Future[Any]], users: list[object]) -> Callable[..., Future[Any]]:
    def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not users or current_scope() is None:
            return original(pool, fn, *args, **kwargs)
        # The pool may start a worker now. It outlives this job, so it must start without a rollout.
        return Context().run(original, pool, copy_context().run, fn, *args, **kwargs)

    return submit


def _start(original: Callable[..., None], users: list[object]) -> Callable[..., None]:
    def start(thread: Thread) -> None:
        given = getattr(thread, "_context", None)  # Python 3.14: the app chose a context itself
        if users and current_scope() is not None and given is None:
            _run_in(copy_context(), thread)
        original(thread)

    return start


def _run_in(context: Context, thread: Thread) -> None:
    body = thread.run

    def run() -> None:
        del thread.run  # the instance's, which refers back to the thread
        context.run(body)

    thread.run = run  # type: ignore[method-assign]
