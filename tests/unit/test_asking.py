"""The clients' core without sockets: bytes and the time in, bytes and settled questions out."""

import itertools
import math
import random
import struct

import pytest

from harness.frames import PREFIX, frame, frames_in
from qa_service.client import (
    Asking,
    ConnectionLostError,
    Conversation,
    ProtocolError,
    QaClientError,
    QaServerError,
    Question,
    RequestTimeoutError,
    Servers,
    ServerUnreachableError,
    Terms,
    encode_frame,
    read_answer,
)
from tests.scripted_peer import answer_to, error_to

TIMEOUT_S = 20.0
MAX_BYTES = 1 << 12
LOST = ConnectionLostError("gone")


def result_of(result):
    return result.code if isinstance(result, QaClientError) else result.answer


class Client:
    """Questions to servers whose connections and time the test makes.

    Attributes:
        conversations: All there were, in the order of their opening.
        results: By the number of the question: an answer, or an error's code.
    """

    def __init__(
        self, num_servers=1, *, token: str | None = None, with_hedging=False, opens_at_once=True
    ):
        self.now_s = 100.0
        terms = Terms(TIMEOUT_S, MAX_BYTES, None, token)
        hosts = [("127.0.0.1", 1 + number) for number in range(num_servers)]
        self.servers = Servers(hosts, terms, with_hedging)
        self.servers.look_up(self.now_s)
        self.asking = Asking(self.servers, self._connect)
        self.conversations: list[Conversation] = []
        self.questions: list[Question] = []
        self.results: dict[int, str] = {}
        self._opens_at_once = opens_at_once

    @property
    def known(self):
        return list(self.servers._known.values())

    def _connect(self, server):
        self.conversations.append(Conversation(server, self.servers.terms, self.now_s))
        if self._opens_at_once:
            self.conversations[-1].begin()
        return self.conversations[-1]

    def ask(self, number=1, text="t"):
        for _ in range(number):
            index = len(self.questions)
            fields = {"id": index, "question": f"q{index}", "text": f"{text}{index}"}
            self.questions.append(Question(index, encode_frame(fields), read_answer, index))
            self.asking.ask(self.questions[-1])
        self.advance()

    def advance(self, seconds=0.0):
        self.now_s += seconds
        for conversation in self.conversations:
            if settled := conversation.check_time(self.now_s):
                self.asking.take(conversation, settled, self.now_s)
        self.asking.advance(self.now_s)
        for question, result in self.asking.settled:
            assert question.about not in self.results, "a question is settled once"
            self.results[question.about] = result_of(result)
        self.asking.settled.clear()

    def receive(self, conversation, *replies):
        settled = conversation.receive(b"".join(map(frame, replies)), self.now_s)
        self.asking.take(conversation, settled, self.now_s)
        self.advance()

    def lose(self, conversation, error: QaClientError = LOST):
        self.asking.take(conversation, conversation.end(error), self.now_s)
        self.advance()

    def at(self, conversation):
        """The numbers of the questions in flight there."""
        return sorted(conversation.in_flight)

    def answer(self, conversation, number, **fields):
        request = {"id": number, "text": f"t{number}"}
        self.receive(conversation, answer_to(request, **fields))


def conversation_of(number, **options):
    """A client whose one conversation has questions, which it has sent."""
    client = Client(**options)
    client.ask(number)
    [conversation] = client.conversations
    conversation.bytes_to_send()
    return client, conversation


