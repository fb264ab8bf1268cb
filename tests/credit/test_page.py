"""docs/credit.md says what there is, and its method of one file trains, as a plugin and as a function."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import openai
import pytest

import lightning_core as lightning
from lightning_core.credit.base import Comparison
from lightning_core.plugins import load_plugins

PAGE = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()
[RANKED] = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Ranked credit" in code]


@pytest.fixture
def ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The page's file and its entry point on the path, as pip would put them."""
    (tmp_path / "ranked.py").write_text(RANKED)
    info = tmp_path / "ranked-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ranked\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lightning_core]\nranked = ranked\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("ranked")
    sys.modules.pop("ranked")


def test_the_page_has_a_row_for_each_method() -> None:
    rows = set(re.findall(r'^\| `"(\w+)"` \|', PAGE, re.MULTILINE))
    assert rows == set(load_plugins([]).names("credit"))


def test_a_method_of_one_s_own_takes_one_file_of_at_most_forty_lines() -> None:
    assert len(RANKED.splitlines()) <= 40


async def solve(task: lightning.Task) -> float:
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            reply = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": str(task.input["question"])}],
                max_completion_tokens=5,
            )
    return float(len(reply.choices[0].message.content or ""))


@pytest.mark.parametrize("by_name", [True, False], ids=["as a plugin", "as a function"])
def test_it_trains(
    ranked: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    compared: list[Comparison] = []
    given = ranked.peers

    def watched(group, agent):
        found = given(group, agent)
        compared.append(Comparison(tuple(found)))
        return found

    monkeypatch.setattr(ranked, "peers", watched)
    algorithm = lightning.GRPO(group_size=3, tasks_per_step=2, credit="ranked" if by_name else ranked.ranked)
    lightning.Trainer(
        model="tiny", agents=["writer"], algorithm=algorithm, steps=1, folder=tmp_path / "run", progress=False
    ).fit(solve, train=[{"question": f"List the boats with speed above {n}."} for n in range(2)])
    assert [len(comparison.peers) for comparison in compared] == [3, 3]
    assert all(0 <= share < 1 for c in compared for peer in c.peers for share in peer.values())
