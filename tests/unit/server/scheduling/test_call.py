"""A call's ends: what runs, once and in which order, and what ends with it."""

import gc
from functools import partial

import pytest

from qa_service.errors import QueueFullError, WorkerCrashedError
from qa_service.server.scheduling.call import Call
from qa_service.wire.messages import Answer, Answered, Timings
from tests.unit.calls import make_call

ANSWER = Answer("Ada", 0.9, 0, 3)
TIMINGS = Timings(1.0, 20.0)

ENDS = {
    "resolved": lambda call: call.resolve([ANSWER], TIMINGS),
    "failed": lambda call: call.fail(QueueFullError()),
    "cancelled": Call.cancel,
}


def heard_of(call):
    """What the call came to, as whoever made it hears."""
    heard = []
    call.then(heard.append)
    return heard


def ignore(call, _):
    """Holds a call, and does nothing."""


def test_completions_run_once_the_last_added_first():
    order = []
    call = make_call(on_settled=lambda _: order.append("first"))
    call.then(lambda _: order.append("second"))
    call.resolve([ANSWER], TIMINGS)
    call.fail(QueueFullError())
    call.cancel()
    assert order == ["second", "first"]
    assert not call.is_cancelled


def test_a_completions_return_value_replaces_the_outcome():
    call = make_call()
    heard = heard_of(call)
    call.then(lambda _: Answered([ANSWER], TIMINGS))
    call.then(lambda _: None)
    call.fail(QueueFullError())
    assert [outcome.answers for outcome in heard] == [[ANSWER]]


def test_a_cancelled_calls_completions_do_not_run():
    call = make_call()
    heard = heard_of(call)
    call.cancel()
    call.resolve([ANSWER], TIMINGS)
    assert heard == []
    assert call.is_settled
    assert call.is_cancelled


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_on_end_callbacks_run_once_before_the_outcome_is_heard(end):
    order: list[object] = []
    call = make_call(on_settled=lambda _: order.append("outcome"))
    call.on_end(lambda one: order.append(("outer", one)))
    call.on_end(lambda one: order.append(("inner", one)))
    end(call)
    end(call)
    assert order[:2] == [("inner", call), ("outer", call)]
    assert order[2:] == [] if call.is_cancelled else ["outcome"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_child_ends_with_its_parent_and_its_outcome_is_ignored(end):
    parent, order = make_call(), []
    parent.on_end(lambda _: order.append("parent dropped"))
    child = parent.child(parent.request, "[child]")
    grandchild = child.child(parent.request, "[grandchild]")
    heard = [heard_of(child), heard_of(grandchild)]
    grandchild.on_end(lambda _: order.append("grandchild dropped"))
    end(parent)
    assert order == ["grandchild dropped", "parent dropped"]
    assert child.is_cancelled
    assert grandchild.is_cancelled
    assert heard == [[], []]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_child_that_ends_leaves_its_parent_and_its_siblings(end):
    parent = make_call(text="t" * 1000)
    child, sibling = (parent.child(parent.request, f"[{n}]") for n in range(2))
    end(child)
    assert not parent.is_settled
    assert not sibling.is_settled
    parent.cancel()
    assert sibling.is_cancelled


def test_a_child_inherits_deadline_flow_weight_and_trace():
    parent = make_call(1.0, deadline_s=9.0, flow="ada", weight=2.0, trace_id="4bf9")
    scope = parent.child(parent.request, "[small]", arrived_s=3.0).scope
    assert (scope.arrived_s, scope.name) == (3.0, "[small]")
    own = ("deadline_s", "flow", "weight", "trace_id")
    assert [getattr(scope, name) for name in own] == [9.0, "ada", 2.0, "4bf9"]


def test_on_end_and_child_of_an_ended_call_run_at_once():
    call, dropped = make_call(), []
    call.fail(QueueFullError())
    call.on_end(dropped.append)
    assert heard_of(call) == []
    assert dropped == [call]
    assert call.child(call.request, "").is_cancelled


def test_a_fault_in_one_service_is_logged_and_the_client_is_answered(caplog):
    call = make_call()
    heard = heard_of(call)
    dropped = []
    call.on_end(dropped.append)
    call.on_end(lambda _: 1 / 0)
    call.then(lambda _: 1 / 0)
    call.resolve([ANSWER], TIMINGS)
    assert [outcome.code for outcome in heard] == ["internal_error"]
    assert dropped == [call]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2


def test_a_fault_in_a_childs_completion_fails_the_parent():
    parent = make_call()
    heard = heard_of(parent)
    child = parent.child(parent.request, "[child]")
    child.then(lambda _: 1 / 0)
    child.resolve([ANSWER], TIMINGS)
    assert [outcome.code for outcome in heard] == ["internal_error"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_ended_call_leaves_no_reference_cycle(end):
    gc.disable()
    try:
        call = make_call()
        child = call.child(call.request, "[child]")
        for one in (call, child):
            one.then(partial(ignore, one))
            one.on_end(partial(ignore, one))
        end(call)
        ids = {id(call), id(child)}
        del call, child, one
        assert not ids & {id(found) for found in gc.get_objects() if isinstance(found, Call)}
    finally:
        gc.enable()


def test_a_child_may_end_its_parent():
    parent = make_call()
    heard = heard_of(parent)
    children = [parent.child(parent.request, f"[{n}]") for n in range(3)]
    children[1].then(parent.fail)
    children[1].fail(WorkerCrashedError())
    assert [outcome.code for outcome in heard] == ["worker_crashed"]
    assert [child.is_cancelled for child in children] == [True, False, True]