class TestConversation:
    def recorded(self, pieces):
        """What a conversation of all kinds of replies comes to, received in these pieces."""
        client, conversation = conversation_of(6, token="secret")
        client.asking.withdraw(client.questions[2])  # not sent yet
        outcomes, was_withdrawn = [], False
        for piece in pieces:
            settled = conversation.receive(piece, client.now_s)
            if conversation.is_open and not was_withdrawn:
                assert [its["id"] for its in frames_in(conversation.bytes_to_send())] == [
                    *(0, 1, 3, 4, 5)
                ]
                client.asking.withdraw(client.questions[3])
                [cancel] = frames_in(conversation.bytes_to_send())
                assert cancel == {"type": "cancel", "id": 3}
                was_withdrawn = True
            outcomes += [(asked.id, result_of(its), was_lost) for asked, its, was_lost in settled]
        return outcomes, conversation.takes_more, conversation.is_over

    def test_every_cut_of_a_recorded_conversation_gives_the_same(self):
        requests = [{"id": number, "text": f"t{number} ü"} for number in range(6)]
        accepted = frame({"id": None, "auth": "ok"})
        late = [
            answer_to(requests[4]),
            error_to(3, "cancelled"),
            error_to(0, "text_too_long", retryable=False),
            answer_to(requests[5], closing=True),
            answer_to(requests[1], closing=True),
        ]
        rest = b"".join(map(frame, late))
        outcomes = [(4, "t4"), (0, "text_too_long"), (5, "t5"), (1, "t1")]
        expected = ([(*outcome, False) for outcome in outcomes], False, True)
        assert self.recorded([accepted, rest]) == expected
        assert self.recorded([bytes([byte]) for byte in accepted + rest]) == expected
        for cut in range(1, len(rest)):
            assert self.recorded([accepted, rest[:cut], rest[cut:]]) == expected

    @pytest.mark.parametrize(
        "reply",
        [
            b"\xff\xff\xff\xff",
            struct.pack(">I", MAX_BYTES + 1),
            frame(b""),
            frame(b"garbage"),
            frame(b"\xff\xfe"),
            frame(b"[" * 4000),
            frame([1]),
            frame({}),
            frame({"id": 1}),
            frame({"id": 1, "answer": "t", "score": "high", "start": 0, "end": 1}),
            frame({"id": 1, "answer": "t", "score": 1, "start": 0}),
            frame({"id": 1, "answer": None, "score": 1, "start": None, "end": None}),
            frame({"id": 1, "error": "no"}),
            frame({"id": 1, "error": {"code": "no"}}),
            frame({"id": None, "error": {"code": "no"}}),
            frame({"id": 99, "answer": "t", "score": 1, "start": 0, "end": 1}),
            frame({"id": [1], "answer": "t", "score": 1, "start": 0, "end": 1}),
            frame({"id": None, "answer": "t", "score": 1, "start": 0, "end": 1}),
            frame(answer_to({"id": 1, "text": "t"}, answers=7)),
            frame(answer_to({"id": 1, "text": "t"}, answers=[{}])),
            frame(answer_to({"id": 1, "text": "t"}, timings_ms=7)),
            frame(answer_to({"id": 1, "text": "t"}, passage={"document": "a.md"})),
            frame(answer_to({"id": 1, "text": "t"}, passages={})),
            frame(answer_to({"id": 1, "text": "t"}, places=[{"start": 1}])),
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ],
    )
    def test_a_malformed_reply_ends_it_and_what_came_before_counts(self, reply):
        _, conversation = conversation_of(3)
        before = frame(answer_to({"id": 2, "text": "t2"}))
        [right, *lost] = conversation.receive(before + reply, 101.0)
        asked, answer, was_lost = right
        assert (asked.id, answer.answer, was_lost) == (2, "t2", False)
        assert [(its.id, type(error), was_lost) for its, error, was_lost in lost] == [
            *((number, ProtocolError, True) for number in (0, 1))
        ]
        assert conversation.is_over

    def test_a_reply_of_the_largest_size_is_read(self):
        _, conversation = conversation_of(1)
        reply = answer_to({"id": 0, "text": "t0"}, padding="x" * MAX_BYTES)
        excess = len(frame(reply)) - PREFIX.size - MAX_BYTES
        reply["padding"] = reply["padding"][excess:]
        [(_, answer, _)] = conversation.receive(frame(reply), 101.0)
        assert answer.answer == "t0"

    @pytest.mark.parametrize(
        ("reply", "code"),
        [(error_to(None, "unauthorized"), "unauthorized"), ({"auth": "what"}, "protocol_error")],
    )
    def test_a_token_that_is_not_accepted_fails_everything(self, reply, code):
        client, conversation = conversation_of(2, token="wrong")
        client.receive(conversation, reply)
        assert client.results == {0: code, 1: code}

    def test_an_error_without_an_id_ends_it_when_the_rest_is_answered(self):
        """It is taken for the one that stays without an answer."""
        client, conversation = conversation_of(3)
        client.receive(conversation, error_to(None, "invalid_frame"))
        assert not (conversation.takes_more or conversation.is_over)
        client.answer(conversation, 2)
        assert not conversation.is_over
        client.answer(conversation, 0)
        assert conversation.is_over
        assert client.results == {0: "t0", 1: "invalid_frame", 2: "t2"}

    def test_a_frame_that_is_too_large_costs_only_itself(self):
        client = Client()
        client.ask(2)
        client.ask(1, text="long" * 99)
        client.ask(2)
        [first] = client.conversations
        client.answer(first, 0)
        client.receive(first, error_to(None, "frame_too_large"))
        client.lose(first)
        assert client.results == {0: "t0", 2: "frame_too_large"}
        second = client.conversations[1]
        assert client.at(second) == [1, 3, 4]
        assert client.asking.num_losses == 0
        assert [len(client.questions[number].tried) for number in (1, 3, 4)] == [1, 1, 1]

    def test_the_end_fails_each_question_with_an_error_of_its_own(self):
        _, conversation = conversation_of(3)
        errors = [error for _, error, _ in conversation.end(LOST)]
        assert [(type(its), its.args) for its in errors] == [(ConnectionLostError, ("gone",))] * 3
        assert len(set(map(id, [LOST, *errors]))) == 4
        assert conversation.end(LOST) == []
        assert (conversation.due_s, conversation.takes_more) == (math.inf, False)

    def test_the_time_is_counted_from_the_last_reply_while_something_is_owed(self):
        client, conversation = conversation_of(2)
        client.advance(TIMEOUT_S - 1)
        client.answer(conversation, 0)
        conversation.receive(b"\0", client.now_s + 5)  # bytes are no reply
        client.advance(TIMEOUT_S - 1)
        assert client.results == {0: "t0"}
        client.advance(1)
        assert client.results == {0: "t0", 1: "client_timeout"}
        assert isinstance(conversation.error, RequestTimeoutError)

    def test_a_silence_in_which_nothing_is_owed_is_none(self):
        client, conversation = conversation_of(1)
        client.answer(conversation, 0)
        client.advance(1000)
        client.ask()
        assert conversation.due_s == client.now_s + TIMEOUT_S
        client.asking.withdraw(client.questions[1])
        assert conversation.due_s == client.now_s + TIMEOUT_S, "its reply is still owed"

    def test_what_does_not_open_in_time_is_unreachable(self):
        client = Client(opens_at_once=False)
        client.ask()
        assert client.conversations[0].due_s == client.now_s + 5
        client.advance(5)
        assert client.results == {0: "server_unreachable"}

    def test_a_request_may_be_withdrawn_in_silence(self):
        _, conversation = conversation_of(2)
        conversation.withdraw(0, in_silence=True)
        assert not conversation.has_bytes
        assert conversation.receive(frame(answer_to({"id": 0, "text": "t0"})), 101.0) == []


