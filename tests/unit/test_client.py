"""QaClient against a peer that follows a script, over real sockets."""

import contextlib
import errno
import json
import pickle
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.frames import frame, reset_at_close
from harness.mutate import GOLDEN
from harness.process import reserve_port
from harness.server import ROOT
from qa_service.client import (
    Answer,
    ConnectionLostError,
    InvalidRequestError,
    ProtocolError,
    QaClient,
    QaClientError,
    QaServerError,
    RequestTimeoutError,
    ServerUnreachableError,
    Span,
    split_hosts,
)
from tests.programs import run_python
from tests.scripted_peer import (
    PeerConnection,
    Script,
    ScriptedPeer,
    answer_all,
    answer_and_keep,
    answer_to,
    close_at_once,
    error_to,
    kept_connections,
)
from tests.support import FakeClock, present

CLIENT_FILE = ROOT / "qa_service" / "client.py"
PAIRS = [(f"question {number}?", f"text{number} and more") for number in range(20)]


@pytest.fixture
def clock(monkeypatch):
    """The client's; its sockets are real."""
    fake = FakeClock()
    monkeypatch.setattr("qa_service.client.time", fake)
    return fake


def client_of(peer: ScriptedPeer, timeout_s: float | None = 20.0, **options) -> QaClient:
    return QaClient(peer.host, peer.port, timeout_s, **options)


def assert_fails(script: Script, error: type[Exception], words=None, timeout_s=20.0) -> None:
    """A question to this peer ends with the error."""
    with (
        ScriptedPeer(script) as peer,
        client_of(peer, timeout_s) as client,
        pytest.raises(error, match=words),
    ):
        client.ask("q", "t")


def set_timeout(client: QaClient, timeout_s: float) -> None:
    client._servers.terms = client._servers.terms._replace(timeout_s=timeout_s)


def answers(results: list[Answer | QaClientError]) -> list[str]:
    return [r.answer if isinstance(r, Answer) else r.code for r in results]


def reply_with(*replies: bytes) -> Script:
    """Reads one request and sends the bytes, then closes."""

    def script(peer: PeerConnection) -> None:
        peer.receive()
        peer.sock.sendall(b"".join(replies))

    return script


class TestAsk:
    def test_reads_the_answer(self):
        text = "Sie aß 🍐 in Zürich."

        def script(peer):
            request = peer.receive()
            assert request == {"id": 1, "question": "Wo?", "text": text, "top_k": 1}
            peer.send(answer_to(request, "Zürich", engine="onnx"))

        with ScriptedPeer(script) as peer, client_of(peer) as client:
            answer = client.ask("Wo?", text)
        assert (answer.answer, answer.score, answer.start, answer.end) == ("Zürich", 0.5, 12, 18)
        assert text[answer.start : answer.end] == answer.answer
        assert answer.known
        assert answer.alternatives == ()
        assert answer.timings_ms == {"queue": 0.1}
        assert answer.response["engine"] == "onnx"

    def test_an_unknown_option_is_refused(self):
        with pytest.raises(TypeError, match="'topk' is not an option"):
            QaClient().ask("q", "t", topk=2)  # type: ignore[call-arg]

    def test_latency_counts_from_before_the_send(self, clock):
        """A second passes after the first bytes of a text that no buffer holds; the rest follow."""

        def script(peer):
            peer.sock.recv(1, socket.MSG_PEEK)
            clock.pass_s(1.0)
            peer.send(answer_to(peer.receive()))

        with ScriptedPeer(script, receive_buffer_bytes=4096) as peer, client_of(peer) as client:
            client.connect()
            answer = client.ask("q", "word " * 400_000)
        assert answer.latency_ms == 1000.0

    def test_keeps_the_connection_without_delay(self):
        with ScriptedPeer(answer_all) as peer, client_of(peer) as client:
            for _ in range(3):
                assert client.ask("q", "yes no").answer == "yes"
            assert peer.connections == 1
            [connection] = kept_connections(client)
            sock = connection.socket
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_a_servers_error_is_typed_and_keeps_the_connection(self):
        def script(peer):
            peer.send(error_to(peer.receive()["id"], "deadline_exceeded", retry_after_ms=40))
            answer_all(peer)

        with ScriptedPeer(script) as peer, client_of(peer) as client:
            with pytest.raises(QaServerError) as caught:
                client.ask("q", "t")
            assert client.ask("q", "t").answer == "t"
            assert peer.connections == 1
        error = caught.value
        assert (error.code, error.retryable) == ("deadline_exceeded", True)
        assert error.retry_after_ms == 40
        assert str(error) == "it is deadline_exceeded (deadline_exceeded)"
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)

    @pytest.mark.parametrize("question", ["\ud800", 7j, None.__class__])
    def test_a_question_that_cannot_be_encoded_is_refused_before_sending(self, question):
        with ScriptedPeer(answer_all) as peer, client_of(peer) as client:
            with pytest.raises(InvalidRequestError, match="cannot be sent"):
                client.ask(question, "t")
            assert client.ask("q", "t").answer == "t"
            assert peer.connections == 1


