"""`import lightning_core` stays light: what is heavy is imported when it is first used."""

import subprocess
import sys

import pytest

import lightning_core

HEAVY = (
    *("torch", "transformers", "starlette", "uvicorn", "openai", "matplotlib", "sqlite3", "fastapi", "redis"),
    *("tensorboard", "wandb", "mlflow"),
)
FRAMEWORKS = ("langchain_core", "autogen_core", "agents", "opentelemetry", "google.protobuf")


@pytest.mark.parametrize(
    "statement",
    [
        "import lightning_core",
        "import lightning_core; lightning_core.Task, lightning_core.GRPO",
        "import lightning_core, lightning_langgraph",
        "import lightning_core, lightning_autogen; lightning_autogen.detach()",
        "import lightning_core, lightning_openai_agents; lightning_openai_agents.install()",
        "import lightning_openai_agents as sdk; sdk.install(); sdk.uninstall()",
    ],
)
def test_importing_does_not_import_what_is_heavy(statement):
    code = f"{statement}\nimport sys\nprint([m for m in {HEAVY + FRAMEWORKS!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


@pytest.mark.parametrize("name", lightning_core.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(lightning_core, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Trainr"):
        lightning_core.Trainr  # noqa: B018
