"""One client's connection, with a scripted owner in place of the server."""

from __future__ import annotations

import itertools
import select
import socket

import pytest

from harness.frames import frame, receive
from qa_service.errors import ERROR_KINDS, DeadlineExceededError, QueueFullError
from qa_service.front.auth import Authenticator
from qa_service.front.connection import (
    COSTLY_MESSAGE_BYTES,
    MESSAGES_A_TURN,
    READ_AHEAD_BYTES,
    Connection,
)
from qa_service.front.options import AuthOptions, ConnectionOptions
from qa_service.net.stream import Stream
from qa_service.telemetry.metrics import Metrics
from qa_service.wire.codec import Wait
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.messages import QUERY_TYPES, Answer, Request, RequestLimits, Timings
from qa_service.wire.trace_context import NO_TRACE
from tests.support import FakeTimeLoop, run_until

ASK = {"question": "q?", "text": "some text"}
LIMITS = RequestLimits(max_frame_bytes=1000, max_question_chars=100, max_text_chars=900)


class Owner:
    """Stands where the service is, and the server: remembers requests; refuses when told to."""

    def __init__(self, *, stream=None, codec=None, requests=LIMITS, **limits):
        self.loop = FakeTimeLoop()
        self.calls, self.ended, self.refuse, self.cancelled = [], [], None, []
        self.queries = []
        self.metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        ours, self.client = socket.socketpair()
        self.client.settimeout(20)
        limits = {"max_output_buffer_bytes": 10_000, "request_timeout_ms": 0, **limits}
        chosen = codec or FrameCodec(requests, requests.max_frame_bytes)
        self.connection = Connection(
            stream or Stream(self.loop, ours),
            lambda _: chosen,
            self,
            ConnectionOptions(**limits),
            clock=self.loop,
            authenticator=Authenticator(AuthOptions()),
            report=self.report,
            metrics=self.metrics,
            on_end=self.ended.append,
            name="the client",
        )

    @property
    def outcomes(self):
        return {code: n for code, n in self.metrics.requests_total.items() if n}

    def submit(self, call):
        call.on_end(self.note)
        if self.refuse:
            call.fail(self.refuse)
        else:
            self.calls.append(call)

    def note(self, call):
        if call.is_cancelled:
            self.cancelled.append(call)

    def report(self, query):
        self.queries.append(query)
        return {"asked": query.type}

    def answer(self, call, text="some"):
        call.resolve([Answer(text, 0.5, 0, len(text))], Timings(1.0, 2.0))

    def run_until(self, condition):
        run_until(self.loop, condition)

    def pass_s(self, seconds):
        """Lets time pass, and what is due then happen."""
        self.loop.clock.pass_s(seconds)
        self.run_until(lambda: True)


@pytest.fixture
def make_owner():
    made = []

    def make(**limits):
        made.append(Owner(**limits))
        return made[-1]

    yield make
    for owner in made:
        owner.connection.close()
        owner.client.close()
        owner.loop.close()


def test_answers_may_come_in_any_order(make_owner):
    owner = make_owner()
    owner.client.sendall(b"".join(frame({"id": i, **ASK}) for i in range(3)))
    owner.run_until(lambda: len(owner.calls) == 3)
    for i in (2, 0, 1):
        owner.answer(owner.calls[i])
        assert receive(owner.client)["id"] == i
    assert owner.connection.calls == set()


def test_a_clients_priorities_weigh_more_and_share_its_one_flow(make_owner):
    owner = make_owner(max_priority=5)
    owner.client.sendall(b"".join(frame({"id": n, "priority": n, **ASK}) for n in (0, 1, 9)))
    owner.run_until(lambda: len(owner.calls) == 3)
    assert [call.scope.weight for call in owner.calls] == [1.0, 2.0, 6.0]
    assert {call.scope.flow for call in owner.calls} == {"the client"}


def test_a_request_is_settled_once(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(ASK))
    owner.run_until(lambda: bool(owner.calls))
    owner.answer(owner.calls[0])
    owner.calls[0].fail(DeadlineExceededError())
    owner.connection.close()
    assert receive(owner.client)["answer"] == "some"
    assert receive(owner.client) is None