class TestLoss:
    def test_no_server_is_unreachable(self):
        port = reserve_port()
        with pytest.raises(ServerUnreachableError, match=rf"127\.0\.0\.1:{port} \(.*refused"):
            QaClient("127.0.0.1", port).ask("q", "t")

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
    def test_an_unknown_host_is_unreachable(self, host):
        with pytest.raises(ServerUnreachableError):
            QaClient(host).ask("q", "t")

    def test_without_a_descriptor_no_server_is_reached_until_there_is_one(self, monkeypatch):
        def no_socket(*_):
            raise OSError(errno.EMFILE, "Too many open files")

        with ScriptedPeer(answer_all) as peer, client_of(peer) as client:
            with monkeypatch.context() as patch:
                patch.setattr("qa_service.client.socket.socket", no_socket)
                with pytest.raises(ServerUnreachableError, match="Too many open files"):
                    client.ask("q", "t")
            assert client.ask("q", "t").answer == "t"

    def test_a_path_that_is_too_long_is_unreachable(self):
        with pytest.raises(ServerUnreachableError, match="File name too long"):
            QaClient("/" + "y" * 200).ask("q", "t")

    @pytest.mark.parametrize(
        "script", [close_at_once, reply_with(), reply_with(b"\0"), reply_with(b"\0\0\0\x09{")]
    )
    def test_a_close_inside_a_reply_is_a_lost_connection(self, script):
        """The address may be a balancer's: it is asked twice more, and no more."""
        with ScriptedPeer(script, script, script, answer_all) as peer, client_of(peer) as client:
            with pytest.raises(ConnectionLostError):
                client.ask("q", "t")
            assert peer.connections == 3
            assert client.ask("q", "t").answer == "t"
            assert peer.connections == 4

    def test_a_reset_is_a_lost_connection(self):
        def script(peer):
            peer.receive()
            reset_at_close(peer.sock)

        assert_fails(script, ConnectionLostError)

    def test_a_connection_that_closed_while_idle_costs_no_question(self):
        closed = threading.Event()

        def script(peer):
            peer.send(answer_to(peer.receive()))
            peer.sock.shutdown(socket.SHUT_RDWR)
            closed.set()

        with ScriptedPeer(script, answer_all) as peer, client_of(peer) as client:
            assert client.ask("q", "t").answer == "t"
            assert closed.wait(60)
            assert client.ask("q", "t").answer == "t"
            assert peer.connections == 2

    def test_a_timeout_closes_the_connection_so_that_a_late_reply_is_dropped(self):
        timed_out = threading.Event()

        def late(peer):
            request = peer.receive()
            assert timed_out.wait(60)
            peer.send(answer_to(request, "late"))

        with ScriptedPeer(late, answer_all) as peer, client_of(peer, 0.05) as client:
            with pytest.raises(RequestTimeoutError, match=r"within 0\.05 s"):
                client.ask("q", "too late")
            timed_out.set()
            set_timeout(client, 20.0)
            assert client.ask("q", "in time").answer == "in"

    def test_an_interrupt_closes_the_connection(self):
        def interrupt():
            yield PAIRS[0]
            raise KeyboardInterrupt

        with ScriptedPeer(answer_all) as peer, client_of(peer) as client:
            with pytest.raises(KeyboardInterrupt):
                client.ask_many(interrupt())
            assert kept_connections(client) == []
            assert client.ask("q", "t").answer == "t"


class TestMalformedReplies:
    """More of them are in `test_asking.py`."""

    @pytest.mark.parametrize("reply", [b"\xff\xff\xff\xff", frame(b"garbage"), frame({"id": 1})])
    def test_a_malformed_reply_is_a_protocol_error_and_the_next_call_works(self, reply):
        with (
            ScriptedPeer(reply_with(reply), answer_all) as peer,
            client_of(peer, max_response_bytes=1 << 20) as client,
        ):
            with pytest.raises(ProtocolError):
                client.ask("q", "t")
            assert client.ask("q", "t").answer == "t"


