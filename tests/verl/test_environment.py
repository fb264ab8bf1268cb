"""The environment of Ray's workers: settings, the switch for telemetry, and no key."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

from lightning_core import telemetry
from lightning_core.backends.verl.ray_link import _environment


def test_no_key_is_among_what_ray_writes_to_logs_that_every_user_may_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_TOKEN", "VLLM_API_KEY", "HF_HOME", "VERL_PLATFORM"):
        monkeypatch.setenv(name, "word")
    told = _environment()
    assert {"HF_HOME", "VERL_PLATFORM", "TOKENIZERS_PARALLELISM"} <= told.keys()
    assert not {"HF_TOKEN", "VLLM_API_KEY"} & told.keys()


def test_workers_on_other_machines_are_told_to_send_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in telemetry.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    for name, value in telemetry.switches({"DO_NOT_TRACK": "1"}).items():
        monkeypatch.setenv(name, value)
    assert {"DO_NOT_TRACK": "1", **telemetry.VARIABLES}.items() <= _environment().items()