def test_a_client_that_goes_has_its_requests_cancelled(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(ASK) * 2)
    owner.run_until(lambda: len(owner.calls) == 2)
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))
    assert set(owner.cancelled) == set(owner.calls)
    assert all(call.is_settled for call in owner.calls)
    assert owner.outcomes == {"abandoned": 2}


def test_an_id_in_flight_is_refused_and_free_again_once_answered(make_owner):
    owner = make_owner()
    owner.client.sendall(frame({"id": 7, **ASK}) * 2)
    assert_code(owner, 7, "duplicate_id")
    owner.answer(owner.calls[0])
    assert receive(owner.client)["answer"] == "some"
    owner.client.sendall(frame({"id": 7, **ASK}))
    owner.run_until(lambda: len(owner.calls) == 2)


CANCEL = {"id": 1, "type": "cancel"}


def test_a_cancelled_request_is_told_so_at_once_and_the_others_go_on(make_owner):
    owner = make_owner()
    owner.client.sendall(b"".join(frame({"id": i, **ASK}) for i in range(3)) + frame(CANCEL))
    owner.run_until(lambda: len(owner.connection.calls) == 2)
    told = receive(owner.client)
    assert (told["id"], told["error"]["code"], told["error"]["retryable"]) == (
        1,
        "cancelled",
        False,
    )
    for call in owner.calls:
        owner.answer(call)  # that of the cancelled one comes too late
    assert [receive(owner.client)["id"] for _ in range(2)] == [0, 2]
    owner.connection.close()
    assert receive(owner.client) is None
    assert owner.outcomes == {"answered": 2, "cancelled": 1}


def test_an_id_that_was_cancelled_is_free_again(make_owner):
    owner = make_owner()
    ask = frame({"id": 1, **ASK})
    owner.client.sendall(ask + frame(CANCEL) + ask)
    owner.run_until(lambda: len(owner.calls) == 2)
    owner.answer(owner.calls[1])
    assert receive(owner.client)["error"]["code"] == "cancelled"
    assert receive(owner.client)["answer"] == "some"


def test_what_is_not_in_flight_cannot_be_cancelled_and_nothing_is_said(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(CANCEL) + frame({"id": 1, **ASK}))
    owner.run_until(lambda: bool(owner.calls))
    owner.answer(owner.calls[0])
    owner.client.sendall(frame(CANCEL) + frame({"id": 2, "type": "health"}))
    assert receive(owner.client)["answer"] == "some"
    owner.run_until(lambda: bool(owner.queries))
    assert receive(owner.client)["id"] == 2
    assert owner.outcomes == {"answered": 1}


def test_requests_without_an_id_are_cancelled_together(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(ASK) * 2 + frame({"id": 1, **ASK}) + frame({"type": "cancel"}))
    owner.run_until(lambda: len(owner.connection.calls) == 1)
    codes = [receive(owner.client)["error"]["code"] for _ in range(2)]
    assert codes == ["cancelled", "cancelled"]
    [left] = owner.connection.calls
    assert left.request.id_json == b"1"


def test_past_its_requests_in_flight_one_can_be_cancelled(make_owner):
    owner = make_owner(max_in_flight_per_connection=2)
    owner.client.sendall(b"".join(frame({"id": i, **ASK}) for i in range(2)))
    owner.run_until(lambda: len(owner.calls) == 2)
    owner.client.sendall(frame(CANCEL) + frame({"id": 2, **ASK}))
    owner.run_until(lambda: len(owner.calls) == 3)
    assert receive(owner.client)["error"]["code"] == "cancelled"


def test_a_request_that_waits_for_room_is_before_the_cancel_frame_behind_it(make_owner):
    owner = make_owner(max_in_flight_per_connection=1)
    asked = b"".join(frame({"id": i, **ASK}) for i in range(2))
    owner.client.sendall(asked + frame(CANCEL) + frame({"id": 2, **ASK}))
    owner.run_until(lambda: bool(owner.calls))
    owner.answer(owner.calls[0])
    owner.run_until(lambda: len(owner.calls) == 3)
    assert [call.is_settled for call in owner.calls] == [True, True, False]


def test_null_ids_may_be_in_flight_together(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(ASK) * 2)
    owner.run_until(lambda: len(owner.calls) == 2)


