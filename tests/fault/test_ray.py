"""Instances on a Ray cluster whose nodes are lost, hang, and come back."""

import dataclasses

import pytest

from harness.frames import ASK
from harness.load import QuietAnswers, assert_all_right, under_load
from harness.process import GIVE_UP_S, held_still, wait_until
from harness.server import FIXED_ENGINE, ONE_INSTANCE, RunningServer
from qa_service.programs.load.plan import LoadPlan, Report
from tests.programs import fail_to_start

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

from harness.ray_cluster import (
    RayCluster,
    actor_pids,
    another_version,
    raylet_pid,
    wait_for_alive,
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster():
    cluster = RayCluster(num_nodes=2)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def server(builtin_model, cluster):
    """One local instance and two on Ray."""
    flags = ("--num_inference_sessions", "1", "--ray_instances", "2")
    server = RunningServer(builtin_model, *FIXED_ENGINE, *flags, "--ray_address", cluster.address)
    yield server
    server.close()


@pytest.fixture(scope="module")
def quiet(builtin_model) -> QuietAnswers:
    """What a server without Ray answers."""
    server = RunningServer(builtin_model, *ONE_INSTANCE)
    answers = QuietAnswers(server.port)
    server.close()
    return answers


def load_of(quiet: QuietAnswers, server: RunningServer, num_clients: int) -> LoadPlan:
    return dataclasses.replace(quiet.plan(num_clients, GIVE_UP_S), port=server.port)


def test_a_ray_instance_gives_the_answers_of_a_local_one(server, quiet):
    wait_for_alive(server, 3)
    with under_load(load_of(quiet, server, 8)) as samples:
        wait_until(lambda: len(samples) >= 200)
    assert_all_right(Report.of(samples))


def test_a_node_that_is_lost_costs_no_request(server, cluster, quiet):
    wait_for_alive(server, 3)
    with under_load(load_of(quiet, server, 50)) as samples:
        wait_until(lambda: len(samples) >= 50)
        cluster.remove(cluster.nodes[-1])
        wait_for_alive(server, 2)
        num_samples = len(samples)
        wait_until(lambda: len(samples) >= num_samples + 50)
    assert_all_right(Report.of(samples))
    cluster.nodes.append(cluster.add_node())
    wait_for_alive(server, 3)


def test_a_node_that_hangs_gives_its_requests_back(server, cluster, quiet):
    wait_for_alive(server, 3)
    node = cluster.nodes[0]
    with under_load(load_of(quiet, server, 50)) as samples:
        wait_until(lambda: len(samples) >= 50)
        with held_still([*actor_pids(node), raylet_pid(node)]):
            wait_for_alive(server, 2)
            server.wait_for_log("pings had no reply")
    assert "still busy after its time" not in server.log
    assert_all_right(Report.of(samples))


def test_a_cluster_of_another_version_is_reported_in_one_line(builtin_model, cluster):
    flags = ("--num_inference_sessions", "0", "--ray_instances", "1")
    with another_version(cluster):
        ended = fail_to_start("--model", builtin_model, *flags, "--ray_address", cluster.address)
    last_line = ended.stderr.splitlines()[-1]
    assert "Version mismatch" in last_line
    assert "0.0.1" in last_line


def test_a_cluster_that_is_gone_leaves_the_local_instances(server, cluster, quiet):
    cluster.kill_gcs()
    wait_for_alive(server, 1)
    assert server.ask(**ASK)["answer"]
    assert server.process.poll() is None