@pytest.mark.parametrize("case", GOLDEN["responses"], ids=lambda case: case["name"])
def test_golden_responses_are_understood(case):
    """As they stand in docs/, but for the id, which is the client's."""
    means = case["means"]
    its_id = b"null" if means["id"] is None and "error" in means else b"1"
    written = b'"id":' + json.dumps(means["id"]).encode()
    body = bytes.fromhex(case["frame_hex"])[4:].replace(written, b'"id":' + its_id, 1)
    with ScriptedPeer(reply_with(frame(body))) as peer, client_of(peer) as client:
        if "health" in means:
            health = client.health()
            assert (health.ready, health.reason, health.report) == (
                means["health"]["ready"],
                means["health"]["reason"],
                means["health"],
            )
            return
        if "stats" in means:
            assert client.stats() == means["stats"]
            return
        [result] = client.ask_many([("q", "t")])
    if "error" in means:
        assert isinstance(result, QaServerError)
        expected = {"retry_after_ms": None} | means["error"]
        assert vars(result) == expected
    else:
        assert isinstance(result, Answer)
        assert result.response == means | {"id": 1}
        assert (result.answer, result.score) == (means["answer"], means["score"])
        assert (result.start, result.end) == (means["start"], means["end"])
        assert result.known == (means["start"] is not None)
        assert result.timings_ms == means["timings_ms"]
        assert result.alternatives == tuple(Span(**span) for span in means.get("answers", []))


class TestAskMany:
    def test_ask_many_of_no_questions_returns_nothing(self):
        assert QaClient("no-such-host.invalid").ask_many([]) == []

    def test_a_window_of_zero_is_refused(self):
        with pytest.raises(ValueError, match="at least 1"):
            QaClient().ask_many(PAIRS, max_in_flight=0)

    def test_results_stand_in_the_order_of_the_questions(self):
        def backwards(peer):
            requests = [peer.receive() for _ in PAIRS]
            peer.send(*(answer_to(request) for request in reversed(requests)))

        with ScriptedPeer(backwards) as peer, client_of(peer) as client:
            results = client.ask_many(PAIRS)
        assert answers(results) == [f"text{number}" for number in range(20)]

    def test_a_bad_item_leaves_the_others_alone(self):
        def script(peer):
            while (request := peer.receive()) is not None:
                bad = request["question"] == "bad"
                peer.send(error_to(request["id"]) if bad else answer_to(request))

        pairs = [("q", "one"), ("bad", "two"), ("\udc80", "three"), ("q", "four")]
        with ScriptedPeer(script) as peer, client_of(peer) as client:
            results = client.ask_many(pairs)
        assert answers(results) == ["one", "queue_full", "invalid_request", "four"]

    def test_pairs_are_taken_as_there_is_room(self):
        taken = []

        def pairs():
            for pair in PAIRS:
                taken.append(pair)
                yield pair

        def script(peer):
            first = [peer.receive() for _ in range(4)]
            peer.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                peer.sock.recv(1)
            peer.sock.settimeout(None)
            assert len(taken) == 4
            peer.send(*map(answer_to, first))
            answer_all(peer)

        with ScriptedPeer(script) as peer, client_of(peer) as client:
            assert len(client.ask_many(pairs(), max_in_flight=4)) == len(PAIRS)

    def test_full_buffers_on_both_sides_do_not_deadlock(self):
        """A server that reads nothing while it writes, and replies as long as the texts."""
        text = "word" + " x" * 50_000

        def script(peer):
            while (request := peer.receive()) is not None:
                peer.send(answer_to(request, echo=request["text"]))

        with ScriptedPeer(script, receive_buffer_bytes=4096) as peer, client_of(peer) as client:
            results = client.ask_many((("q", f"{n}{text}") for n in range(300)), max_in_flight=100)
        assert answers(results) == [f"{number}word" for number in range(300)]

    def test_silent_connections_end_the_call(self):
        with ScriptedPeer(close_at_once) as peer, client_of(peer) as client:
            results = client.ask_many(PAIRS, max_in_flight=2)
            assert answers(results) == ["connection_lost"] * 20
            # Two questions were under way by then; each is sent three times, at worst alone.
            assert peer.connections <= 6


def client_of_all(*peers: ScriptedPeer, timeout_s: float = 20.0, **options) -> QaClient:
    return QaClient([f"{peer.host}:{peer.port}" for peer in peers], 1, timeout_s, **options)


