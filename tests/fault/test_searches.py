"""Collections that are damaged, slow or silent, and search processes that die or hang."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from harness.collections import (
    DOCUMENTS,
    damage,
    index,
    index_files,
    question,
    write_collection,
    write_documents,
)
from harness.frames import frame, receive
from harness.process import held_still, wait_until
from harness.server import INSTANT, RunningServer
from qa_service.retrieval.manifest import MANIFEST_FILE
from tests.support import skip_without

SEARCH = b"search_main"
HASTY = {"qa_service.server.services.collection_set:SEARCH_TIMEOUT_S": 2.0}
OF_A_TEXT = {"question": "Who built the mill?", "text": "The mill stood by the river."}
ASKED = {"question": "Who wrote the first compiler?", "collection": "good"}
FIRST_WORD = "Grace"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    return write_collection(tmp_path_factory.mktemp("pristine"), "collection")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Documents, and a folder of collections with one of them."""
    made = tmp_path_factory.mktemp("made")
    index(write_documents(made / "documents", DOCUMENTS), made / "collections" / "good")
    return made


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """A folder of collections, with one that is well: `good`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "collections"


class Serving:
    """A server of a folder of collections."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        *flags: str,
        constants: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        flags = (*INSTANT, "--collections_dir", str(folder), *flags)
        self.server = RunningServer(model, *flags, constants=constants)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            assert not self.server.process.poll(), self.server.log
            self.server.signal(signal.SIGTERM)
            assert self.server.wait() == 0, self.server.log
        finally:
            self.server.close()

    def pids(self) -> list[int]:
        """The search processes, in the order of their start."""
        return [pid for pid in self.server.worker_pids() if SEARCH in command_of(pid)]

    def ask(self, name: str, words: str = "", **fields: object) -> dict:
        return self.server.ask(question=words or ASKED["question"], collection=name, **fields)

    def check_others(self) -> None:
        """Another collection and a question to a text are answered, and the server is ready."""
        assert FIRST_WORD in self.server.ask(**ASKED)["answer"]
        assert "answer" in self.server.ask(**OF_A_TEXT)
        assert self.server.health()["ready"]

    def fault_of(self, name: str) -> str:
        return self.server.health()["collection_faults"].get(name, "")

    def state_of(self, name: str) -> str:
        return self.server.health()["collections"][name]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def is_answer_or_retryable(reply: dict) -> bool:
    return "answer" in reply or reply["error"]["retryable"]


# Damage.


def damage_and_ask(model: Path, pristine: Path, folder: Path, places: int, seed: int) -> int:
    """Damages half of the places before the first search, half after it; returns how many failed.

    More collections than processes: some share theirs.
    """
    draw = random.Random(seed)
    names = [f"bad{number}" for number in range(places)]
    for name in names:
        shutil.copytree(pristine, folder / name)
    for name in names[: places // 2]:
        damage(folder / name, draw, (".store", ".idx", ".pos", ".term", ".fieldnorm"))
    num_failed = 0
    with Serving(model, folder, constants=HASTY) as serving:
        for name in names:
            if name in names[places // 2 :]:
                assert "answer" in serving.ask(name, question(draw))
                damage(folder / name, draw, (".store", ".idx", ".pos", ".term", ".fieldnorm"))
            replies = [serving.ask(name, question(draw), max_passages=50) for _ in range(3)]
            assert all(map(is_answer_or_retryable, replies)), replies
            num_failed += any("error" in reply for reply in replies)
            serving.check_others()
    return num_failed


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (100, 101))]
)
def test_damage_in_random_places_costs_no_other_request_anything(
    builtin_model, pristine, folder, seed
):
    assert damage_and_ask(builtin_model, pristine, folder, places=40, seed=seed) > 3


def test_damage_is_in_health_and_metrics_until_the_collection_is_made_again(
    builtin_model, pristine, folder
):
    bad = folder / "bad"
    shutil.copytree(pristine, bad)
    with Serving(builtin_model, folder) as serving:
        assert serving.fault_of("bad") == ""
        for path in index_files(bad):
            if path.suffix == ".store":
                path.write_bytes(random.Random(3).randbytes(path.stat().st_size))
        error = serving.ask("bad", "banp banp danp")["error"]
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert str(bad) not in error["message"]
        assert wait_until(lambda: serving.fault_of("bad"))
        counted = serving.server.stats()["collections"]["bad"]
        assert counted["failed_total"] >= 1
        assert counted["fault"]
        serving.check_others()

        shutil.rmtree(bad)
        shutil.copytree(pristine, bad)
        answer = wait_until(
            lambda: serving.ask("bad", "banp danp"), lambda reply: "answer" in reply
        )
        assert answer["passage"]["document"].endswith(".txt")
        assert serving.state_of("bad") == "READY"


def test_a_file_that_is_cut_in_place_ends_one_search_process(builtin_model, pristine, folder):
    shutil.copytree(pristine, folder / "bad")
    with Serving(builtin_model, folder) as serving:
        assert "answer" in serving.ask("bad", "banp danp")
        for path in index_files(folder / "bad"):
            if path.suffix in {".store", ".idx"}:
                os.truncate(path, 100)
        error = serving.ask("bad", "felt girk loks", max_passages=50)["error"]
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert serving.fault_of("bad")
        serving.check_others()


