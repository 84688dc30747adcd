"""What bounds a real server is what the stress test says: each bound is made, by far."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.feed import WORKER
from harness.server import ROOT, running_server
from qa_service.data.squad import SquadQuestion
from qa_service.programs.bounds import CLIENTS, INSTANCES, LOOP, MODEL
from qa_service.programs.load.main import describe
from qa_service.programs.load.plan import LoadPlan, check_span
from qa_service.programs.load.sweep import Cell, Sweep
from tests.http_calls import get
from tests.support import present

pytestmark = pytest.mark.slow

BOUND_SERVER = Path(__file__).parent / "bound_server"
FLAGS = (
    *("--devices", "cpu", "--inference_engine_type", "onnx", "--precision", "fp32"),
    *("--num_inference_sessions", "1", "--max_batch_size", "1", "--cost_table", "off"),
)
QUESTION = SquadQuestion("q", "Who wrote it?", "The letter was written by Ada in 1843.", (), ())


def sleeping(**variables):
    """The words before a server's command that give its instances an engine that sleeps."""
    path = os.pathsep.join(map(str, (BOUND_SERVER, WORKER, ROOT)))
    settings = {"PYTHONPATH": path, **variables}.items()
    return ("env", *(f"{name}={value}" for name, value in settings))


def bound_server(model, **variables):
    return running_server(model, *FLAGS, wrapper=sleeping(**variables))


def load(server, **fields) -> Cell:
    plan = LoadPlan("localhost", server.port, [QUESTION], duration_s=1.0, **fields)
    clients = [plan.num_simultaneous_clients]
    rates = [plan.rate_per_s] if plan.rate_per_s else []
    [cell] = Sweep(plan, clients, rates).run()
    assert cell.report.num_answered
    assert not cell.report.num_failed
    return cell


@pytest.mark.parametrize(
    ("variables", "bound", "words"),
    [({"QA_TEST_BURN": "loop"}, LOOP, "bounded by the loop"),
     ({"FEED_FIXED_US": "50000"}, MODEL, "of an instance's time)"),
     ({"QA_TEST_BURN": "tokenize"}, INSTANCES, "(tokenizing "),
     ({"QA_TEST_BURN": "read"}, INSTANCES, "reading ")],
    ids=["loop", "model", "tokenize", "read"],
)  # fmt: skip
def test_the_part_that_takes_all_the_time_is_the_bound(builtin_model, variables, bound, words):
    with bound_server(builtin_model, **variables) as server:
        cell = load(server, num_simultaneous_clients=8)
    assert present(cell.spent).bound() == bound, cell.spent
    assert words in cell.bound
    assert describe(cell).splitlines()[-1] == f"B{cell.bound[1:]}."


def test_few_and_slow_clients_are_the_bound(builtin_model):
    def check_slowly(question, reply):
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        return check_span(question, reply)

    with bound_server(builtin_model) as server:
        few = load(server, rate_per_s=5.0)
        slow = load(server, check=check_slowly)
        metrics = get(server.port, "/metrics").body.decode()
    assert (present(few.spent).bound(), present(slow.spent).bound()) == (CLIENTS, CLIENTS)
    assert "(the loop waits 0." in few.bound
    for activity in ("ready", "waiting", "tokenize", "model", "read", "lock"):
        labels = f'model="builtin",version="1",instance="0",activity="{activity}"'
        assert f"qa_instance_seconds_total{{{labels}}} " in metrics
    assert 'qa_loop_seconds_total{activity="waiting"} ' in metrics
