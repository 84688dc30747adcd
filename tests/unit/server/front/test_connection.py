"""One client's connection, with a scripted owner in place of the server."""

import itertools
import math
import select
import socket

import pytest

from harness.frames import frame, receive
from qa_service.errors import DeadlineExceededError, QueueFullError
from qa_service.net.stream import Stream
from qa_service.server.front.connection import (
    COSTLY_MESSAGE_BYTES,
    MESSAGES_A_TURN,
    READ_AHEAD_BYTES,
)
from qa_service.server.front.timeouts import CLOSING_GRACE_S
from qa_service.wire.codec import Wait
from qa_service.wire.frame_codec import FrameCodec
from qa_service.wire.messages import Request
from qa_service.wire.traces import NO_TRACE
from tests.support import FakeTimeLoop, run_until
from tests.unit.server.front.connections import ScriptedStream, Surroundings

ASK = {"question": "q?", "text": "some text"}
MAX_FRAME_BYTES = 1000


def asks(*ids):
    """A question of each id."""
    return [{"id": i, **ASK} for i in ids]


class Owner(Surroundings):
    """A connection of a real socket and frames; its service refuses when the test says."""

    def __init__(self, *, stream=None, codec=None, max_frame_bytes=MAX_FRAME_BYTES, **limits):
        self.loop = FakeTimeLoop()
        self.refuse, self.queries = None, []
        ours, self.client = socket.socketpair()
        self.client.settimeout(20)
        limits = {"max_output_buffer_bytes": 10_000, "request_timeout_ms": 0, **limits}
        chosen = codec or FrameCodec(max_frame_bytes, max_frame_bytes)
        stream = stream or Stream(self.loop, ours)
        super().__init__(stream, lambda _: chosen, self.loop, {}, **limits)

    @property
    def outcomes(self):
        return {code: n for code, n in self.metrics.requests_total.items() if n}

    def submit(self, call):
        if self.refuse:
            call.fail(self.refuse)
        else:
            super().submit(call)

    def report(self, query, client):
        self.queries.append(query)
        return {"asked": query.type}

    def answer(self, call, text="some"):
        """Answers a call; the reply is written at the latest by the end of the round."""
        self.resolve(call, text)
        self.run_until(lambda: True)

    def answered(self, call):
        """The reply that the client has once a call is answered."""
        self.answer(call)
        return receive(self.client)

    def send(self, *messages, calls=None):
        """Sends frames, and waits until this many calls were submitted in all."""
        self.client.sendall(b"".join(map(frame, messages)))
        if calls is not None:
            self.run_until(lambda: len(self.calls) == calls)

    def most_in_a_round(self, counted, total):
        """Runs the loop until this many are counted; the most by which a round added to them."""
        found = [0]
        self.loop.after_each = lambda: (found.append(len(counted)), self.loop.stop())
        while len(counted) < total:
            self.loop.run()
        return max(after - before for before, after in itertools.pairwise(found))

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
    owner.send(*asks(0, 1, 2), calls=3)
    for i in (2, 0, 1):
        assert owner.answered(owner.calls[i])["id"] == i
    assert owner.connection.calls.in_flight == set()


def test_a_clients_priorities_weigh_more_and_share_its_one_flow(make_owner):
    owner = make_owner(max_priority=5)
    owner.send(*({"priority": n, **ASK} for n in (0, 1, 9)), calls=3)
    assert [call.scope.weight for call in owner.calls] == [1.0, 2.0, 6.0]
    assert {call.scope.flow for call in owner.calls} == {"the client"}


@pytest.mark.parametrize(
    ("servers_ms", "clients_ms", "timeout_s"),
    [(30_000, None, 30.0), (30_000, 500, 0.5), (30_000, 30_000, 30.0), (30_000, 60_000, 30.0),
     (0, 500, 0.5), (0, None, math.inf)],
)  # fmt: skip
def test_a_request_may_wait_for_the_shorter_of_its_own_and_the_servers_timeout(
    make_owner, servers_ms, clients_ms, timeout_s
):
    owner = make_owner(request_timeout_ms=servers_ms)
    owner.loop.clock.pass_s(7.0)
    owner.send({"id": 1, **ASK, "timeout_ms": clients_ms}, calls=1)
    scope = owner.calls[0].scope
    assert scope.deadline_s - scope.arrived_s == pytest.approx(timeout_s)


