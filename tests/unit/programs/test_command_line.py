"""client.py as a user runs it, with a bare interpreter, against a scripted peer."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process import GIVE_UP_S, reserve_port
from harness.server import ROOT
from qa_service.programs.client_main import main
from tests.programs import run_here
from tests.scripted_peer import (
    ScriptedPeer,
    answer_all,
    answer_to,
    close_at_once,
    error_to,
    unknown_to,
)
from tests.terminal import Terminal

# Neither site-packages nor the environment: what the client may not lean on.
CLIENT = [sys.executable, "-S", "-E", "-s", str(ROOT / "client.py")]


def command(peer: ScriptedPeer, *arguments: str) -> list[str]:
    return [*CLIENT, "--host", peer.host, "--port", str(peer.port), *arguments]


def run(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        arguments, input=stdin, env=env, capture_output=True, check=False, timeout=GIVE_UP_S
    )


@pytest.fixture
def absent():
    """The flags of a server that is not there."""
    return ["--host", "127.0.0.1", "--port", str(reserve_port())]


def serve(reply):
    def script(peer):
        while (request := peer.receive()) is not None:
            if (answer := reply(request)) is not None:
                peer.send(answer)

    return script


def asked_for(seen, field):
    """A script that notes a field of each request, and answers it."""
    return serve(lambda request: seen.append(request[field]) or answer_to(request))


def ask(reply, *flags, text="t"):
    """Asks one question of a server that replies so."""
    with ScriptedPeer(serve(reply)) as peer:
        return run(*command(peer, "--question", "q", "--text", text, *flags))


@contextlib.contextmanager
def conversation(*scripts, flags=()):
    """The terminal of a conversation with a server, and the server."""
    with ScriptedPeer(*scripts) as peer, Terminal(command(peer, *flags)) as terminal:
        yield terminal, peer


class TestOneShot:
    def test_an_answer_is_printed(self):
        done = ask(answer_to, text="Köln am Rhein")
        assert (done.stdout.decode(), done.returncode) == ("Köln\n", 0)
        assert done.stderr.startswith(b"score 0.50, latency ")
        assert done.stderr.endswith(b" ms\n")

    def test_no_answer_prints_unknown_with_its_exit_code(self):
        done = ask(unknown_to)
        assert (done.stdout, done.returncode) == (b"Unknown\n", 1)

    def test_a_unix_socket_that_is_not_there_is_named_without_a_port(self):
        done = run(*CLIENT, "--host", "/no/socket", "--health")
        assert done.returncode == 2
        assert b"no server can be reached at /no/socket (" in done.stderr

    def test_a_server_that_speaks_another_protocol_is_said_to_be_none(self):
        def script(peer):
            peer.receive()
            peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with ScriptedPeer(script) as peer:
            done = run(*command(peer, "--health"))
        assert done.returncode == 2
        assert b"or is no QA server" in done.stderr

    def test_a_text_that_is_not_utf_8_is_named(self, absent, tmp_path):
        file = tmp_path / "latin.txt"
        file.write_bytes(b"caf\xe9")
        given = [*CLIENT, *absent, "--question", "q", "--text_file"]
        for source, stdin, name in ((str(file), b"", str(file)), ("-", b"\xe9", "standard input")):
            done = run(*given, source, stdin=stdin)
            assert (done.returncode, done.stdout) == (2, b"")
            assert done.stderr.startswith(f"Error: {name} is not a text in UTF-8: ".encode())

    @pytest.mark.parametrize("source", [["-"], ["--text_file", "-"], ["--text_file", "text"]])
    def test_the_text_arrives_to_the_byte(self, source, tmp_path, monkeypatch):
        text = "\ufeffeins\r\nzwei 🍐\u0301\n\n"
        monkeypatch.chdir(tmp_path)
        Path("text").write_bytes(text.encode())
        seen = []
        with ScriptedPeer(asked_for(seen, "text")) as peer:
            done = run(*command(peer, "--question", "q", *source), stdin=text.encode())
        assert done.returncode == 0
        assert seen == [text]

    def test_json_is_the_whole_response(self):
        done = ask(lambda r: answer_to(r, "Köln", engine="onnx"), "--json", text="In Köln")
        response = json.loads(done.stdout)
        assert response.pop("latency_ms") > 0
        expected = {"id": 1, "answer": "Köln", "score": 0.5, "start": 3, "end": 7}
        assert response == expected | {"timings_ms": {"queue": 0.1}, "engine": "onnx"}
        assert (done.stderr, done.returncode) == (b"", 0)

    def test_an_error_is_printed_as_json(self):
        done = ask(lambda request: error_to(request["id"], "queue_full"), "--json")
        error = {"code": "queue_full", "message": "it is queue_full", "retryable": True}
        assert json.loads(done.stdout) == {"error": error}
        assert (done.stderr, done.returncode) == (b"Error: it is queue_full (queue_full)\n", 2)

    def test_top_k_answers_a_line_each(self):
        def reply(request):
            assert request["top_k"] == 3
            spans = [answer_to(request, "a"), answer_to(request, "b"), unknown_to(request)]
            return answer_to(request, "a", answers=spans)

        done = ask(reply, "--top_k", "3", text="a b")
        assert (done.stdout, done.returncode) == (b"a\nb\nUnknown\n", 0)
        *scores, latency = done.stderr.splitlines()
        assert scores == [b"score 0.50", b"score 0.50", b"score 0.90"]
        assert latency.startswith(b"latency ")

    @pytest.mark.parametrize(
        "flags", [["--question", "q", "--text", "t"], ["--health"], ["--stats"]]
    )
    def test_no_server_is_one_clear_line(self, absent, flags):
        done = run(*CLIENT, *absent, *flags)
        assert (done.stdout, done.returncode) == (b"", 2)
        assert done.stderr.startswith(b"Error: no server can be reached at 127.0.0.1:")
        assert done.stderr.count(b"\n") == 1

    def test_a_server_that_goes_away_is_one_clear_line(self):
        with ScriptedPeer(close_at_once) as peer:
            done = run(*command(peer, "--question", "q", "--text", "t"))
        assert done.stderr == b"Error: the server closed the connection before it answered\n"
        assert done.returncode == 2

    def test_a_server_that_never_answers_times_out(self):
        done = ask(lambda _: None, "--timeout_s", "0.1")
        assert done.stderr == b"Error: the server did not reply within 0.1 s\n"
        assert done.returncode == 2

    @pytest.mark.parametrize(
        "flags",
        [
            ["--question", "q"],
            ["--json"],
            ["--health", "--stats"],
            ["--health", "--question", "q", "--text", "t"],
            ["--stats", "--text", "t"],
            ["-"],
            ["--question", "q", "--text", "t", "-"],
            ["--question", "q", "--text", "t", "--text_file", "f"],
            ["--question", "q", "--text_file", "/no/such/file"],
            ["--question", "q", "--text_file", "/"],
            ["--port", "0"],
            ["--port", "65536"],
            ["--timeout_s", "0"],
            ["--timeout_s", "nan"],
            ["--top_k", "0"],
        ],
    )
    def test_contradicting_flags_are_refused(self, flags):
        done = run_here(main, *flags)
        assert done.returncode == 2
        assert "rror: " in done.stderr

    def test_an_answer_outside_the_terminals_encoding_is_escaped(self):
        with ScriptedPeer(answer_all) as peer:
            arguments = command(peer, "--question", "q", "--text", "Köln am Rhein")
            arguments.remove("-E")
            done = run(*arguments, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert (done.stdout, done.returncode) == (b"K\\xf6ln\n", 0)


READY = {"live": True, "ready": True, "reason": None, "model": "builtin", "queue_length": 3}
HUNG = {**READY, "ready": False, "reason": "no instance is alive"}


class TestMonitor:
    def ask(self, reply, *flags):
        with ScriptedPeer(serve(lambda request: {"id": request["id"], **reply})) as peer:
            return run(*command(peer, *flags, "--timeout_s", "5"))

    @pytest.mark.parametrize(
        ("report", "code", "line"),
        [(READY, 0, b"ready\n"), (HUNG, 1, b"not ready: no instance is alive\n")],
    )
    def test_health_prints_the_report(self, report, code, line):
        done = self.ask({"health": report}, "--health")
        assert (done.returncode, done.stderr) == (code, b"")
        assert done.stdout.startswith(line)
        assert re.search(rb"^ +queue_length +3$", done.stdout, re.MULTILINE)
        done = self.ask({"health": report}, "--health", "--json")
        assert (json.loads(done.stdout), done.returncode) == (report, code)

    @pytest.mark.parametrize("flag", ["--health", "--stats"])
    @pytest.mark.parametrize(
        "reply", [{}, {"health": 5, "stats": []}, error_to(1, "invalid_request")]
    )
    def test_no_report_is_an_error(self, flag, reply):
        done = self.ask(reply, flag)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"Error: ")
        assert done.stderr.count(b"\n") == 1

    def test_health_without_readiness_is_an_error(self):
        assert self.ask({"health": {"live": True}}, "--health").returncode == 2

    def test_with_several_servers_the_worst_sets_the_exit_code(self):
        def script(report):
            return serve(lambda request: {"id": request["id"], "health": report})

        with ScriptedPeer(script(READY)) as first, ScriptedPeer(script(HUNG)) as second:
            hosts = f"{first.host},{second.host}:{second.port}"
            done = run(*CLIENT, "--host", hosts, "--port", str(first.port), "--health")
        assert (done.returncode, done.stderr) == (1, b"")
        assert done.stdout.startswith(f"{first.host}:\nready\n".encode())
        assert f"\n{second.host}:{second.port}:\nnot ready: ".encode() in done.stdout

    def test_models_are_followed_by_routes_and_collections(self):
        model = {
            **{"name": "builtin", "version": "1", "state": "READY", "engine_type": "onnx"},
            **{"share": 1.0, "alive": 2, "instances": 2, "memory_bytes": 0, "labels": []},
            **{"failed_loads": 0},
        }
        route = {"name": "default", "cascade": ["builtin"], "is_ready": True}
        reply = {"models": [route, model], "stats": {"collections": {"handbook": {}}}}
        done = self.ask(reply, "--models")
        assert (done.returncode, done.stderr) == (0, b"")
        head, row, *others = done.stdout.decode().splitlines()
        assert (head.split()[0], row.split()[:3]) == ("model", ["builtin", "1", "READY"])
        assert others == ["route default: builtin; READY", "collection handbook"]
        assert json.loads(self.ask(reply, "--models", "--json").stdout) == [route, model]

    def test_stats_without_requests_are_printed_as_zeros_and_dashes(self):
        nothing = dict.fromkeys(("max", "p50", "p90", "p99")) | {"count": 0, "sum": 0.0}
        stats = {"counters": {"batches_total": 0}, "histograms": {"queue_ms": nothing}}
        done = self.ask({"stats": stats}, "--stats")
        assert done.returncode == 0
        assert re.search(rb"^ +batches_total +0$", done.stdout, re.MULTILINE)
        assert re.search(rb"^ +queue_ms +0( +-){5}$", done.stdout, re.MULTILINE)

    def test_stats_say_where_the_time_goes(self):
        seconds = {"ready": 10.0, "waiting": 5.0, "tokenize": 1.0, "model": 3.0, "read": 0.5}
        named = {"model": "builtin", "version": 1, "session": 0, "device": "cpu"}
        session = named | {"max_batch_size": 8, "seconds": seconds | {"lock": 0.0}}
        stats = {"gauges": {"uptime_s": 20.0}, "loop": {"cpu": 2.0, "waiting": 17.0},
                 "sessions": [session], "gpus": [{"uuid": "GPU-1", "busy_s": 4.0}]}  # fmt: skip
        shown = self.ask({"stats": stats}, "--stats").stdout.decode()
        assert re.search(r"^  loop +on a core 0.10, waiting 0.85$", shown, re.MULTILINE)
        shares = "waiting 0.50, tokenizing 0.10, model 0.30, reading 0.05, the rest 0.05"
        assert re.search(rf"^  instance 0 +cpu: {shares}$", shown, re.MULTILINE)
        assert re.search(r"^  gpu\{GPU-1\}\{busy_s\} +4.0$", shown, re.MULTILINE)

    def test_stats_of_cascades_and_shadow_traffic_are_printed(self):
        shadow = {"model": "builtin", "version": 4, "seen": 9, "agreement": 0.5, "request_ms": {}}
        cascades = {"default": {"models_asked": {"1": 7}, "fallbacks": 0}}
        stats = {"counters": {}, "cascades": cascades, "shadows": [shadow], "histograms": {}}
        done = self.ask({"stats": stats}, "--stats")
        lines = dict(line.rsplit(maxsplit=1) for line in done.stdout.decode().splitlines()[:-1])
        assert lines["  cascade{default}{models_asked}{1}"] == "7"
        assert lines["  shadow{builtin 4}{agreement}"] == "0.5"


class TestPipedConversation:
    def test_prints_answers_without_prompts(self):
        lines = b"eins zwei\nq?\nr?\n\n\ndrei vier\nq?\n"
        with ScriptedPeer(answer_all) as peer:
            done = run(*command(peer), stdin=lines)
        shown = done.stdout.decode().splitlines()
        assert shown[::2] == ["Answer: eins", "Answer: eins", "Answer: drei"]
        assert (done.stderr, done.returncode) == (b"", 0)


class TestAQuestionAsAnArgument:
    def test_is_asked_of_the_text_that_a_flag_gives(self):
        with ScriptedPeer(answer_all) as peer:
            done = run(*command(peer, "Wer?", "--text", "eins zwei"))
        assert (done.stdout, done.returncode) == (b"eins\n", 0)

    def test_is_asked_of_the_text_that_is_read_first(self):
        with ScriptedPeer(answer_all) as peer:
            done = run(*command(peer, "Wer?"), stdin=b"eins zwei\n")
        assert done.stdout.decode().splitlines()[0] == "Answer: eins"

    @pytest.mark.parametrize("flags", [["--question", "q"], ["--health"]])
    def test_excludes_what_asks_something_else(self, flags):
        done = run(*CLIENT, "Wer?", *flags)
        assert (done.returncode, b"a question excludes --question" in done.stderr) == (2, True)

    def test_a_text_that_reads_like_a_question_gets_a_hint(self):
        with ScriptedPeer(answer_all) as peer:
            done = run(*command(peer), stdin=b"Wer war es?\nq?\n")
        assert b"This is taken as the text" in done.stderr


class TestConversation:
    def test_an_empty_question_asks_for_another_text(self):
        with conversation(answer_all) as (terminal, peer):
            terminal.enter("Text: ", "Köln am Rhein")
            for _ in range(2):
                terminal.enter("Question: ", "Wo?")
                shown = terminal.expect(" ms")
                assert "Answer: Köln" in shown
                assert "latency " in shown
            terminal.enter("Question: ", "")
            terminal.enter("Text: ", " ")
            terminal.enter("Text: ", "Bonn")
            terminal.enter("Question: ", "Wo?")
            terminal.expect("Answer: Bonn")
            assert peer.connections == 1

    def test_unknown_is_printed_with_its_alternatives(self):
        def reply(request):
            return unknown_to(request) | {"answers": [unknown_to(request), answer_to(request)]}

        flags = ["--top_k", "2", "--text", "the text"]
        with conversation(serve(reply), flags=flags) as (terminal, _):
            terminal.enter("Question: ", "Wo?")
            terminal.expect("Answer: Unknown")
            terminal.expect("  0.90  Unknown\r\n  0.50  the\r\n")

    @pytest.mark.parametrize("key", ["\x04", "\x03"], ids=["Ctrl-D", "Ctrl-C"])
    @pytest.mark.parametrize("prompt", ["Text: ", "Question: "])
    def test_ctrl_c_and_ctrl_d_end_the_conversation_cleanly(self, key, prompt):
        with conversation(answer_all) as (terminal, _):
            terminal.expect("Text: ")
            if prompt != "Text: ":
                terminal.type("t\r")
                terminal.expect(prompt)
            if key == "\x03":
                assert terminal.interrupt() == 0
            else:
                terminal.type(key)
                assert terminal.wait() == 0
            assert terminal.rest.endswith("\n")
            assert "Traceback" not in terminal.rest

    def test_ctrl_c_ends_a_wait_for_the_answer(self):
        asked = []
        with conversation(serve(asked.append), flags=["--text", "t"]) as (terminal, _):
            terminal.enter("Question: ", "q")
            terminal.expect("q")
            while not asked:
                terminal.read()
            assert terminal.interrupt() == 0
            assert "Traceback" not in terminal.rest

    def test_arrow_keys_edit_and_recall(self):
        asked = []
        with conversation(asked_for(asked, "question")) as (terminal, _):
            terminal.enter("Text: ", "t")
            for keys in ("Who\x1b[D\x1b[D\x7fS", "\x1b[A!", "\x1b[A\x1b[A"):
                terminal.enter("Question: ", keys)
                terminal.expect(" ms")
        assert asked == ["Sho", "Sho!", "Sho"]

    def test_a_paste_of_many_lines_is_one_text(self):
        text = "first line\n\n\tthird: déjà vu\n" + "word " * 20 + "\n"
        text += (text * 600)[: 100_000 - len(text)]
        seen = []
        with conversation(asked_for(seen, "text")) as (terminal, _):
            terminal.expect("Text: ")
            terminal.paste(text)
            terminal.type("\r")
            terminal.enter("Question: ", "q")
            terminal.expect("Answer: first")
        assert seen == [text]

    def test_a_paste_that_the_terminal_does_not_bracket_is_one_text(self):
        seen = []
        with conversation(asked_for(seen, "text")) as (terminal, _):
            terminal.expect("Text: ")
            terminal.type("first line\r\rthird\rhalf of the last")
            terminal.expect("half of the last")
            terminal.type("\r")
            terminal.enter("Question: ", "q")
            terminal.expect("Answer: first")
        assert seen == ["first line\n\nthird\nhalf of the last"]

    def test_ctrl_c_clears_a_half_typed_question(self):
        asked = []
        with conversation(asked_for(asked, "question"), flags=["--text", "t"]) as (terminal, _):
            terminal.expect("Question: ")
            terminal.type("half")
            terminal.expect("half")
            terminal.wait_for_keys()
            terminal.type("\x03")
            terminal.enter("Question: ", "whole")
            terminal.expect("Answer: t")
        assert asked == ["whole"]

    @pytest.mark.parametrize("word", ["quit", "Exit "])
    @pytest.mark.parametrize("text", ["", "t"])
    def test_a_command_word_ends_the_conversation(self, word, text):
        with conversation(answer_all, flags=["--text", text]) as (terminal, _):
            terminal.enter("Question: " if text else "Text: ", word)
            assert terminal.wait() == 0

    def test_a_conversation_that_reaches_no_server_ends_with_2(self, absent):
        done = run(*CLIENT, *absent, "--text", "t", stdin=b"q\n")
        assert done.returncode == 2

    def test_a_url_given_as_host_is_refused_with_a_hint(self):
        done = run(*CLIENT, "--host", "http://localhost:9999", "--health")
        assert done.returncode == 2
        assert b"'http://localhost:9999' is a URL; a name is needed" in done.stderr

    def test_a_conversation_waits_for_a_server_that_starts_late(self, absent):
        with Terminal([*CLIENT, *absent, "--text", "t"]) as terminal:
            terminal.expect("Error: no server can be reached")
            terminal.enter("Question: ", "q")
            terminal.expect("Error: no server can be reached")
            terminal.expect("Question: ")

    def test_a_conversation_continues_after_a_server_restart(self):
        def dies(peer):
            peer.receive()

        with conversation(dies, dies, dies, answer_all, flags=["--text", "t"]) as (terminal, _):
            terminal.enter("Question: ", "q")
            terminal.expect("Error: the server closed the connection before it answered\r\n")
            terminal.enter("Question: ", "q")
            terminal.expect("Answer: t")