def test_a_collection_that_is_damaged_at_the_start_is_served_when_it_is_repaired(
    builtin_model, pristine, folder
):
    bad = folder / "bad"
    shutil.copytree(pristine, bad)
    whole = (bad / MANIFEST_FILE).read_bytes()
    (bad / MANIFEST_FILE).write_bytes(b"{")
    with Serving(builtin_model, folder) as serving:
        assert serving.state_of("bad") == "UNAVAILABLE"
        assert "is not a collection's" in serving.fault_of("bad")
        assert serving.ask("bad")["error"]["code"] == "unavailable"
        serving.check_others()
        (bad / MANIFEST_FILE).write_bytes(whole)
        wait_until(lambda: serving.state_of("bad"), lambda state: state == "READY")
        assert serving.fault_of("bad") == ""
        assert "answer" in serving.ask("bad", "banp danp")


def test_a_folder_whose_name_is_no_utf8_is_left_out(builtin_model, pristine, folder):
    shutil.copytree(pristine, folder / "caf\udce9")
    with Serving(builtin_model, folder) as serving:
        assert list(serving.server.health()["collections"]) == ["good"]
        serving.check_others()
        assert "its name is no UTF-8" in serving.server.log


def test_a_manifest_that_is_a_fifo_does_not_block_the_server(builtin_model, pristine, folder):
    bad = folder / "bad"
    shutil.copytree(pristine, bad)
    whole = (bad / MANIFEST_FILE).read_bytes()
    with Serving(builtin_model, folder) as serving:
        (bad / MANIFEST_FILE).unlink()
        os.mkfifo(bad / MANIFEST_FILE)
        serving.server.signal(signal.SIGHUP)
        assert "is not a file" in wait_until(lambda: serving.fault_of("bad"))
        assert "answer" in serving.ask("bad", "banp danp")
        serving.check_others()

        os.kill(serving.pids()[-1], signal.SIGKILL)
        wait_until(lambda: serving.state_of("bad") + serving.state_of("good"))
        (bad / MANIFEST_FILE).unlink()
        (bad / MANIFEST_FILE).write_bytes(whole)
        wait_until(lambda: serving.fault_of("bad"), lambda fault: not fault)
        assert "answer" in serving.ask("bad", "banp danp")


# Processes.


def test_a_search_whose_process_is_killed_is_made_again(builtin_model, folder):
    with Serving(builtin_model, folder) as serving:
        pids = wait_until(serving.pids)
        with serving.server.connect() as sock, held_still(pids):
            for number in range(5):
                sock.sendall(frame({"id": number, **ASKED}))
            serving.server.wait_for_queue(sock)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert [receive(sock)["answer"] for _ in range(5)] == [FIRST_WORD] * 5
        assert serving.server.stats()["search_process_deaths_total"] > 0


def test_a_search_process_that_hangs_keeps_deadlines_and_is_replaced(builtin_model, folder):
    with (
        Serving(builtin_model, folder, constants=HASTY) as serving,
        serving.server.connect() as sock,
    ):
        with held_still(serving.pids()):
            sock.sendall(frame({"id": "first", **ASKED, "timeout_ms": 100}))
            sock.sendall(frame({"id": "waits", **ASKED, "timeout_ms": 100}))
            sock.sendall(frame({"id": "patient", **ASKED}))
            errors = [receive(sock)["error"]["code"] for _ in range(2)]
            assert errors == ["deadline_exceeded"] * 2
            assert receive(sock)["answer"] == FIRST_WORD
        serving.server.wait_for_log("a search took too long")
        assert serving.fault_of("good") == "", "the next process has answered"


def test_a_server_stops_while_search_processes_hang(builtin_model, folder):
    with (
        Serving(builtin_model, folder, constants=HASTY) as serving,
        serving.server.connect() as sock,
        held_still(serving.pids()),
    ):
        sock.sendall(frame({"id": 1, **ASKED}))
        serving.server.wait_for_queue(sock)
        serving.server.signal(signal.SIGTERM)
        assert receive(sock)["error"]["code"] == "unavailable"
        assert serving.server.wait() == 0, serving.server.log


def test_a_drain_waits_for_searches_under_way(builtin_model, folder):
    with Serving(builtin_model, folder) as serving, serving.server.connect() as sock:
        with held_still(serving.pids()):
            sock.sendall(frame({"id": "searched", **ASKED}))
            serving.server.wait_for_queue(sock)
            serving.server.signal(signal.SIGTERM)
            wait_until(lambda: "draining" in serving.server.log)
            sock.sendall(frame({"id": "late", **ASKED}))
            assert receive(sock)["error"]["code"] == "shutting_down"
        reply = receive(sock)
        assert (reply["id"], reply["answer"]) == ("searched", FIRST_WORD)
        assert serving.server.wait() == 0, serving.server.log


# Other clients, other collections.


@pytest.fixture
def silent():
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


def test_a_silent_cluster_does_not_block_other_requests(builtin_model, folder, silent, tmp_path):
    skip_without("opensearchpy", "the extra `opensearch` is not installed")
    file = tmp_path / "server.toml"
    file.write_text(f'[collections.silent]\nurl = "http://127.0.0.1:{silent}/index"\n')
    with (
        Serving(builtin_model, folder, "--config", str(file), constants=HASTY) as serving,
        serving.server.connect() as sock,
    ):
        for number in range(50):
            asked = {"question": "Who?", "collection": "silent", "timeout_ms": 200}
            sock.sendall(frame({"id": number, **asked}))
        for _ in range(5):
            serving.check_others()
        wait_until(lambda: serving.state_of("silent") == "READY")
        codes = {receive(sock)["error"]["code"] for _ in range(50)}
        assert codes == {"deadline_exceeded"}
