"""Instances on other machines: what the pool expects of them, and how they find their model."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from qa_service.errors import SetupError
from qa_service.instance.channel import WorkerChannel
from qa_service.instance.model_folder.manifest import fingerprint_of, load_manifest
from qa_service.instance.ray_instance import RayInstance, find_model, pack
from qa_service.instance.worker_messages import (
    Answers,
    Check,
    Checked,
    Failed,
    Results,
    encode,
    to_loop_decoder,
)
from qa_service.server.children.child import MAX_BACKOFF_S
from qa_service.server.instances.base import WorkerState
from qa_service.server.instances.ray_pool import IDLE_TIMEOUT_S, LOOK_INTERVAL_S, Autoscaler
from qa_service.wire.frames import PREFIX, FrameReader
from tests.support import run_until
from tests.unit.calls import make_ticket


def is_ready(listening):
    return listening.pool.is_complete and not listening.pool.is_booting


def test_a_pool_does_not_wait_for_remote_instances(start):
    listening = start(1, ray_instances=2)
    listening.become_ready(1)
    assert not is_ready(listening)
    listening.become_ready(0)
    assert is_ready(listening)
    listening.become_ready(2)
    assert (is_ready(listening), listening.pool.alive) == (True, 3)


def test_a_pool_marks_when_it_is_complete_again(start):
    """A version that grows may have waited for that."""
    seen = []
    listening = start(2)
    listening.become_ready(0, 1)
    listening.hear(0, end=True)
    listening.settle(MAX_BACKOFF_S)
    assert not is_ready(listening)
    listening.loop.on_mark = lambda: seen.append(is_ready(listening))
    listening.become_ready(0)
    assert (seen, listening.pool.alive) == ([True], 2)


def test_a_remote_instance_that_cannot_start_is_no_failure_if_there_are_local_ones(start):
    listening = start(1, ray_instances=1)
    listening.hear(1, Failed("no cluster"), end=True)
    listening.become_ready(0)
    assert (is_ready(listening), listening.pool.take_failure()) == (True, "")


def test_without_local_instances_the_first_remote_one_makes_the_pool_ready(start):
    listening = start(0, ray_instances=2)
    listening.become_ready(1)
    assert is_ready(listening)


def test_without_local_instances_the_first_failure_is_the_pools(start):
    listening, failures = start(0, ray_instances=2), []
    listening.loop.on_mark = lambda: failures.append(listening.pool.take_failure())
    listening.hear(0, Failed("no cluster"), end=True)
    assert failures == ["instance 0 cannot start: no cluster"]


@pytest.mark.parametrize("is_blameless", [True, False])
def test_a_batch_lost_with_a_node_counts_no_attempt(start, is_blameless):
    listening = start(0, ray_instances=1)
    listening.become_ready(0)
    worker = listening.workers[0]
    worker.run([make_ticket()])
    listening.hear(0, Failed("it is gone", is_blameless=is_blameless), end=True)
    assert listening.lost == [(-1, not is_blameless)]


@pytest.fixture
def growing(start):
    """One local instance, and one to three on Ray."""
    pool = start(1, ray_instances="1:3", execution_timeout_ms=10**7)
    pool.become_ready(0, 1)
    pool.waiting_s = 100.0
    pool.settle(LOOK_INTERVAL_S)
    return pool


def test_remote_instances_grow_with_queued_work(growing):
    assert sorted(growing.workers) == [0, 1, 2, 3]
    assert is_ready(growing)


@pytest.fixture
def shrinking(growing):
    """The last one holds a batch, and there is no other work for long."""
    growing.become_ready(2, 3)
    growing.workers[3].run([make_ticket()])
    growing.waiting_s = 0.0
    growing.settle(LOOK_INTERVAL_S)
    growing.settle(IDLE_TIMEOUT_S)
    return growing


def test_a_surplus_instance_finishes_its_batch_before_it_ends(shrinking):
    last = shrinking.workers[3]
    assert (last.is_leaving, last.takes_from_s(), last.state) == (True, math.inf, WorkerState.READY)
    last.peer.send(Results(0, [Answers([])], 0.0, 1.0))
    run_until(shrinking.loop, lambda: last.state is WorkerState.DEAD)
    shrinking.settle(IDLE_TIMEOUT_S)
    assert shrinking.workers[2].state is WorkerState.DEAD
    assert (shrinking.pool.alive, len(shrinking.results)) == (2, 1)


def test_a_surplus_instance_that_dies_is_not_restarted(shrinking):
    shrinking.hear(3, end=True)
    shrinking.settle(IDLE_TIMEOUT_S)
    assert (shrinking.pool.alive, shrinking.lost) == (2, [(-1, True)])
    assert shrinking.metrics.session_restarts_total == 0


class TestModel:
    def test_a_model_with_the_same_files_is_used_where_it_is(self, builtin_model):
        assert find_model(builtin_model, fingerprint_of(builtin_model), []) == builtin_model

    def test_a_missing_model_is_reported(self, builtin_model, tmp_path):
        with pytest.raises(SetupError, match="--ray_push_model"):
            find_model(tmp_path, fingerprint_of(builtin_model), [])

    def test_a_different_model_is_reported(self, builtin_model):
        with pytest.raises(SetupError, match="holds another model"):
            find_model(builtin_model, "other", [])

    def test_a_sent_model_is_unpacked_once(self, builtin_model, tmp_path, monkeypatch):
        monkeypatch.setattr("qa_service.instance.ray_instance.CACHE_DIR", tmp_path / "cache")
        monkeypatch.setattr("qa_service.instance.ray_instance._fetch", lambda item: item)
        expected = fingerprint_of(builtin_model)
        found = find_model(tmp_path / "none", expected, [pack(builtin_model)])
        assert fingerprint_of(found) == expected
        assert load_manifest(found).name == "builtin"
        assert find_model(tmp_path / "none", expected, ["it is there already"]) == found

    def test_nothing_is_left_if_another_instance_unpacked_first(
        self, builtin_model, tmp_path, monkeypatch
    ):
        cache = tmp_path / "cache"
        fingerprint = fingerprint_of(builtin_model)
        first = cache / f"none-{fingerprint[:16]}"

        def fetch(item):
            first.mkdir()
            (first / "file").touch()
            return item

        monkeypatch.setattr("qa_service.instance.ray_instance.CACHE_DIR", cache)
        monkeypatch.setattr("qa_service.instance.ray_instance._fetch", fetch)
        found = find_model(tmp_path / "none", fingerprint, [pack(builtin_model)])
        assert [found] == list(cache.iterdir()) == [first]


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (Check(4), Checked(4)),
        (Check(4), Failed("it computes wrongly", is_blameless=True, is_wrong=True)),
    ],
)
def test_an_actor_forwards_self_tests_and_their_results(asked, reply):
    instance = RayInstance()
    worker = WorkerChannel(instance._theirs)
    threading.Thread(target=instance._receive, args=[FrameReader(1 << 20)], daemon=True).start()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(instance.run, bytes(encode(asked))[PREFIX.size :])
        assert worker.receive() == asked
        worker.send(reply)
        body, came_s, went_s = running.result()
    assert to_loop_decoder.decode(body) == reply
    assert came_s <= went_s


# How many there should be.


def scaler():
    return Autoscaler(fewest=2, most=8, now_s=0.0)


def wanted(autoscaler, at_s=1.0, **found):
    usual = {"remote": 2, "alive": 3, "starting": 0, "idle": 0, "waiting_s": 0.0}
    return autoscaler.wanted(at_s, **(usual | found))


def test_instances_grow_by_queued_seconds():
    assert [wanted(scaler(), waiting_s=s) for s in (3.0, 4.5, 100.0)] == [2, 4, 8]


def test_no_instance_is_added_while_others_start():
    assert wanted(scaler(), waiting_s=100.0, starting=1) == 2


IDLE = {"remote": 4, "alive": 5, "idle": 1}


def test_one_instance_is_removed_after_the_idle_timeout():
    pool = scaler()
    assert [wanted(pool, at_s, **IDLE) for at_s in (1.0, 59.0, 60.0, 61.0)] == [4, 4, 3, 4]


def test_waiting_work_restarts_the_idle_timeout():
    pool = scaler()
    wanted(pool, 30.0, remote=4, alive=5)
    assert wanted(pool, 60.0, **IDLE) == 4
    wanted(pool, 80.0, **IDLE, waiting_s=0.1)
    assert [wanted(pool, at_s, **IDLE) for at_s in (139.0, 140.0)] == [4, 3]


def test_autoscaling_keeps_the_minimum():
    assert wanted(scaler(), 1000.0, idle=2) == 2
