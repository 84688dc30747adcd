"""Workers that hang, and instances that cannot be started any more."""

import os
import signal
import time

from harness.frames import ANSWER, ASK, FIRST_WORD, frame, receive
from harness.models import replace_file
from harness.process import wait_for_end
from harness.server import FIXED_ENGINE, RunningServer
from tests.fault.faults import ONE_SESSION, error_among_neighbours, marked, replies_by_id, stopped

READS_MODEL_ONNX = (*FIXED_ENGINE, *ONE_SESSION)
"""The engine that reads the file which is broken."""
HASTY_S = 3
HASTY = ("--execution_timeout_ms", f"{HASTY_S}000")


def test_a_hung_worker_is_killed_and_its_neighbours_are_answered(faulty_server):
    """It hangs in C and holds the interpreter: nothing but SIGKILL ends it."""
    with faulty_server(*ONE_SESSION, *HASTY) as server, server.connect() as sock:
        (pid,) = server.worker_pids()
        guilty = error_among_neighbours(server, sock, "!!hang!!")
        assert (guilty["code"], guilty["retryable"]) == ("worker_crashed", False)
        assert pid not in server.worker_pids()
        server.wait_for_log("still busy after its time", times=3)
        assert server.log.count("still busy after its time") == 3


def test_a_stopped_worker_is_replaced(faulty_server):
    with faulty_server(*ONE_SESSION, *HASTY) as server, server.connect() as sock:
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        sock.sendall(frame({"id": 1, **ASK}))
        assert receive(sock)["answer"] == FIRST_WORD
        assert pid not in server.worker_pids()


def test_a_worker_that_hangs_in_c_ends_with_its_server(faulty_server):
    with faulty_server(*ONE_SESSION) as server, server.connect() as sock:
        (pid,) = server.worker_pids()
        sock.sendall(frame(marked("!!hang!!", 1)))
        server.wait_for_queue(sock)
        server.process.kill()
        server.process.wait()
        wait_for_end(pid)
        server.process.returncode = 0  # which was killed on purpose


def test_instances_that_cannot_restart_end_the_server_with_a_distinct_exit_code(own_model):
    server = RunningServer(own_model, *READS_MODEL_ONNX)
    try:
        with server.connect() as sock:
            replace_file(own_model / "model.onnx", b"not a model")
            pids = server.worker_pids()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)  # so that nothing is answered before they die
            sock.sendall(b"".join(frame({"id": i, **ASK}) for i in range(20)))
            server.wait_for_queue(sock)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            errors = [reply["error"] for reply in replies_by_id(sock, 20).values()]
            assert {(error["code"], error["retryable"]) for error in errors} == {
                ("unavailable", True)
            }
            assert receive(sock) is None
        assert server.wait() == 3
        assert "model.onnx is not what its manifest says" in server.log.splitlines()[-1]
        assert "Traceback" not in server.log
    finally:
        server.close()


def test_an_instance_that_restarts_in_time_ends_the_outage(own_model):
    model, saved = own_model / "model.onnx", own_model / "model.onnx.saved"
    server = RunningServer(own_model, *READS_MODEL_ONNX)
    try:
        with server.connect() as sock:
            model.rename(saved)
            (pid,) = server.worker_pids()
            os.kill(pid, signal.SIGKILL)
            sock.sendall(frame({"id": 1, **ASK}))
            server.wait_for_log("model.onnx cannot be read")
            saved.rename(model)
            assert receive(sock)["answer"] == ANSWER
    finally:
        server.close()


def test_workers_that_answered_while_the_server_was_stopped_are_not_killed(faulty_server):
    """As with SIGSTOP, so with a machine that is suspended or moved."""
    with faulty_server(*ONE_SESSION, *HASTY) as server, server.connect() as sock:
        pids = server.worker_pids()
        with stopped(server):
            sock.sendall(frame({"id": 1, **ASK}))
            assert server.wait_for_queue(sock) == []
            server.signal(signal.SIGSTOP)
        time.sleep(HASTY_S + 1.5)  # the pause itself; the worker answers in a millisecond
        server.signal(signal.SIGCONT)
        assert receive(sock)["answer"] == FIRST_WORD
        server.wait_for_log("nothing ran for")
        assert server.worker_pids() == pids
        assert "still busy after its time" not in server.log