class TestAsking:
    def test_a_lost_question_goes_to_each_other_server_and_twice_more(self):
        client = Client(3)
        client.ask()
        for _ in range(5):
            assert client.results == {}
            client.lose(client.conversations[-1])
            client.advance(1.0)
        assert client.results == {0: "connection_lost"}
        assert len({conversation.server for conversation in client.conversations[:3]}) == 3

    @pytest.mark.parametrize("code", ["shutting_down", "unavailable", "queue_full"])
    def test_a_retryable_error_is_asked_of_another_server_at_once(self, code):
        client = Client(2)
        client.ask()
        client.receive(client.conversations[0], error_to(0, code, retry_after_ms=10_000))
        first, second = client.conversations
        assert first.server is not second.server
        assert first.takes_more == (code == "queue_full")
        client.answer(second, 0)
        assert client.results == {0: "t0"}

    def test_other_errors_are_the_result(self):
        client = Client(2)
        client.ask()
        client.receive(client.conversations[0], error_to(0, "worker_crashed", retryable=True))
        assert client.results == {0: "worker_crashed"}
        assert len(client.conversations) == 1

    def test_a_full_server_is_asked_again_when_it_says(self):
        client, conversation = conversation_of(1)
        client.receive(conversation, error_to(0, "queue_full", retry_after_ms=1000))
        due_in_s = client.asking.due_s - client.now_s
        assert 1.0 <= due_in_s <= 1.5
        client.advance(due_in_s - 0.01)
        assert not conversation.has_bytes
        client.advance(0.01)
        assert [its["id"] for its in frames_in(conversation.bytes_to_send())] == [0]
        client.answer(conversation, 0)
        assert client.results == {0: "t0"}

    def test_a_question_is_not_asked_again_past_its_deadline(self):
        client, conversation = conversation_of(1)
        client.receive(conversation, error_to(0, "queue_full", retry_after_ms=100_000))
        assert client.results == {0: "queue_full"}

    def test_a_server_that_leaves_answers_what_it_has(self):
        client, first = conversation_of(2)
        client.answer(first, 1, closing=True)
        client.ask()
        second = client.conversations[1]
        assert (client.at(first), client.at(second)) == ([0], [2])
        assert not first.is_over
        client.answer(first, 0)
        assert first.is_over
        assert client.results == {0: "t0", 1: "t1"}

    @pytest.mark.parametrize(
        ("error", "is_avoided"),
        [
            (LOST, True),
            (ProtocolError("odd"), True),
            (QaServerError("unauthorized", "no"), False),
            (QaServerError("frame_too_large", "no"), False),
            (QaClientError("closed by its holder"), False),
        ],
    )
    def test_a_server_that_loses_questions_is_avoided_for_a_time(self, error, is_avoided):
        client = Client(2)
        client.ask()
        first = client.conversations[0]
        client.lose(first, error)
        assert (first.server.rests_until_s > client.now_s) == is_avoided
        if is_avoided:
            others = [client.servers.choose((), client.now_s) for _ in range(20)]
            assert first.server not in others
            later = [client.servers.choose((), client.now_s + 60) for _ in range(99)]
            assert first.server in later

    def test_an_idle_connection_that_ends_says_nothing_of_its_server(self):
        client, conversation = conversation_of(1)
        client.answer(conversation, 0)
        client.lose(conversation)
        assert client.asking.num_losses == 0

    def test_more_losses_than_servers_without_a_reply_end_a_call(self):
        client, conversation = conversation_of(1)
        check = client.asking.check_losses
        client.lose(conversation)
        check()
        client.advance(1.0)
        client.lose(client.conversations[1])
        errors = []
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="gone") as caught:
                check()
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        check(begun_at=1)
        client.advance(1.0)
        client.answer(client.conversations[2], 0)
        check()

    def test_a_blocked_connection_gets_no_further_question(self):
        client, conversation = conversation_of(1)
        conversation.is_blocked = True
        client.ask(2)
        assert (client.at(conversation), client.asking.num_waiting) == ([0], 2)
        conversation.is_blocked = False
        client.advance()
        assert client.at(conversation) == [0, 1, 2]

    def test_of_two_servers_the_one_with_fewer_questions_in_flight_is_asked(self):
        client = Client(2)
        client.ask(3)
        first, second = sorted(client.conversations, key=lambda its: len(its.in_flight))
        for number in client.at(first):
            client.answer(first, number)
        client.ask(2)
        assert [len(first.in_flight), len(second.in_flight)] == [2, 2]

    def test_without_a_server_the_waiting_fail(self):
        client = Client(0)
        client.ask(2)
        client.asking.fail_waiting(ServerUnreachableError("no address"))
        client.advance()
        assert client.results == {0: "server_unreachable", 1: "server_unreachable"}

    def test_a_server_whose_name_has_gone_answers_what_it_has(self):
        client, conversation = conversation_of(1)
        client.servers._known.clear()
        client.ask()
        assert not (conversation.takes_more or conversation.is_over)
        client.answer(conversation, 0)
        assert conversation.is_over
        assert client.results == {0: "t0"}

    def hedged(self):
        """A client with a question that is slow at one server, and asked of another too."""
        client = Client(2, with_hedging=True)
        for server in client.known:
            server.latencies_s.extend([0.1] * 20)
        client.ask()
        assert client.asking.due_s == pytest.approx(client.now_s + 0.1)
        client.advance(0.2)
        slow, twin = client.conversations
        assert client.at(slow) == client.at(twin) == [0]
        slow.bytes_to_send()
        return client, slow, twin

    def test_the_first_reply_of_two_counts_and_the_other_is_withdrawn(self):
        client, slow, twin = self.hedged()
        client.answer(twin, 0)
        assert client.results == {0: "t0"}
        assert frames_in(slow.bytes_to_send()) == [{"type": "cancel", "id": 0}]
        assert slow.server.rests_until_s > client.now_s, "it has not replied at all"
        client.receive(slow, error_to(0, "cancelled"))
        assert slow.is_free
        assert [server.in_flight for server in client.known] == [0, 0]

    def test_a_twin_that_fails_leaves_the_first(self):
        client, slow, twin = self.hedged()
        client.lose(twin)
        assert client.results == {}
        client.answer(slow, 0)
        assert client.results == {0: "t0"}

    @pytest.mark.parametrize("seed", range(60))
    def test_whatever_happens_each_question_is_settled_once(self, seed):
        """Drawn replies, errors, ends and times; the client itself sees that none comes twice."""
        draw = random.Random(seed)
        client = Client(draw.randint(1, 3), with_hedging=True)
        for server in client.known:
            server.latencies_s.extend([draw.random()] * 20)
        withdrawn = set()
        for turn in itertools.count():
            open_now = [its for its in client.conversations if not its.is_over]
            busy = [its for its in open_now if its.in_flight]
            if turn < 100 and draw.random() < 0.4:
                client.ask(draw.randint(1, 3))
            elif turn > 100 and not client.asking.num_pending:
                break
            elif busy and draw.random() < 0.8:
                conversation = draw.choice(busy)
                number = draw.choice(client.at(conversation))
                codes = ["queue_full", "shutting_down", "text_too_long"]
                match draw.choice(["answer"] * 4 + ["close", "error", "lose", "refuse"]):
                    case "answer":
                        client.answer(conversation, number)
                    case "close":
                        client.answer(conversation, number, closing=True)
                    case "error":
                        client.receive(conversation, error_to(number, draw.choice(codes)))
                    case "refuse":
                        refusal = draw.choice(["frame_too_large", "invalid_frame"])
                        client.receive(conversation, error_to(None, refusal))
                    case "lose":
                        client.lose(conversation)
            elif client.questions and draw.random() < 0.2:
                question = draw.choice(client.questions)
                if not question.is_settled:
                    client.asking.withdraw(question)
                    withdrawn.add(question.about)
            else:
                client.advance(draw.choice([0.0, 0.1, 1.0, TIMEOUT_S]))
        assert {*client.results, *withdrawn} == set(range(len(client.questions)))
        assert not withdrawn & client.results.keys()
        assert [server.in_flight for server in client.known] == [0] * len(client.known)
        assert not any(conversation.in_flight for conversation in client.conversations)
