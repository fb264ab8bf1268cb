"""Folders with a damaged file: which verbs refuse them, with which words, and which work all the same."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest

from lightning_core.backends.local import LocalBackend
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.cli import serving
from lightning_core.console.server import Console
from lightning_core.console.shelf import Shelf
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from tests.build import agentlightning
from tests.stores.redis_server import free_port
from tests.trainer.versioned import fit

Command = Callable[..., tuple[int, str]]
NEWEST = "checkpoints/step-000002"
MODEL = f"{NEWEST}/model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two updates, moved: what its records say of the old place leads nowhere."""
    folder = tmp_path_factory.mktemp("old") / "run"
    fit(folder, steps=2, backend=LocalBackend("tiny"))
    return Path(shutil.move(folder, tmp_path_factory.mktemp("new") / "run"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


class OneRequest:
    """Stands for the wait until Ctrl-C: a client asks once, then the server ends."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def wait(self) -> None:
        body = {"model": "policy", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
        async with httpx.AsyncClient(trust_env=False, timeout=60.0) as client:
            reply = await client.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a verb in this process; returns its exit code and what it printed. Another exception than
    SystemExit would be a traceback."""
    port = free_port()
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(serving, "until_signal", lambda: OneRequest(port))

    def call(*arguments: object) -> tuple[int, str]:
        listen = ("--port", port) if arguments[0] == "serve" else ()
        status = agentlightning(*arguments, *listen)
        said = capsys.readouterr()
        return status, " ".join((said.out + said.err).split())

    return call


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def number(path: Path) -> None:
    path.write_bytes(b"7")


def junk(path: Path) -> None:
    path.write_bytes(b"junk" * 5_000)


def array(path: Path) -> None:
    path.write_bytes(b"[]")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"7")


Damage = Callable[[Path], None]
Words = Mapping[str, str]
"""Verb to what it says as it ends with 1. Any other verb ends with 0."""


def all_verbs(words: str) -> Words:
    return dict.fromkeys(VERBS, words)


def model(words: str) -> Words:
    """Words of the verbs that need the weights; the others go on."""
    return {"export": words, "serve": words}


VERBS: Mapping[str, tuple[str, ...]] = {
    "list": ("models", "list", "RUN"),
    "export": ("models", "export", "RUN", "2", "OUT"),
    "rollback": ("models", "rollback", "RUN", "0"),
    "prune": ("runs", "prune", "RUN"),
    "serve": ("serve", "RUN@2"),
    "console": ("console", "RUN", "--save", "PAGE"),
}
NO_RUN = "is not a run's folder; `agentlightning runs` lists the runs"
NO_ADDRESS = "run.json' does not say which run this is: write"
NO_WEIGHTS = {"export": "there is no folder", "serve": "which does not exist on this machine"}
NO_MODEL = "is not a transformers folder: it has no config.json"
TOKENIZER, WEIGHTS = "can't read the tokenizer of model", "can't read the weights of model"
STATE, ENDS = "state.json': ", "can't read generation_config.json of model"
OF_RUN: tuple[tuple[str, Damage, Words], ...] = (
    (
        "run.json",
        gone,
        {**all_verbs(NO_RUN), "prune": "there is no run in", "console": "is no run's folder and holds none"},
    ),
    ("run.json", cut, all_verbs(NO_ADDRESS)),
    ("run.json", number, all_verbs(NO_ADDRESS)),
    ("run.json", array, all_verbs(NO_ADDRESS)),
    ("run.json", directory, all_verbs("run.json' can't be read: Is a directory")),
    ("store.db", gone, all_verbs("there is no store")),
    ("store.db", cut, all_verbs("store.db' is damaged: restore it from a copy")),
    ("store.db", junk, all_verbs("store.db' is not a SQLite database: use another path")),
    ("store.db", directory, all_verbs("store.db' can't be opened: it must be a file")),
    ("lock", gone, {"prune": "left as it is: there is no run to resume in"}),
    ("lock", directory, {"prune": "can't write the run folder"}),
    ("summary.json", gone, {}),
    ("summary.json", cut, {}),
    ("summary.json", number, {}),
    ("summary.json", directory, {}),
    ("policy", gone, {}),
    ("policy", file, {}),
    ("checkpoints", gone, NO_WEIGHTS),
    ("checkpoints", file, {**NO_WEIGHTS, "prune": "can't write the run folder"}),
    (NEWEST, gone, NO_WEIGHTS),
    (NEWEST, file, {**NO_WEIGHTS, "prune": f"{STATE}[Errno 20] Not a directory"}),
    (f"{NEWEST}/state.json", gone, {"prune": f"{STATE}[Errno 2] No such file"}),
    (f"{NEWEST}/state.json", cut, {**model(STATE), "prune": "restore it from a copy"}),
    (f"{NEWEST}/state.json", number, {**model(f"{STATE}it holds no JSON object"), "prune": "no JSON object"}),
    (f"{NEWEST}/state.json", array, {**model(f"{STATE}it holds no JSON object"), "prune": "no JSON object"}),
    (f"{NEWEST}/state.json", directory, {**model("Is a directory"), "prune": "Is a directory"}),
    (MODEL, gone, model(NO_MODEL)),
    (MODEL, file, model(NO_MODEL)),
)
OF_MODEL: tuple[tuple[str, Damage, str], ...] = (
    ("config.json", gone, NO_MODEL),
    ("config.json", cut, "config.json' is not a valid JSON file"),
    ("config.json", number, TOKENIZER),
    ("config.json", array, TOKENIZER),
    ("config.json", directory, NO_MODEL),
    ("tokenizer.json", gone, TOKENIZER),
    ("tokenizer.json", cut, TOKENIZER),
    ("tokenizer.json", number, TOKENIZER),
    ("tokenizer.json", directory, TOKENIZER),
    ("tokenizer_config.json", cut, TOKENIZER),
    ("tokenizer_config.json", number, TOKENIZER),
    ("generation_config.json", cut, ENDS),
    ("generation_config.json", number, ENDS),
    ("generation_config.json", directory, ENDS),
    ("chat_template.jinja", gone, "has no chat template"),
    ("chat_template.jinja", directory, "has no chat template"),
    ("model.safetensors", gone, WEIGHTS),
    ("model.safetensors", cut, WEIGHTS),
    ("model.safetensors", number, WEIGHTS),
    ("model.safetensors", directory, WEIGHTS),
)
ROWS = (*OF_RUN, *((f"{MODEL}/{name}", damage, model(words)) for name, damage, words in OF_MODEL))


@pytest.mark.parametrize(
    ("name", "damage", "words"), ROWS, ids=[f"{row[0]} {row[1].__name__}" for row in ROWS]
)
def test_a_damaged_run_is_refused_by_those_verbs_that_need_the_file(
    run: Path, command: Command, name: str, damage: Damage, words: Words
) -> None:
    damage(run / name)
    places = {"RUN": str(run), "RUN@2": f"{run}@2", "OUT": str(run.parent / "out")}
    places["PAGE"] = str(run.parent / "page")
    for verb, line in VERBS.items():
        code, said = command(*(places.get(word, word) for word in line))
        assert (verb, code, said) == (verb, int(verb in words), said)
        assert words.get(verb, "") in said
        assert "/run" in said or verb not in words  # where it is, or where its weights were


@pytest.mark.parametrize(
    ("name", "damage", "words"), OF_MODEL, ids=[f"{row[0]} {row[1].__name__}" for row in OF_MODEL]
)
def test_a_damaged_model_is_not_served(
    tmp_path: Path, command: Command, name: str, damage: Damage, words: str
) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    damage(folder / name)
    code, said = command("serve", folder)
    assert (code, str(folder) in said, words in said) == (1, True, True), said


PAGES = ("run", "models", "rollouts")


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [(name, damage, words.get("console", "")) for name, damage, words in OF_RUN],
    ids=[f"{row[0]} {row[1].__name__}" for row in OF_RUN],
)
async def test_the_console_says_what_is_damaged_or_shows_the_run(
    run: Path, name: str, damage: Damage, words: str
) -> None:
    damage(run / name)
    if name == "run.json":
        with pytest.raises(ConfigError, match=re.escape(words)):
            Shelf(str(run), load_plugins())
        return
    async with Shelf(str(run), load_plugins()) as shelf:
        console = Console(shelf)
        transport = httpx.ASGITransport(console.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:80") as client:
            await client.get("/", params={"token": console.token})
            replies = [await client.get(f"/api/{page}", params={"run": "run"}) for page in PAGES]
    for page, reply in zip(PAGES, replies, strict=True):
        assert (page, reply.status_code == 200) == (page, not words), reply.text
        assert words in reply.text
