"""What bounds a server, by its reports: the rule, and the figures that it is made from."""

import copy
import math
from typing import Any

import pytest

from qa_service.programs.bounds import CLIENTS, INSTANCES, LOOP, MODEL, InstanceShares, Spent

IDLE = InstanceShares(2, waiting=0.9, tokenize=0.0, model=0.1, read=0.0, rest=0.0, lock=0.0)


def instances(number=2, *, waiting=0.02, tokenize=0.0, model=0.0, read=0.0, rest=0.0, lock=0.0):
    return InstanceShares(number, waiting, tokenize, model, read, rest, lock)


@pytest.mark.parametrize(
    ("spent", "bound", "words"),
    [
        (Spent(0.97, 0.02, IDLE), LOOP, "loop (0.97 of a core)"),
        (Spent(0.55, 0.02, IDLE), LOOP, "loop, which lacks a core (busy 0.98, on a core 0.55)"),
        (Spent(0.3, 0.7, instances(model=0.93, read=0.05)), MODEL,
         "model (0.93 of 2 instances' time)"),
        (Spent(0.3, 0.7, instances(1, model=0.9), gpu_busy=0.41), MODEL,
         "model (0.90 of an instance's time; the GPU computes 0.41 of it)"),
        (Spent(0.3, 0.7, instances(tokenize=0.41, read=0.33, model=0.24)), INSTANCES,
         "instances' own work (tokenizing 0.41, reading 0.33)"),
        (Spent(0.3, 0.7, instances(tokenize=0.4, read=0.5, rest=0.1, lock=0.3)), INSTANCES,
         "instances' own work (tokenizing 0.40, reading 0.50, the rest 0.10; "
         "of it waiting for a lock or a core 0.30)"),
        (Spent(0.1, 0.9, IDLE), CLIENTS,
         "clients (the loop waits 0.90 of the time, the instances 0.90)"),
        (Spent(0.1, 0.9, None), CLIENTS, "clients (the loop waits 0.90 of the time)"),
    ],
    ids=["loop", "no core", "model", "gpu", "own work", "lock", "clients", "no instance"],
)  # fmt: skip
def test_the_sentence_names_what_is_full(spent, bound, words):
    assert (spent.bound(), spent.sentence()) == (bound, f"bounded by the {words}")


def test_a_full_load_generator_is_named_only_if_nothing_of_the_server_is_full():
    said = "bounded by the clients (the load generator has 0.97 of its one core)"
    assert Spent(0.6, 0.4, IDLE).sentence(generator_cores=0.97) == said
    assert "generator" not in Spent(0.97, 0.02, IDLE).sentence(generator_cores=0.97)


def session(number, version=1, *, ready, waiting, **seconds):
    spent = {"tokenize": 0.0, "model": 0.0, "read": 0.0, "lock": 0.0, **seconds}
    named = {"model": "builtin", "version": version, "session": number, "max_batch_size": 8}
    return named | {"seconds": {"ready": ready, "waiting": waiting, **spent}}


BEFORE: dict[str, Any] = {
    "gauges": {"uptime_s": 100.0},
    "loop": {"cpu": 10.0, "waiting": 80.0},
    "histograms": {"batch_size": {"count": 10, "sum": 20.0}, "queue_ms": {"count": 20, "sum": 5.0}},
    "sessions": [session(0, ready=90.0, waiting=50.0, model=40.0)],
    "gpus": [{"uuid": "G", "busy_s": 4.0, "memory_total_bytes": 1000, "memory_used_bytes": 100}],
}


def after():
    """The report of 10 s later: one instance is busy, another version's new one is idle."""
    later = copy.deepcopy(BEFORE)
    later["gauges"]["uptime_s"] = 110.0
    later["loop"] = {"cpu": 13.0, "waiting": 87.0}
    later["histograms"] = {
        "batch_size": {"count": 20, "sum": 60.0},
        "queue_ms": {"count": 60, "sum": 85.0},
    }
    later["sessions"] = [
        session(0, ready=100.0, waiting=51.0, model=46.0, tokenize=2.0, lock=1.0),
        session(0, 2, ready=5.0, waiting=4.0, model=1.0),
    ]
    later["gpus"][0] |= {"busy_s": 9.0, "memory_used_bytes": 250}
    return later


def test_figures_are_those_of_the_time_between_two_reports():
    spent = Spent.between(BEFORE, after())
    assert spent
    assert (spent.loop_cpu, spent.loop_waiting) == pytest.approx((0.3, 0.7))
    assert (spent.batch_size, spent.batch_fill, spent.queue_ms) == (4.0, 0.5, 2.0)
    assert (spent.gpu_busy, spent.gpu_memory) == (0.5, 0.25)


def test_the_instances_are_those_of_the_version_that_waited_least():
    spent = Spent.between(BEFORE, after())
    assert spent
    its = spent.instances
    assert its == instances(
        1, waiting=0.1, tokenize=0.2, model=0.6, rest=pytest.approx(0.1), lock=0.1
    )
    assert spent.sentence() == (
        "bounded by the model (0.60 of an instance's time; the GPU computes 0.50 of it)"
    )


def test_an_older_server_and_one_without_a_request_say_what_they_can():
    assert Spent.between({}, {}) is None
    assert Spent.between(BEFORE, {"gauges": {"uptime_s": 110.0}}) is None
    assert Spent.between(BEFORE, BEFORE) is None
    quiet = {**after(), "histograms": BEFORE["histograms"], "sessions": [], "gpus": []}
    spent = Spent.between(BEFORE, quiet)
    assert spent
    assert math.isnan(spent.batch_size)
    assert math.isnan(spent.queue_ms)
    assert (spent.instances, spent.gpu_busy, spent.gpu_memory) == (None, None, None)
    assert str(spent) == "loop 0.30 of a core"
