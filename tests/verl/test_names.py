"""The names of verl that are used, and that they are there. Needs verl, and no cluster."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import lightning_core
from tests.verl.conftest import import_verl

PACKAGE = Path(lightning_core.__file__).parent
CLUSTER = PACKAGE / "backends/verl/cluster.py"
PLATFORM = Path(__file__).parent / "cpu_platform.py"
NAMES: dict[str, tuple[str, ...]] = {
    "verl.checkpoint_engine.CheckpointEngineManager": ("config", "actor_wg", "replicas"),
    "verl.checkpoint_engine.CheckpointEngineManager.update_weights": ("global_steps",),
    "verl.checkpoint_engine.CheckpointEngineManager.sleep_replicas": (),
    "verl.single_controller.base.decorator.Dispatch": (),
    "verl.single_controller.base.decorator.register": ("dispatch_mode",),
    "verl.single_controller.ray.RayClassWithInitArgs": ("cls",),
    "verl.single_controller.ray.RayResourcePool": (
        "process_on_nodes", "use_gpu", "max_colocate_count", "name_prefix",
    ),
    "verl.single_controller.ray.RayWorkerGroup": ("resource_pool", "ray_cls_with_init"),
    "verl.utils.config.omega_conf_to_dataclass": ("config",),
    "verl.utils.tensordict_utils": (),
    "verl.utils.tensordict_utils.assign_non_tensor": ("tensor_dict",),
    "verl.utils.tensordict_utils.get": ("tensordict", "key"),
    "verl.workers.config.CriticConfig": (),
    "verl.workers.config.TrainingWorkerConfig": (
        "model_type", "model_config", "engine_config", "optimizer_config", "checkpoint_config",
    ),
    "verl.workers.engine_workers.ActorRolloutRefWorker": ("config", "role"),
    "verl.workers.engine_workers.ActorRolloutRefWorker.init_model": (),
    "verl.workers.engine_workers.ActorRolloutRefWorker.set_loss_fn": ("loss_fn",),
    "verl.workers.engine_workers.ActorRolloutRefWorker.update_actor": ("data",),
    "verl.workers.engine_workers.ActorRolloutRefWorker.compute_log_prob": ("data",),
    "verl.workers.engine_workers.ActorRolloutRefWorker.compute_ref_log_prob": ("data",),
    "verl.workers.engine_workers.ActorRolloutRefWorker.save_checkpoint": ("local_path",),
    "verl.workers.engine_workers.ActorRolloutRefWorker.load_checkpoint": ("local_path",),
    "verl.workers.engine_workers.TrainingWorker": ("config",),
    "verl.workers.engine_workers.TrainingWorker.reset": (),
    "verl.workers.engine_workers.TrainingWorker.set_loss_fn": ("loss_fn",),
    "verl.workers.engine_workers.TrainingWorker.train_mini_batch": ("data",),
    "verl.workers.engine_workers.TrainingWorker.infer_batch": ("data",),
    "verl.workers.engine_workers.TrainingWorker.save_checkpoint": ("local_path",),
    "verl.workers.engine_workers.TrainingWorker.load_checkpoint": ("local_path",),
    "verl.workers.rollout.replica.get_rollout_replica_class": ("rollout",),
    "verl.workers.rollout.replica.RolloutReplica": (
        "replica_rank", "config", "model_config", "gpus_per_node",
    ),
    "verl.workers.rollout.replica.RolloutReplica.init_hybrid": ("worker_group",),
    "verl.workers.rollout.replica.RolloutReplica.init_standalone": (),
    "verl.workers.rollout.replica.RolloutReplica.server_address": (),
}  # fmt: skip
"""Every name of verl that the product uses, with the parameters that it gives."""


@pytest.fixture(scope="module", autouse=True)
def verl() -> None:
    import_verl()


def find(name: str) -> Any:
    """Returns the object behind a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def imported(tree: ast.AST) -> dict[str, str]:
    """Local name -> full name of all that a file imports, wherever in it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name.partition(".")[0]): a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {(a.asname or a.name): f"{node.module}.{a.name}" for a in node.names}
    return names


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """All Python files of the repository that are its own."""
    root = PACKAGE.parent
    for top in ("lightning_core", "tests", "benchmarks", "research", "examples", "recipes", "plugins"):
        for path in sorted((root / top).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def from_peer(full: str) -> bool:
    return full.partition(".")[0] in ("verl", "vllm")


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_takes_what_it_is_given(name: str) -> None:
    found, given = find(name), NAMES[name]
    if given:
        parameters = inspect.signature(found).parameters
        missing = [parameter for parameter in given if parameter not in parameters]
        assert not missing, f"{name} has {list(parameters)}"


def test_the_list_names_all_that_is_imported() -> None:
    used = {full for full in imported(ast.parse(CLUSTER.read_text())).values() if from_peer(full)}
    assert used == {name for name in NAMES if name in used} != set()


def test_one_file_of_the_product_imports_verl() -> None:
    importing = [
        path
        for path, tree in sources()
        if path.is_relative_to(PACKAGE) and any(f.startswith("verl") for f in imported(tree).values())
    ]
    assert importing == [CLUSTER]


def test_of_verls_classes_only_workers_are_extended() -> None:
    extended = set()
    for path, tree in sources():
        names = imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and path.is_relative_to(PACKAGE):
                bases = {names.get(ast.unparse(base).partition(".")[0], "") for base in node.bases}
                extended |= {base for base in bases if base.startswith("verl")}
    workers = "verl.workers.engine_workers."
    assert extended == {workers + "ActorRolloutRefWorker", workers + "TrainingWorker"}


def test_nothing_of_verl_is_replaced_outside_the_platform_for_tests() -> None:
    """Nor of vLLM, but for the one function of its CPU build that `vllm/cpu.py` documents."""
    allowed = {PLATFORM, PACKAGE / "backends/vllm/cpu.py"}
    replacing = set()
    for path, tree in sources():
        peers = {local for local, full in imported(tree).items() if from_peer(full)}
        for node in ast.walk(tree):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                targets = [ast.Attribute(node.args[0], "", ast.Store())]
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target).partition(".")[0] in peers:
                    replacing.add(path)
    assert replacing <= allowed
    assert replacing & allowed