class TestServers:
    """Several servers that stand for one."""

    @pytest.mark.parametrize(
        ("hosts", "found"),
        [
            ("a", [("a", 9)]),
            ("a:1, b", [("a", 1), ("b", 9)]),
            (["a:1", "b:2"], [("a", 1), ("b", 2)]),
            ("::1,[::1]:7,[::1]", [("::1", 9), ("::1", 7), ("::1", 9)]),
        ],
    )
    def test_split_hosts_reads_names_and_ports(self, hosts, found):
        assert split_hosts(hosts, 9) == found

    @pytest.mark.parametrize("hosts", ["", "a,", [], "a:0", "a:65536", ":9", "a:", "a:b"])
    def test_invalid_names_are_refused(self, hosts):
        with pytest.raises(ValueError, match="does not name servers"):
            QaClient(hosts)

    def test_all_servers_gone_is_unreachable(self):
        peers = [ScriptedPeer(answer_all) for _ in range(2)]
        for peer in peers:
            peer.stop_listening()
        with client_of_all(*peers) as client:
            with pytest.raises(ServerUnreachableError, match="refused"):
                client.connect()
            with pytest.raises(ServerUnreachableError, match="refused"):
                client.ask("q", "t")

    def test_the_addresses_of_one_name_are_servers(self, monkeypatch):
        seen = [[], []]
        first = ScriptedPeer(answer_and_keep(seen[0]))
        second = ScriptedPeer(answer_and_keep(seen[1]), host="127.0.0.2", port=first.port)
        found = [(socket.AF_INET, 0, 0, "", (peer.host, peer.port)) for peer in (first, second)]
        with first, second, QaClient("replicas.test", first.port) as client:
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            client.ask_many(PAIRS)
            assert all(seen)
            found.pop()  # it has been taken away
            client._servers._look_up_at_s = 0.0
            del seen[1][:]
            client.ask_many(PAIRS)
            assert len(client._servers) == 1
        assert seen[1] == []

    def test_a_name_that_does_not_resolve_for_a_while_keeps_its_servers(self, monkeypatch):
        with ScriptedPeer(answer_all) as peer, client_of(peer) as client:
            client.ask("q", "t")

            def fail(*_, **__):
                raise socket.gaierror(socket.EAI_AGAIN, "try again")

            monkeypatch.setattr(socket, "getaddrinfo", fail)
            client._servers._look_up_at_s = 0.0
            assert client.ask("q", "t").answer == "t"

    def test_many_threads_use_one_client(self):
        a, b = ScriptedPeer(answer_all), ScriptedPeer(answer_all)
        wrong = []

        def ask(client, number):
            for turn in range(40):
                word = f"word{number}x{turn}"
                if client.ask("q", f"{word} and more").answer != word:
                    wrong.append(word)

        with a, b, client_of_all(a, b) as client:
            threads = [threading.Thread(target=ask, args=(client, n)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert max(a.connections, b.connections) <= 8
            assert sum(server.in_flight for server in client._servers._known.values()) == 0
        assert wrong == []


def test_the_file_works_alone_and_with_nothing_installed(tmp_path):
    (tmp_path / "copied.py").write_bytes(CLIENT_FILE.read_bytes())
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import copied\n"
        "with copied.QaClient('127.0.0.1', int(sys.argv[1])) as client:\n"
        "    print(client.ask('q', 'alone here').answer)\n"
        "assert not any(name.startswith('qa_service') for name in sys.modules)\n"
    )
    with ScriptedPeer(answer_all) as peer:
        done = run_python("-S", "-I", "-c", program, peer.port, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("alone\n", "", 0)


def full_listener(path, held):
    """A Unix socket at which no more connections can wait; `held` gets those that do."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)
    while True:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        held.append(sock)
        if sock.connect_ex(str(path)) == errno.EAGAIN:
            return listener


def test_a_unix_socket_whose_backlog_is_full_is_waited_for(tmp_path, monkeypatch):
    has_waited, wait_s = threading.Event(), time.sleep

    def sleep(seconds):
        has_waited.set()
        wait_s(seconds)

    monkeypatch.setattr("qa_service.client.time.sleep", sleep)
    held = []

    def serve(listener):
        assert has_waited.wait(20)
        for _ in held[:-1]:  # the last one is not connected
            listener.accept()[0].close()
        with listener.accept()[0] as sock:
            peer = PeerConnection(sock)
            peer.send(answer_to(present(peer.receive())))

    path = tmp_path / "socket"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(full_listener(path, held))
        for sock in held:
            stack.enter_context(sock)
        with ThreadPoolExecutor() as pool, QaClient(str(path), timeout_s=20.0) as client:
            served = pool.submit(serve, listener)
            assert client.ask("q", "text").answer == "text"
            served.result()


def test_a_unix_socket_that_stays_full_is_unreachable(tmp_path):
    held = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(full_listener(tmp_path / "socket", held))
        for sock in held:
            stack.enter_context(sock)
        with (
            QaClient(str(tmp_path / "socket"), timeout_s=0.1) as client,
            pytest.raises((ServerUnreachableError, RequestTimeoutError)),
        ):
            client.ask("q", "text")
