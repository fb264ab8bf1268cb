"""Versions put over REST: whoever may write one run can't point it at what belongs to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_core.records.types import Run
from tests.api.conftest import RUN, Desk, error, good


def version(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {"run_id": "run", "version": number, "uri": None, **fields}


async def put(desk: Desk, body: dict[str, Any], scope: str = "admin") -> Any:
    return await desk.ask("PUT", "/resources", body, scope=scope)


@pytest.fixture
async def folder(desk: Desk, tmp_path: Path) -> Path:
    """Returns the run's folder, as its trainer recorded it; another run's folder lies beside it."""
    for name in ("run", "other"):
        (tmp_path / name / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "other")
    await desk.store.put_run(
        RUN.model_copy(update={"folder": str(tmp_path / "run"), "config": {"model": "tiny", "seed": 1}})
    )
    return tmp_path / "run"


@pytest.mark.parametrize(
    "uri",
    [
        "/etc", "/", "somebody/model", "tiny", "checkpoints/step-000001", "", "..", "{run}", "{run}/..",
        "{run}/../other/checkpoints/step-000001", "{run}/checkpoints/../../other", "{run}-other",
        "{run}/link/checkpoints/step-000001", "file://{run}/checkpoints", "hf://{run}/checkpoints",
        "//{run}/../other", "{run}/checkpoints/step-000001\x00",
    ],
)  # fmt: skip
async def test_an_admin_of_one_run_can_not_point_a_version_outside_the_run_s_folder(
    desk: Desk, folder: Path, uri: str
) -> None:
    for fields in ({}, {"name": "other weights"}, {"kind": "prompt"}):
        answer = await put(desk, version(uri=uri.format(run=folder), **fields))
        assert answer.status_code in (403, 422), answer.text
        assert "uri" in answer.json()["error"]["message"] or "kind" in answer.json()["error"]["message"]
    assert await desk.store.list_resources("run") == []


async def test_what_lies_in_the_run_s_folder_or_stays_where_it_is_may_be_put(
    desk: Desk, folder: Path
) -> None:
    inside = str(folder / "checkpoints" / "step-000001")
    good(await put(desk, version(uri=inside)))
    good(await put(desk, version(2, uri=None)))
    good(await put(desk, version(0, uri="somebody/model"), scope="all admin"))
    good(await put(desk, version(0, uri="somebody/model", metrics={"greedy": 0.5})))
    answer = await put(desk, version(0, uri="somebody/other"))
    assert str(folder) in error(answer, 403, "forbidden")["message"]
    good(await put(desk, version(name="hint", kind="prompt", uri="Look in /etc or ../other.")))
    good(await put(desk, version(name="other", kind="prompt", uri="/etc")))
    error(await put(desk, version(name="other", uri="/etc")), 403, "forbidden")  # a text is no place
    found = await desk.store.list_resources("run")
    assert [(one.version, one.uri) for one in found] == [(0, "somebody/model"), (1, inside), (2, None)]


async def test_weights_are_no_prompt_and_a_choice_is_the_number_of_a_version(
    desk: Desk, folder: Path
) -> None:
    inside = str(folder / "checkpoints" / "step-000001")
    for scope in ("admin", "all admin"):
        answer = await put(desk, version(kind="prompt", uri=inside), scope)
        assert error(answer, 422, "invalid_value")["field"] == "kind"
        for uri in ("x", "٣", "", None, "-1"):
            body = version(name="policy/choices", kind="prompt", uri=uri)
            assert error(await put(desk, body, scope), 422, "invalid_value")["field"] == "uri"
        good(await put(desk, version(name="policy/choices", kind="prompt", uri="3"), scope))


async def test_an_admin_of_one_run_can_not_move_its_folder_or_change_its_model(
    desk: Desk, folder: Path
) -> None:
    for fields, field in (
        ({"folder": "/"}, "folder"),
        ({"folder": None}, "folder"),
        ({"config": {"model": "somebody/model"}}, "model"),
        ({"config": {}}, "model"),
        ({"config": {"model": "tiny", "models of policies": {"b": "somebody/model"}}}, "models of policies"),
    ):
        answer = await desk.ask("PUT", "/runs", {"id": "run", **fields})
        assert field in error(answer, 403, "forbidden")["message"]
    good(await desk.ask("PUT", "/runs", {"id": "run", "folder": str(folder), "status": "stopped"}))
    good(await desk.ask("PUT", "/runs", {"id": "run", "config": {"model": "tiny", "seed": 2}}))
    found = await desk.store.find_run("run")
    assert found is not None
    assert (found.folder, found.config, found.status) == (
        str(folder),
        {"model": "tiny", "seed": 2},
        "stopped",
    )
    good(await desk.ask("PUT", "/runs", {"id": "run", "folder": "/elsewhere"}, scope="all admin"))


async def test_a_run_without_a_folder_has_no_place_for_weights_of_a_token_of_its_own(desk: Desk) -> None:
    assert isinstance(await desk.store.find_run("run"), Run)
    assert "no folder" in error(await put(desk, version(uri="/w")), 403, "forbidden")["message"]
    good(await put(desk, version(uri="/w"), scope="all admin"))