def test_a_refused_request_is_answered_and_its_id_is_free(make_owner):
    owner = make_owner()
    owner.refuse = QueueFullError()
    owner.client.sendall(frame({"id": "a", **ASK}))
    assert_code(owner, "a", "queue_full")
    owner.refuse = None
    owner.client.sendall(frame({"id": "a", **ASK}))
    owner.run_until(lambda: len(owner.calls) == 1)


def test_past_its_requests_in_flight_the_client_waits(make_owner):
    owner = make_owner(max_in_flight_per_connection=2)
    owner.client.sendall(b"".join(frame({"id": i, **ASK}) for i in range(5)))
    owner.run_until(lambda: len(owner.calls) == 2)
    for taken in (3, 4, 5):
        owner.answer(owner.calls[taken - 3])
        owner.run_until(lambda taken=taken: len(owner.calls) == taken)
    assert [p.request.id_json for p in owner.calls] == [b"0", b"1", b"2", b"3", b"4"]


def test_past_its_requests_in_flight_little_is_read_ahead(make_owner):
    owner = make_owner(max_in_flight_per_connection=1)
    owner.client.setblocking(False)
    flood = frame({"id": None, **ASK}) * 100_000
    sent = owner.client.send(flood)
    owner.run_until(lambda: len(owner.calls) == 1)
    owner.run_until(lambda: not sendable(owner.client, flood))
    assert owner.connection._codec.buffered_bytes < 2 * READ_AHEAD_BYTES
    assert sent


def test_a_client_that_hangs_up_while_it_waits_is_noticed(make_owner):
    owner = make_owner(max_in_flight_per_connection=1)
    owner.client.sendall(frame(ASK) * 3)
    owner.run_until(lambda: len(owner.calls) == 1)
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))


def test_a_client_that_does_not_read_is_not_read_from(make_owner):
    owner = make_owner(max_output_buffer_bytes=1000)
    owner.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    owner.client.setblocking(False)
    bad = frame(b"x")
    while sendable(owner.client, bad * 1000):
        owner.run_until(lambda: True)
    bound = 1000 + MESSAGES_A_TURN * 200
    assert 1000 < owner.connection._stream.output_bytes <= bound
    owner.client.settimeout(20)
    owner.client.shutdown(socket.SHUT_WR)
    received = []

    def drained():
        received.append(len(owner.client.recv(1 << 20)))
        return bool(owner.ended) or received[-1] == 0

    owner.run_until(drained)
    assert sum(received) > bound


def test_many_small_frames_do_not_hold_up_the_loop(make_owner):
    owner = make_owner(max_in_flight_per_connection=10_000, max_output_buffer_bytes=10_000_000)
    owner.client.sendall(frame(ASK) * 1000)
    a_round = []
    owner.loop.after_each = lambda: (a_round.append(len(owner.calls)), owner.loop.stop())
    while len(owner.calls) < 1000:
        owner.loop.run()
    steps = [b - a for a, b in itertools.pairwise([0, *a_round])]
    assert max(steps) <= 2 * MESSAGES_A_TURN


@pytest.mark.parametrize("length", [1001, 2**32 - 1])
def test_a_refused_length_ends_the_stream_after_what_came_before(make_owner, length):
    owner = make_owner()
    owner.client.sendall(frame({"id": 1, **ASK}) + length.to_bytes(4, "big") + b"junk" * 50)
    assert_code(owner, None, "frame_too_large")
    owner.client.sendall(b"more junk")
    owner.answer(owner.calls[0])
    assert receive(owner.client)["id"] == 1
    assert receive(owner.client) is None
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))


def test_a_frame_may_come_a_byte_at_a_time(make_owner):
    owner = make_owner()
    for byte in frame({"id": 1, **ASK}):
        owner.client.sendall(bytes([byte]))
        owner.run_until(lambda: True)
    owner.run_until(lambda: len(owner.calls) == 1)


def test_an_end_inside_a_frame_is_an_end(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(ASK)[:-1])
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))
    assert owner.calls == []


@pytest.mark.parametrize("kind", ["health", "stats"])
def test_a_query_is_answered_beside_requests_in_flight(make_owner, kind):
    owner = make_owner(max_in_flight_per_connection=2)
    owner.client.sendall(frame({"id": 1, **ASK}) + frame({"id": 1, "type": kind}))
    owner.run_until(lambda: sent_to(owner.client))
    assert receive(owner.client) == {"id": 1, kind: {"asked": kind}}
    assert len(owner.calls) == 1
    assert owner.outcomes == {}