def test_a_disconnect_cancels_the_clients_requests(make_owner):
    owner = make_owner()
    owner.send(ASK, ASK, calls=2)
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))
    assert set(owner.cancelled) == set(owner.calls)
    assert all(call.is_settled for call in owner.calls)
    assert owner.outcomes == {"abandoned": 2}


def test_an_id_in_flight_is_refused_and_free_again_once_answered(make_owner):
    owner = make_owner()
    owner.send(*asks(7, 7))
    assert_code(owner, 7, "duplicate_id")
    assert owner.answered(owner.calls[0])["answer"] == "some"
    owner.send(*asks(7), calls=2)


CANCEL = {"id": 1, "type": "cancel"}


def test_a_cancelled_request_gets_its_error_at_once_and_the_others_go_on(make_owner):
    owner = make_owner()
    owner.send(*asks(0, 1, 2), CANCEL)
    owner.run_until(lambda: len(owner.connection.calls.in_flight) == 2)
    told = receive(owner.client)
    error = told["error"]
    assert (told["id"], error["code"], error["retryable"]) == (1, "cancelled", False)
    for call in owner.calls:
        owner.answer(call)  # that of the cancelled one comes too late
    assert [receive(owner.client)["id"] for _ in range(2)] == [0, 2]
    owner.connection.close()
    assert receive(owner.client) is None
    assert owner.outcomes == {"answered": 2, "cancelled": 1}


def test_a_number_and_a_string_of_its_digits_are_two_ids(make_owner):
    owner = make_owner()
    owner.send(*asks(7, "7"), {"id": "7", "type": "cancel"})
    owner.run_until(lambda: len(owner.connection.calls.in_flight) == 1)
    assert receive(owner.client)["id"] == "7"
    [left] = owner.connection.calls.in_flight
    assert left.request.id_json == b"7"


def test_an_id_that_was_cancelled_is_free_again(make_owner):
    owner = make_owner()
    owner.send(*asks(1), CANCEL, *asks(1), calls=2)
    assert owner.answered(owner.calls[1])["error"]["code"] == "cancelled"
    assert receive(owner.client)["answer"] == "some"


def test_cancelling_an_id_not_in_flight_is_ignored(make_owner):
    owner = make_owner()
    owner.send(CANCEL, *asks(1), calls=1)
    owner.answer(owner.calls[0])
    owner.send(CANCEL, {"id": 2, "type": "health"})
    assert receive(owner.client)["answer"] == "some"
    owner.run_until(lambda: bool(owner.queries))
    assert receive(owner.client)["id"] == 2
    assert owner.outcomes == {"answered": 1}


def test_requests_without_an_id_are_cancelled_together(make_owner):
    owner = make_owner()
    owner.send(ASK, ASK, *asks(1), {"type": "cancel"})
    owner.run_until(lambda: len(owner.connection.calls.in_flight) == 1)
    codes = [receive(owner.client)["error"]["code"] for _ in range(2)]
    assert codes == ["cancelled", "cancelled"]
    [left] = owner.connection.calls.in_flight
    assert left.request.id_json == b"1"


def test_a_client_over_its_requests_in_flight_can_cancel_one(make_owner):
    owner = make_owner(max_in_flight_per_connection=2)
    owner.send(*asks(0, 1), calls=2)
    owner.send(CANCEL, *asks(2), calls=3)
    assert receive(owner.client)["error"]["code"] == "cancelled"


def test_a_request_that_waits_for_room_is_before_the_cancel_frame_behind_it(make_owner):
    owner = make_owner(max_in_flight_per_connection=1)
    owner.send(*asks(0, 1), CANCEL, *asks(2), calls=1)
    owner.answer(owner.calls[0])
    owner.run_until(lambda: len(owner.calls) == 3)
    assert [call.is_settled for call in owner.calls] == [True, True, False]


