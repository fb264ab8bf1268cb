"""Who is let in: the token's owner, from this machine, and no other page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lightning_core.console.saving import write_report
from lightning_core.console.shelf import Shelf, for_reading
from lightning_core.errors import ConfigError, StoreError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Run
from lightning_core.stores.sqlite import MemoryStore


@pytest.fixture
def stranger(address: str) -> Iterator[httpx.Client]:
    parts = urlsplit(address)
    with httpx.Client(base_url=f"{parts.scheme}://{parts.netloc}", trust_env=False) as client:
        yield client


@pytest.fixture
def owner(address: str, stranger: httpx.Client) -> httpx.Client:
    assert stranger.get(address).status_code == 303
    return stranger


def test_the_token_opens_once_and_is_then_a_cookie_for_no_script(
    address: str, stranger: httpx.Client
) -> None:
    reply = stranger.get(address)
    assert reply.headers["location"] == "/"
    kept = reply.headers["set-cookie"].lower()
    assert "httponly" in kept
    assert "samesite=strict" in kept
    assert stranger.get("/api/runs").json()[0]["name"] == "finished"


@pytest.mark.parametrize("path", ["runs", "run?run=finished", "rollouts?run=finished", "models?run=finished"])
def test_without_the_token_nothing_of_a_run_is_told(stranger: httpx.Client, path: str) -> None:
    assert stranger.get(f"/api/{path}").status_code == 401
    assert stranger.get("/?token=wrong").status_code == 200  # the bare page, and no cookie
    assert stranger.get(f"/api/{path}").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", ""])
def test_a_foreign_host_is_refused(owner: httpx.Client, host: str) -> None:
    assert owner.get("/api/runs", headers={"Host": host}).status_code == 400
    assert owner.get("/", headers={"Host": host}).status_code == 400


def test_a_foreign_origin_is_refused(owner: httpx.Client) -> None:
    asked = {"run": "finished", "version": 0}
    for origin in ("http://evil.example", "null", "https://127.0.0.1"):
        reply = owner.post("/api/choose", json=asked, headers={"Origin": origin})
        assert reply.status_code == 403


def test_a_form_of_another_page_changes_nothing(owner: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = owner.post("/api/choose", content=b"{}", headers={"Content-Type": kind})
        assert reply.status_code == 415


def test_reading_is_by_get_and_writing_by_post(owner: httpx.Client) -> None:
    assert owner.get("/api/choose?run=finished&version=0").status_code == 404
    assert owner.post("/api/run", json={"run": "finished"}).status_code == 404


def test_every_reply_binds_the_browser(owner: httpx.Client) -> None:
    for path in ("/", "/assets/app.js", "/api/runs", "/nothing"):
        headers = owner.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "run?run=other",
        "rollouts?run=finished&status=odd",
        "rollouts?run=finished&step=x",
        "rollouts?run=finished&order=z",
        "rollout?run=finished&id=none",
        "rollout?run=finished",
        "odd",
    ],
)
def test_what_can_not_be_answered_says_why(owner: httpx.Client, path: str) -> None:
    reply = owner.get(f"/api/{path}")
    assert reply.status_code in (400, 404)
    assert reply.json()["error"]


def test_only_the_page_s_own_files_are_served(owner: httpx.Client) -> None:
    for name in ("uplot.LICENSE", "page.html", "..%2Fserver.py", "server.py"):
        assert owner.get(f"/assets/{name}").status_code == 404


async def test_a_store_for_reading_refuses_to_be_written() -> None:
    async with MemoryStore() as store:
        reading = for_reading(store)
        with pytest.raises(StoreError, match="'put_run' writes"):
            await reading.put_run(Run(id="r"))
        assert await reading.list_runs() == []


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no store"):
        Shelf(f"sqlite:///{tmp_path}/none.db", load_plugins())
    with pytest.raises(ConfigError, match="holds none"):
        Shelf(str(tmp_path), load_plugins())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_runs_shows_each(finished: Path) -> None:
    async def names() -> list[str]:
        async with Shelf(str(finished.parent), load_plugins()) as shelf:
            return [one.name for one in await shelf.list()]

    assert asyncio.run(names()) == ["finished"]


def test_a_run_that_is_kept_nowhere_has_no_page(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run": "gone", "store": "memory://", "port": null}')
    with pytest.raises(ConfigError, match="outlives its trainer"):
        write_report(tmp_path, load_plugins())
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_body_that_is_too_long_is_refused_in_words(owner: httpx.Client) -> None:
    body = b'{"run": "' + b"a" * (30 << 20) + b'"}'
    reply = owner.post("/api/try", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413
    assert "longer than" in reply.json()["error"]