def test_a_turn_ends_with_a_query(make_owner):
    owner = make_owner()
    owner.client.sendall(frame({"type": "stats"}) * 50)
    a_round = []
    owner.loop.after_each = lambda: (a_round.append(len(owner.queries)), owner.loop.stop())
    while len(owner.queries) < 50:
        owner.loop.run()
    assert max(b - a for a, b in itertools.pairwise([0, *a_round])) <= 2


def test_every_frame_has_one_outcome(make_owner):
    owner = make_owner()
    owner.client.sendall(frame({"id": 1, **ASK}) * 2 + frame(b"junk") + frame({"id": 2, **ASK}))
    owner.run_until(lambda: len(owner.calls) == 2)
    owner.answer(owner.calls[0])
    owner.answer(owner.calls[0])
    owner.calls[1].fail(DeadlineExceededError())
    owner.refuse = QueueFullError()
    owner.client.sendall(frame(ASK) + (1001).to_bytes(4, "big"))
    owner.run_until(lambda: len(owner.outcomes) == 6)
    assert owner.outcomes == {
        "duplicate_id": 1,
        "invalid_frame": 1,
        "answered": 1,
        "deadline_exceeded": 1,
        "queue_full": 1,
        "frame_too_large": 1,
    }


def test_a_turn_ends_with_a_costly_message(make_owner):
    owner = make_owner(requests=RequestLimits(max_frame_bytes=40_000, max_text_chars=40_000))
    long = frame({**ASK, "text": "a" * (COSTLY_MESSAGE_BYTES + 1)})
    owner.client.sendall(long * 3)
    a_round = []
    owner.loop.after_each = lambda: (a_round.append(len(owner.calls)), owner.loop.stop())
    while len(owner.calls) < 3:
        owner.loop.run()
    assert max(b - a for a, b in itertools.pairwise([0, *a_round])) <= 2


class FakeStream:
    """A stream without a socket."""

    is_open, output_bytes, waiting_since_s = True, 0, None

    def __init__(self):
        self.written = []

    def start(self, on_data, on_end, on_flushed):
        self.deliver = on_data

    def write(self, data):
        self.written.append(data)

    def set_reading(self, reading):
        pass

    def close(self):
        pass


class FakeCodec:
    """A protocol whose every byte is a question."""

    last_message_bytes = buffered_bytes = 0
    waits_for, has_ended = Wait.BYTES, False

    def feed(self, data):
        self.messages = [Request(chr(byte), "a text") for byte in data]

    def next_message(self):
        return self.messages.pop(0) if self.messages else None

    def trace_of(self, request):
        return NO_TRACE

    def encode_answers(self, request, answers, timings, source):
        return request.question + answers[0].answer


def test_a_connection_needs_no_socket_and_no_frames():
    stream = FakeStream()
    owner = Owner(stream=stream, codec=FakeCodec())
    stream.deliver(b"ab")
    owner.answer(owner.calls[1], "!")
    owner.answer(owner.calls[0], "?")
    assert stream.written == ["b!", "a?"]


def test_what_has_been_read_and_waits_for_room_keeps_it_busy():
    """A drain does not end before it is answered."""
    stream, codec = FakeStream(), FakeCodec()
    owner = Owner(stream=stream, codec=codec)
    stream.output_bytes = 10_001
    codec.buffered_bytes = 2
    stream.deliver(b"ab")
    assert (owner.calls, owner.connection.is_busy) == ([], True)
    stream.output_bytes = 1  # its turn comes when all is sent
    assert owner.connection.is_busy
    stream.output_bytes = codec.buffered_bytes = 0
    assert not owner.connection.is_busy


def test_an_idle_client_is_closed_and_a_waiting_one_is_not(make_owner):
    owner = make_owner(idle_timeout_ms=50)
    owner.client.sendall(frame(ASK))
    owner.run_until(lambda: bool(owner.calls))
    owner.pass_s(0.1)
    assert owner.ended == []
    owner.answer(owner.calls[0])
    owner.pass_s(0.04)
    assert owner.ended == []
    owner.pass_s(0.02)
    assert owner.ended == [owner.connection]
    assert receive(owner.client)["answer"] == "some"
    assert receive(owner.client) is None