def test_a_refused_request_is_answered_and_its_id_is_free(make_owner):
    owner = make_owner()
    owner.refuse = QueueFullError()
    owner.send(*asks("a"))
    assert_code(owner, "a", "queue_full")
    owner.refuse = None
    owner.send(*asks("a"), calls=1)


def test_a_client_over_its_requests_in_flight_waits(make_owner):
    owner = make_owner(max_in_flight_per_connection=2)
    owner.send(*asks(*range(5)), calls=2)
    for taken in (3, 4, 5):
        owner.answer(owner.calls[taken - 3])
        owner.run_until(lambda taken=taken: len(owner.calls) == taken)
    assert [p.request.id_json for p in owner.calls] == [b"0", b"1", b"2", b"3", b"4"]


def test_from_a_client_over_its_requests_in_flight_little_is_read(make_owner):
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
    owner.send(ASK, ASK, ASK, calls=1)
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
    owner.send(*[ASK] * 1000)
    assert owner.most_in_a_round(owner.calls, 1000) <= 2 * MESSAGES_A_TURN


@pytest.mark.parametrize("length", [1001, 2**32 - 1])
def test_a_refused_length_ends_the_stream_after_what_came_before(make_owner, length):
    owner = make_owner()
    owner.client.sendall(frame({"id": 1, **ASK}) + length.to_bytes(4, "big") + b"junk" * 50)
    assert_code(owner, None, "frame_too_large")
    owner.client.sendall(b"more junk")
    assert owner.answered(owner.calls[0])["id"] == 1
    assert receive(owner.client) is None
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))


def test_end_of_file_inside_a_frame_closes_the_connection(make_owner):
    owner = make_owner()
    owner.client.sendall(frame(ASK)[:-1])
    owner.client.close()
    owner.run_until(lambda: bool(owner.ended))
    assert owner.calls == []


@pytest.mark.parametrize("kind", ["health", "stats"])
def test_a_query_is_answered_while_requests_are_in_flight(make_owner, kind):
    owner = make_owner(max_in_flight_per_connection=2)
    owner.send(*asks(1), {"id": 1, "type": kind})
    owner.run_until(lambda: sent_to(owner.client))
    assert receive(owner.client) == {"id": 1, kind: {"asked": kind}}
    assert len(owner.calls) == 1
    assert owner.outcomes == {}


def test_a_turn_ends_with_a_query(make_owner):
    owner = make_owner()
    owner.send(*[{"type": "stats"}] * 50)
    assert owner.most_in_a_round(owner.queries, 50) <= 2


def test_every_frame_has_one_outcome(make_owner):
    owner = make_owner()
    owner.send(*asks(1, 1), b"junk", *asks(2), calls=2)
    owner.answer(owner.calls[0])
    owner.answer(owner.calls[0])
    owner.calls[1].fail(DeadlineExceededError())
    owner.refuse = QueueFullError()
    owner.client.sendall(frame(ASK) + (1001).to_bytes(4, "big"))
    owner.run_until(lambda: len(owner.outcomes) == 6)
    codes = ("duplicate_id", "invalid_frame", "answered", "deadline_exceeded", "queue_full",
             "frame_too_large")  # fmt: skip
    assert owner.outcomes == dict.fromkeys(codes, 1)


def test_a_turn_ends_with_a_costly_message(make_owner):
    owner = make_owner(max_frame_bytes=40_000)
    owner.send(*[{**ASK, "text": "a" * (COSTLY_MESSAGE_BYTES + 1)}] * 3)
    assert owner.most_in_a_round(owner.calls, 3) <= 2


class FakeCodec:
    """A protocol whose every byte is a question."""

    last_message_bytes = 0
    waits_for, has_ended = Wait.BYTES, False

    def __init__(self):
        self.messages = []

    @property
    def buffered_bytes(self):
        return len(self.messages)

    def feed(self, data):
        self.messages = [Request(chr(byte), "a text") for byte in data]

    def next_message(self):
        return self.messages.pop(0) if self.messages else None

    def trace_of(self, request):
        return NO_TRACE

    def encode_answers(self, request, answered):
        return (request.question + answered.answers[0].answer).encode()


