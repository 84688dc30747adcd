"""Instances on a Ray cluster whose nodes come as they are needed, and do not have the model."""

import time
from pathlib import Path
from typing import Any

import pytest

from harness.frames import ANSWER, ASK
from harness.load import QuietAnswers, assert_all_right, under_load
from harness.models import copy_model
from harness.process import GIVE_UP_S, wait_until
from harness.server import FIXED_ENGINE, RunningServer
from qa_service.programs.load.plan import Report
from tests.programs import fail_to_start

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

from harness.ray_cluster import RayCluster, wait_for_alive

SOON_IDLE = {"qa_service.server.instances.ray_pool:IDLE_TIMEOUT_S": 1.0}
WAITING_S, MAX_CLIENTS = 15.0, 500
"""How long one instance needs for what waits, at the pace of the first questions, and how many
clients wait at most: two instances that need a second each are not enough, and a machine that has
other work at first is faster later."""


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where the nodes keep what they are sent."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("home")
        patch.setenv("HOME", str(path))
        yield path


@pytest.fixture(scope="module")
def cluster(home):
    cluster = RayCluster(num_nodes=0)
    yield cluster
    cluster.close()


@pytest.fixture
def start(cluster):
    started = []

    def make(model: Path, *flags: str, **more: Any) -> RunningServer:
        always = (*FIXED_ENGINE, "--ray_address", cluster.address)
        started.append(RunningServer(model, *flags, *always, **more))
        return started[-1]

    yield make
    for server in started:
        server.close()


def test_the_model_is_sent_to_a_node_that_lacks_it(builtin_model, cluster, start, tmp_path, home):
    model = copy_model(builtin_model, tmp_path / "model")
    server = start(model, "--num_inference_sessions=1", "--ray_instances=1", "--ray_push_model")
    server.wait_for_log("waiting for a node of the Ray cluster")
    model.rename(tmp_path / "elsewhere")
    cluster.nodes.append(cluster.add_node())
    wait_for_alive(server, 2)
    [sent] = (home / ".cache" / "qa-server").iterdir()
    assert sent.name.startswith("model-")
    assert {path.name for path in sent.iterdir()} >= {"manifest.json"}


def test_a_model_that_cannot_be_sent_is_reported_in_one_line(builtin_model):
    cluster = RayCluster(num_nodes=0, local_fs_capacity_threshold=0.0)
    try:
        flags = ("--num_inference_sessions=0", "--ray_instances=1", "--ray_push_model")
        address = ("--ray_address", cluster.address)
        ended = fail_to_start("--model", builtin_model, *FIXED_ENGINE, *flags, *address)
    finally:
        cluster.close()
    assert "Traceback" not in ended.stderr
    last_line = ended.stderr.splitlines()[-1]
    assert "the model cannot be sent to Ray: Local disk is full" in last_line


def test_ray_instances_grow_with_queued_work_and_shrink_when_idle(builtin_model, cluster, start):
    if not cluster.nodes:
        cluster.nodes.append(cluster.add_node())
    one = ("--num_inference_sessions=0", "--ray_instances=1:3", "--request_timeout_ms=0")
    # What waits fifteen seconds by plan waits longer while nodes start on the same cores.
    server = start(builtin_model, *one, constants=SOON_IDLE)
    began_s = time.monotonic()
    quiet = QuietAnswers(server.port)
    question_s = (time.monotonic() - began_s) / len(quiet.questions)
    clients = min(MAX_CLIENTS, round(WAITING_S / question_s))
    with under_load(quiet.plan(clients, GIVE_UP_S)) as samples:
        server.wait_for_log("instances on Ray")
        cluster.nodes += [cluster.add_node(), cluster.add_node()]
        wait_for_alive(server, 3)
        wait_until(lambda: samples)  # a busy machine may have answered none yet
    assert_all_right(Report.of(samples))
    wait_for_alive(server, 1)
    for node in cluster.nodes[1:]:
        cluster.remove(node)
    assert server.ask(**ASK)["answer"] == ANSWER