def test_a_client_that_asks_now_and_then_stays(make_owner):
    owner = make_owner(idle_timeout_ms=50)
    for number in range(1, 4):
        owner.client.sendall(frame(ASK))
        owner.run_until(lambda number=number: len(owner.calls) == number)
        owner.answer(owner.calls[-1])
        assert receive(owner.client)["answer"] == "some"
        owner.pass_s(0.04)
    assert owner.ended == []
    owner.pass_s(0.02)
    assert owner.ended == [owner.connection]


def test_an_old_connection_is_closed_when_nothing_is_in_flight(make_owner):
    owner = make_owner(max_connection_age_s=0.05)
    owner.client.sendall(frame({"id": 1, **ASK}) + frame({"id": 2, **ASK}))
    owner.run_until(lambda: len(owner.calls) == 2)
    owner.pass_s(0.06)
    owner.answer(owner.calls[0])
    assert receive(owner.client)["id"] == 1
    assert not sent_to(owner.client)
    owner.answer(owner.calls[1])
    assert receive(owner.client)["id"] == 2
    assert receive(owner.client) is None


def test_an_old_connection_with_nothing_to_do_is_closed(make_owner):
    owner = make_owner(max_connection_age_s=0.05)
    owner.pass_s(0.04)
    assert not sent_to(owner.client)
    owner.pass_s(0.02)
    assert receive(owner.client) is None


def test_a_request_that_has_begun_keeps_an_old_connection(make_owner):
    owner = make_owner(max_connection_age_s=0.05)
    message = frame({"id": 1, **ASK})
    owner.client.sendall(message[:9])
    owner.run_until(lambda: owner.connection._codec.buffered_bytes == 9)
    owner.pass_s(0.06)
    assert not sent_to(owner.client)
    owner.client.sendall(message[9:])
    owner.run_until(lambda: bool(owner.calls))
    owner.answer(owner.calls[0])
    assert receive(owner.client)["id"] == 1
    assert receive(owner.client) is None


def test_a_frame_that_does_not_end_in_time_is_told_and_closed(make_owner):
    owner = make_owner(frame_timeout_ms=50)
    owner.client.sendall(frame({"id": 1, **ASK}) + frame(ASK)[:-1])
    owner.run_until(lambda: bool(owner.calls))
    owner.pass_s(0.04)
    assert not sent_to(owner.client)
    owner.pass_s(0.02)
    assert_code(owner, None, "frame_timeout")
    assert owner.ended == []
    owner.answer(owner.calls[0])
    assert receive(owner.client)["id"] == 1
    assert receive(owner.client) is None


def test_bytes_that_trickle_do_not_gain_a_frame_time(make_owner):
    owner = make_owner(frame_timeout_ms=100)
    for count, byte in enumerate(frame({"id": 1, **ASK})[:9], 1):
        owner.client.send(bytes([byte]))
        owner.run_until(lambda count=count: owner.connection._codec.buffered_bytes == count)
        owner.pass_s(0.011)
    assert not sent_to(owner.client)
    owner.pass_s(0.002)
    assert_code(owner, None, "frame_timeout")
    assert owner.calls == []


def test_a_client_that_leaves_its_answers_unread_is_dropped(make_owner):
    owner = make_owner(client_stall_timeout_ms=50, max_output_buffer_bytes=1000)
    owner.client.setblocking(False)
    owner.run_until(lambda: not sendable(owner.client, frame(b"x") * 1000))
    owner.pass_s(0.04)
    assert owner.ended == []
    owner.pass_s(0.02)
    assert owner.ended == [owner.connection]


def assert_code(owner, request_id, code):
    received = []

    def arrived():
        owner.client.setblocking(False)
        try:
            if owner.client.recv(1, socket.MSG_PEEK):
                owner.client.settimeout(20)
                received.append(receive(owner.client))
        except BlockingIOError:
            pass
        owner.client.settimeout(20)
        return bool(received)

    owner.run_until(arrived)
    assert (received[0]["id"], received[0]["error"]["code"]) == (request_id, code)


def sendable(sock, data):
    try:
        return sock.send(data) > 0
    except BlockingIOError:
        return False


def sent_to(sock):
    """Whether something has come that can be received."""
    return bool(select.select([sock], [], [], 0)[0])