def test_a_connection_needs_no_socket_and_no_frames():
    stream = ScriptedStream()
    owner = Owner(stream=stream, codec=FakeCodec())
    stream.deliver(b"ab")
    owner.answer(owner.calls[1], "!")
    owner.answer(owner.calls[0], "?")
    assert stream.written == b"b!a?"


def test_a_message_that_waits_for_room_keeps_the_connection_busy():
    """A drain does not end before it is answered."""
    stream, codec = ScriptedStream(), FakeCodec()
    owner = Owner(stream=stream, codec=codec)
    stream.output_bytes = 10_001
    stream.deliver(b"ab")
    assert (owner.calls, owner.connection.is_busy) == ([], True)
    stream.output_bytes = 1  # its turn comes when all is sent
    assert owner.connection.is_busy
    stream.output_bytes, codec.messages = 0, []
    assert not owner.connection.is_busy


def test_answers_that_end_in_one_round_are_one_write(make_owner):
    owner = make_owner()
    owner.send(*asks(1, 2, 3), calls=3)
    for call in owner.calls[:2]:
        owner.resolve(call, "some")
    assert not sent_to(owner.client)
    owner.run_until(lambda: True)
    assert [receive(owner.client)["id"] for _ in range(2)] == [1, 2]
    owner.resolve(owner.calls[2], "some")
    assert receive(owner.client)["id"] == 3


def test_a_client_that_leaves_one_of_its_answers_unread_is_closed(make_owner):
    owner = make_owner(client_timeout_ms=50)
    owner.send(*asks(1, 2), calls=2)
    owner.answer(owner.calls[0], "long " * 1_000_000)
    owner.pass_s(0.04)
    assert owner.ended == []
    owner.pass_s(0.02)
    assert owner.ended == [owner.connection]
    assert owner.cancelled == [owner.calls[1]]


def test_an_idle_client_is_closed_and_a_waiting_one_is_not(make_owner):
    owner = make_owner(idle_timeout_ms=50)
    owner.send(ASK, calls=1)
    owner.pass_s(0.1)
    assert owner.ended == []
    owner.answer(owner.calls[0])
    owner.pass_s(0.04)
    assert owner.ended == []
    owner.pass_s(0.02)
    assert owner.ended == [owner.connection]
    assert receive(owner.client)["answer"] == "some"
    assert receive(owner.client) is None


def test_a_client_that_asks_now_and_then_is_not_closed(make_owner):
    owner = make_owner(idle_timeout_ms=50)
    for number in range(1, 4):
        owner.send(ASK, calls=number)
        assert owner.answered(owner.calls[-1])["answer"] == "some"
        owner.pass_s(0.04)
    assert owner.ended == []
    owner.pass_s(0.02)
    assert owner.ended == [owner.connection]


def test_a_client_is_idle_once_its_message_has_come_in_pieces(make_owner):
    owner = make_owner(idle_timeout_ms=50, client_timeout_ms=1000)
    query = frame({"type": "health"})
    owner.client.sendall(query[:5])
    owner.run_until(lambda: True)
    owner.pass_s(0.06)
    assert owner.ended == []
    owner.client.sendall(query[5:])
    owner.run_until(lambda: owner.queries)
    owner.pass_s(0.06)
    assert owner.ended == [owner.connection]


def test_a_client_is_idle_once_it_has_read_what_it_left_unread(make_owner):
    owner = make_owner(idle_timeout_ms=50, client_timeout_ms=1000)
    owner.send(ASK, calls=1)
    owner.answer(owner.calls[0], "long " * 1_000_000)
    owner.pass_s(0.06)
    assert owner.ended == []
    owner.run_until(lambda: sent_to(owner.client) and owner.client.recv(1 << 20).endswith(b"}"))
    owner.pass_s(0.06)
    assert owner.ended == [owner.connection]


