"""GPUs are counted by machine, and asked for before verl does, on a real Ray cluster of two machines that say
that they have four GPUs each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from lightning_core.backends.verl.ray_link import RayLink
from lightning_core.backends.verl.resources import (
    check_free,
    check_gpus,
    count_gpus,
    find_resources,
    groups,
)
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.errors import BackendError, ConfigError
from tests.verl.test_memory import graphics

__all__ = ["graphics"]
GPUS, CPUS = 4, 12
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray, at its start


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Its address; this process has joined it."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = {"num_cpus": CPUS, "num_gpus": GPUS}
        made = Cluster()
        try:
            made.add_node(**each, include_dashboard=False)
            made.add_node(**each)
            ray.init(address=made.address, log_to_driver=False)
            yield made.address
        finally:
            ray.shutdown()
            made.shutdown()


def opened(settings: VerlSettings) -> int:
    """The GPUs of each machine that train, which Ray had free."""
    resources = find_resources(settings)
    check_gpus(settings, resources)
    gpus = count_gpus(settings, resources.counts)
    link = RayLink(settings)
    try:
        link.open(gpus)
    finally:
        link.close()
    return gpus


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_gpus_of_a_machine_train(cluster, nodes):
    settings = VerlSettings("x", nodes=nodes, address=cluster)
    assert find_resources(settings).counts == (GPUS, GPUS)
    assert opened(settings) == GPUS


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"gpus": 8}, "8 GPUs on one machine"),
        ({"gpus": 4, "serving_gpus": 5}, "4 GPUs on one machine to train and 5 to serve"),
        (
            {"gpus": 2, "nodes": 2, "serving_gpus": 3, "tensor_parallel": 3},
            r"2 GPUs on each of 2 machines to train and 6 to serve \(3 together\)",
        ),
        ({"gpus": 1, "nodes": 3}, "1 GPU on each of 3 machines"),
    ],
)
def test_gpus_that_are_there_on_no_machine_are_refused(cluster, options, needs):
    """There are eight in all; verl would wait for ever for eight that are together."""
    settings = VerlSettings("x", address=cluster, **options)
    with pytest.raises(ConfigError, match=rf"needs {needs} and Ray at .* has 4 \+ 4; lower gpus"):
        opened(settings)


@pytest.mark.parametrize(
    "options", [{"gpus": 4, "serving_gpus": 4, "tensor_parallel": 4}, {"gpus": 3, "serving_gpus": 5}]
)
def test_gpus_that_serve_may_be_of_another_machine(cluster, options):
    settings = VerlSettings("x", address=cluster, **options)
    assert opened(settings) == options["gpus"]  # Ray had all groups free at once


def test_two_runs_of_one_number_in_ray_are_kept_apart(cluster):
    """As two are which each have a Ray of their own: both are the first there."""
    settings = VerlSettings("x", gpus=1, address=cluster)
    first = RayLink(settings)
    first.open(1)
    words = r"another run on this machine .* the number that this one is here, \w+: .*address=\"auto\""
    with pytest.raises(BackendError, match=words):
        opened(settings)
    first.close()
    assert opened(settings) == 1


@pytest.fixture
def taken(cluster: str) -> Iterator[PlacementGroup]:
    """Two GPUs and two CPUs that another run uses, and Ray says so: it is told of changes a little later."""
    group = placement_group([{"GPU": 2, "CPU": 2}])
    assert group.wait(60)
    while (free := ray.available_resources())["GPU"] != 2 * GPUS - 2 or free["CPU"] != 2 * CPUS - 2:
        time.sleep(0.05)
    yield group
    remove_placement_group(group)


def test_gpus_in_use_end_the_wait_and_nothing_stays_asked_for(taken):
    wanted = groups(VerlSettings("x", nodes=2, gpus=4), 4)
    needs = r"needs 4 GPUs with 12 CPUs \+ 4 GPUs with 12 CPUs, each together on one machine"
    with pytest.raises(BackendError, match=needs + ", and of all machines 6 GPUs and 22 CPUs were free"):
        check_free(wanted, seconds=5)  # Ray, when busy, keeps a group that is removed while it is made
    remove_placement_group(taken)
    check_free(wanted)


def test_servers_of_their_own_are_counted_with_the_cpus_that_verl_asks_for(cluster):
    apart = VerlSettings("x", gpus=2, serving_gpus=2, nodes=2, tensor_parallel=2)
    found = groups(apart, 2)
    assert found == [[{"CPU": 3, "GPU": 1}] * 2] * 2 + [[{"CPU": 2, "GPU": 1}] * 2] * 2
    check_free(found)