def test_an_old_connection_is_closed_when_nothing_is_in_flight(make_owner):
    owner = make_owner(max_connection_age_s=0.05)
    owner.send(*asks(1, 2), calls=2)
    owner.pass_s(0.06)
    assert owner.answered(owner.calls[0])["id"] == 1
    owner.pass_s(2 * CLOSING_GRACE_S)
    assert not sent_to(owner.client)
    assert owner.answered(owner.calls[1])["id"] == 2
    assert receive(owner.client) is None


@pytest.mark.parametrize("is_old", [True, False])
def test_each_reply_says_that_the_connection_is_about_to_be_closed(make_owner, is_old):
    owner = make_owner(max_connection_age_s=0.05)
    owner.send(*asks(1, 2, 3), calls=3)
    assert "closing" not in owner.answered(owner.calls[0])
    owner.pass_s(0.06) if is_old else owner.connection.close_when_idle(math.inf)
    owner.answer(owner.calls[1])
    owner.calls[2].fail(QueueFullError())
    assert [receive(owner.client)["closing"] for _ in range(2)] == [True, True]


def test_requests_sent_before_the_close_notice_arrives_are_answered(make_owner):
    owner = make_owner()
    owner.send(*asks(1), calls=1)
    owner.connection.close_when_idle(math.inf)
    owner.answer(owner.calls[0])
    owner.send(*asks(2), calls=2)
    owner.answer(owner.calls[1])
    assert [receive(owner.client)["id"] for _ in range(2)] == [1, 2]
    owner.pass_s(0.9 * CLOSING_GRACE_S)
    assert not sent_to(owner.client)
    owner.pass_s(0.2 * CLOSING_GRACE_S)
    assert receive(owner.client) is None


def test_a_client_that_ignores_the_close_notice_is_closed_after_a_later_answer(make_owner):
    owner = make_owner()
    owner.connection.close_when_idle(math.inf)
    for number in (1, 2, 3):
        owner.send(*asks(number), calls=number)
        owner.pass_s(0.6 * CLOSING_GRACE_S)
        assert owner.answered(owner.calls[-1])["id"] == number
    assert receive(owner.client) is None


def test_an_old_idle_connection_is_closed(make_owner):
    owner = make_owner(max_connection_age_s=0.05)
    owner.pass_s(0.04)
    assert not sent_to(owner.client)
    owner.pass_s(0.02)
    assert receive(owner.client) is None


def test_a_partly_received_request_keeps_an_old_connection_open(make_owner):
    owner = make_owner(max_connection_age_s=0.05)
    message = frame({"id": 1, **ASK})
    owner.client.sendall(message[:9])
    owner.run_until(lambda: owner.connection._codec.buffered_bytes == 9)
    owner.pass_s(0.06)
    assert not sent_to(owner.client)
    owner.client.sendall(message[9:])
    owner.run_until(lambda: bool(owner.calls))
    assert owner.answered(owner.calls[0])["id"] == 1
    owner.pass_s(1.1 * CLOSING_GRACE_S)
    assert receive(owner.client) is None


def test_a_frame_past_its_timeout_gets_an_error_and_a_close(make_owner):
    owner = make_owner(client_timeout_ms=50)
    owner.client.sendall(frame({"id": 1, **ASK}) + frame(ASK)[:-1])
    owner.run_until(lambda: bool(owner.calls))
    owner.pass_s(0.04)
    assert not sent_to(owner.client)
    owner.pass_s(0.02)
    assert_code(owner, None, "frame_timeout")
    assert owner.ended == []
    assert owner.answered(owner.calls[0])["id"] == 1
    assert receive(owner.client) is None


def test_trickling_bytes_do_not_extend_the_frame_timeout(make_owner):
    owner = make_owner(client_timeout_ms=100)
    for count, byte in enumerate(frame({"id": 1, **ASK})[:9], 1):
        owner.client.send(bytes([byte]))
        owner.run_until(lambda count=count: owner.connection._codec.buffered_bytes == count)
        owner.pass_s(0.011)
    assert not sent_to(owner.client)
    owner.pass_s(0.002)
    assert_code(owner, None, "frame_timeout")
    assert owner.calls == []


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
