"""What may go wrong while several models and versions are served, loaded and ended."""

import os
import shutil
import signal
from contextlib import closing, contextmanager

import pytest

from harness.frames import ASK
from harness.load import QuietAnswers, assert_all_right, under_load
from harness.models import (
    ModelFile,
    count_versions,
    link_model,
    replace_file,
    states,
    write_manifest,
)
from harness.process import wait_until
from harness.server import RunningServer, running_server
from qa_service.errors import SetupError
from qa_service.programs.load.plan import Report
from qa_service.server.config import find_config
from qa_service.server.models.plan import make_plan
from tests.fault.faults import FAULTY_WORKER, Permits, fresh_worker, marked
from tests.programs import fail_to_start


@pytest.fixture
def file(tmp_path):
    return ModelFile(tmp_path)


@contextmanager
def serving(file, *flags):
    with running_server(file.model, *file.flags(*flags)) as server:
        yield server


# Faults of the file.


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("labels = { stable = 9 }", "[models.m] labels: stable names version 9, which is not"),
        ("traffic = { 1 = 5, canary = 5 }", "[models.m] traffic: canary is neither a version"),
        ("traffic = { 1 = 0 }", "[models.m] traffic: all weights are 0"),
        ("versions = [1, 7]", "[models.m] versions: there is no version 7; there are 1, 2"),
        ('versions = "latest:0"', '[models.m] versions: "latest:0" is not "latest:N", "all" or a'),
        ("num_inference_sessions = 2000", "[models.m] num_inference_sessions: 2000 is not an int"),
        ("num_sessions = 1", "[models.m] has no key num_sessions; did you mean"),
        ('transition = "leap"', '[models.m] transition: "leap" is not one of swap, rolling'),
        ("[models.m]", "is not TOML: Cannot declare ('models', 'm') twice"),
        ("[routes.m]\ncascade = ['m']", "[routes.m]: a model has this name already"),
        ("[routes.default]\ncascade = ['x']", "[routes.default] cascade: there is no model x"),
        (
            "[models.n]\npath = 'nowhere'",
            "[models.n] path: no prepared model in nowhere; make it with",
        ),
    ],
)
def test_a_fault_in_the_file_is_one_line(file, keys, fault):
    with pytest.raises(SetupError) as raised:
        config = find_config(["--config", str(file.write(keys))]).read()
        make_plan(config.models, config.routes, lambda _model, _found, options: options)
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (
            'inference_engine_type = "onnx"\nprecision = "bf16"',
            "[models.m]: the onnx engine has no",
        ),
        ("[models.'a b']\npath = 'x'", "[models.a b]: a name has letters, digits, _, . and -"),
    ],
)
def test_a_fault_in_the_file_is_one_line_at_the_start(file, keys, fault):
    ended = fail_to_start("--config", file.write(keys))
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("server.py: ")]
    assert line.startswith(f"server.py: {file.path}: {fault}")


def test_a_fault_in_the_file_is_logged_with_its_line_and_changes_nothing(file):
    file.write("versions = [1]\nlabels = { stable = 1 }")
    with serving(file) as server:
        pids = server.worker_pids()
        file.apply(server, "versions = [2]\nlabels = { stable = 9 }")
        server.wait_for_log("reload failed, configuration unchanged: ")
        server.wait_for_log(f"{file.path}: [models.m] labels: stable names version 9")
        assert server.ask(**ASK, version="stable")["version"] == 1
        assert server.worker_pids() == pids


def test_a_reload_logs_the_options_that_need_a_restart(file):
    file.write("")
    with serving(file) as server:
        file.apply(server, "", "[queue]\nmax_queue_size = 7\n[cache]\ncache_bytes = 9")
        server.wait_for_log(
            "a restart is needed to apply: [queue] max_queue_size, [cache] cache_bytes"
        )


def test_a_hanging_file_blocks_neither_requests_nor_a_reload(file):
    file.write("versions = [1]")
    text = file.path.read_text()
    with serving(file, "--poll_interval_s", "1") as server:
        file.path.unlink()
        os.mkfifo(file.path)  # who opens it waits for a writer
        health = wait_until(lambda: (h := server.health())["reload_fault"] and h)
        assert "could not be read for 10 s" in health["reload_fault"]
        assert health["ready"]
        assert server.stats()["gauges"]["reload_failed"] == 1
        fifo = file.path.rename(file.path.with_suffix(".fifo"))
        file.path.write_text(text.replace("[1]", "[2]"))
        server.signal(signal.SIGHUP)
        wait_until(lambda: states(server) == {"m/2": "READY"})
        assert server.health()["reload_fault"] is None
        server.wait_for_log("reload failed, configuration unchanged: ")
        assert server.log.count("reload failed, configuration unchanged: ") == 1
        fifo.write_text("versions = [1]")  # now it is read: an old look, which does not count
        assert server.ask(**ASK)["version"] == 2


# Versions that cannot be loaded.


def test_a_worker_killed_while_loading_is_restarted_and_the_old_version_serves(file):
    file.write("versions = [1]")
    permits = Permits(file.path.parent, 1)
    with closing(RunningServer(file.model, *file.flags(), env=permits.env)) as server:
        old = server.worker_pids()
        file.apply(server, "versions = [2]")
        os.kill(fresh_worker(server, old), signal.SIGKILL)
        server.wait_for_log("m, version 2: instance 0 starts again")
        assert states(server) == {"m/1": "READY", "m/2": "LOADING"}
        assert server.ask(**ASK)["version"] == 1
        permits.give()
        wait_until(lambda: states(server) == {"m/2": "READY"})
        assert server.ask(**ASK)["version"] == 2


def test_a_corrupt_file_is_never_served_and_its_repair_is_found(file):
    file.write("versions = [1]")
    tokenizer = file.model / "2" / "tokenizer.json"
    whole = tokenizer.read_text()
    with serving(file) as server:
        tokenizer.write_text(whole.replace("2", "3"))
        file.apply(server, "versions = [2]")
        server.wait_for_log("tokenizer.json is not what its manifest says")
        health = wait_until(lambda: (h := server.health())["failures"] and h)
        assert "tokenizer.json is not what" in health["failures"]["m/2"]
        assert (health["ready"], health["models"]["m/1"]) == (True, "READY")
        assert server.ask(**ASK)["version"] == 1
        tokenizer.write_text(whole)
        wait_until(lambda: states(server) == {"m/2": "READY"})


def test_a_truncated_model_leaves_the_others_serving(file, builtin_model, tmp_path):
    file.write("versions = [1]")
    truncated = link_model(builtin_model, tmp_path / "truncated")
    replace_file(truncated / "model.onnx", (truncated / "model.onnx").read_bytes()[:1000])
    engine = 'inference_engine_type = "onnx"\nprecision = "fp32"'
    routes = '[routes.default]\ncascade = ["m"]'
    with serving(file) as server:
        other = f'[models.other]\npath = "{truncated}"\n{engine}\n{routes}'
        file.apply(server, "versions = [1]", other)
        server.wait_for_log("model.onnx is not what its manifest says: it was changed, or is not")
        assert states(server)["m/1"] == "READY"
        assert server.ask(**ASK)["version"] == 1
        error = server.ask(**ASK, model="other")["error"]
        assert (error["code"], error["retryable"]) == ("unavailable", True)


def test_a_half_copied_folder_is_loaded_when_its_manifest_comes(file):
    file.write('versions = "latest:1"')
    half = file.model / "3"
    half.mkdir()
    (half / "tokenizer.json").write_text("{}")
    with serving(file, "--poll_interval_s", "1") as server:
        assert server.ask(**ASK)["version"] == 2
        write_manifest(half)
        wait_until(lambda: states(server) == {"m/3": "READY"})
        assert server.ask(**ASK)["version"] == 3
        shutil.rmtree(half)  # what serves goes on until the next look finds what to do
        wait_until(lambda: states(server) == {"m/2": "READY"})


def test_a_crash_loop_in_the_canary_does_not_disturb_the_stable_version(file):
    file.write("traffic = { 1 = 95, 2 = 5 }\nlabels = { canary = 2 }")
    env = {"PYTHONPATH": str(FAULTY_WORKER)}
    with closing(RunningServer(file.model, *file.flags(), env=env)) as server:
        for _ in range(2):
            dying = server.ask(**{**marked("!!kill!!", 1), "version": "canary"})
            assert dying["error"]["code"] == "worker_crashed"
            counted = count_versions(server, 200)
            assert counted[1] + counted[2] == 200
        assert states(server)["m/1"] == "READY"


def test_a_load_for_which_there_is_no_memory_is_refused_before_it_starts(file):
    file.write("versions = [1]")
    flags = (*file.flags(), "--max_memory_bytes", str(35 << 20))
    little = {"qa_service.server.models.catalog:PROCESS_BYTES": 16 << 20}
    with running_server(file.model, *flags, constants=little) as server:
        pids = server.worker_pids()
        file.apply(server, "versions = [2]")
        server.wait_for_log("more than --max_memory_bytes")
        assert server.ask(**ASK)["version"] == 1
        assert server.worker_pids() == pids
        server.wait_for_log("1 instance of m, version 2 would take about")


def test_a_canary_that_cannot_be_loaded_does_not_stop_the_start(file):
    (file.model / "2" / "tokenizer.json").write_text("{")
    file.write("traffic = { 1 = 95, 2 = 5 }")
    with serving(file) as server:
        assert count_versions(server, 100) == {1: 100}
        assert server.ask(**ASK, version=2)["error"]["code"] == "unavailable"
        health = server.health()
        assert (health["ready"], list(health["failures"])) == (True, ["m/2"])


def test_a_model_with_no_version_that_can_be_loaded_stops_the_start(file):
    for number in (1, 2):
        (file.model / str(number) / "tokenizer.json").write_text("{")
    file.write('versions = "all"')
    ended = fail_to_start(*file.flags())
    assert "tokenizer.json is not what its manifest says" in ended.stderr.splitlines()[-1]
    assert ended.stdout.startswith("QA server listening on ")


# Transitions.


@pytest.mark.soak
@pytest.mark.parametrize("transition", ["swap", "rolling"])
def test_twenty_swaps_under_fifty_clients_fail_no_request(file, transition):
    """With every answer checked; `python -m benchmarks.fault swaps` measures it with a model."""
    keys = f'transition = "{transition}"'
    file.write(f"{keys}\nversions = [1]")
    with serving(file) as server:
        with under_load(QuietAnswers(server.port).plan(50, duration_s=300.0)) as samples:
            for number in range(20):
                file.apply(server, f"{keys}\nversions = [{2 - number % 2}]")
                server.wait_for_log("the reloaded model serves", number + 1)
        print(f"\n{Report.of(samples)}")
    assert_all_right(Report.of(samples))


class TestAnotherFile:
    """The file replaces a model or a route by one that is not loaded yet."""

    @pytest.fixture
    def loading(self, tmp_path):
        """A server of the model `m`, and a function that applies a file whose model must load."""
        file = ModelFile(tmp_path)
        file.write("versions = [1]")
        permits = Permits(tmp_path, 1)
        with closing(RunningServer(file.model, *file.flags(), env=permits.env)) as server:

            def apply(text):
                file.path.write_text(text.replace("PATH", f'path = "{file.model}"'))
                server.signal(signal.SIGHUP)
                wait_until(lambda: "LOADING" in states(server).values())

            yield server, apply, permits

    def ask_until(self, server, named, model):
        """Asks until the model answers; returns who answered."""
        seen = []
        while not seen or seen[-1] != model:
            reply = server.ask(**ASK, **named)
            seen.append(reply.get("model", reply.get("error")))
        return seen

    def test_a_model_that_is_renamed_serves_until_the_new_one_does(self, loading):
        server, apply, permits = loading
        apply("[models.n]\nPATH\nversions = [2]")
        for named in ({}, {"model": "m"}, {"model": "m", "version": 1}):
            assert server.ask(**ASK, **named)["model"] == "m"
        assert server.ask(**ASK, model="n")["error"]["code"] == "unavailable"
        assert server.health()["ready"]
        permits.give()
        assert set(self.ask_until(server, {}, "n")) <= {"m", "n"}
        wait_until(lambda: states(server) == {"n/2": "READY"})
        assert server.ask(**ASK, model="m")["error"]["message"] == "there is no model m; there is n"

    def test_a_new_default_route_applies_when_its_model_is_ready(self, loading):
        server, apply, permits = loading
        models = "[models.m]\nPATH\nversions = [1]\n[models.n]\nPATH\nversions = [2]\n"
        apply(f"{models}[routes.default]\ncascade = ['n']\n[routes.other]\ncascade = ['n']")
        assert server.ask(**ASK)["model"] == "m"
        assert server.ask(**ASK, model="other")["error"]["code"] == "unavailable"
        assert server.health()["ready"]
        permits.give()
        assert set(self.ask_until(server, {}, "n")) <= {"m", "n"}
        assert server.ask(**ASK, model="other")["model"] == "n"

    def test_a_changed_route_applies_when_its_model_is_ready_and_an_old_one_until_then(
        self, loading
    ):
        server, apply, permits = loading
        permits.give()
        models = "[models.m]\nPATH\nversions = [1]\n[models.n]\nPATH\nversions = [2]\n"
        apply(f"{models}[routes.r]\ncascade = ['m']\n[routes.old]\ncascade = ['m']")
        wait_until(lambda: set(states(server).values()) == {"READY"})
        models = "[models.n]\nPATH\nversions = [2]\n[models.o]\nPATH\nversions = [2]\n"
        apply(f"{models}[routes.r]\ncascade = ['o']")
        for route in ("r", "old"):
            assert server.ask(**ASK, model=route)["model"] == "m"
        permits.give()
        assert set(self.ask_until(server, {"model": "r"}, "o")) <= {"m", "o"}
        wait_until(lambda: set(states(server)) == {"n/2", "o/2"})
        assert server.ask(**ASK, model="old")["error"]["code"] == "unknown_model"

    def test_a_model_whose_successor_cannot_be_loaded_serves_on(self, tmp_path):
        file = ModelFile(tmp_path)
        file.write("versions = [1]")
        with serving(file) as server:
            (file.model / "2" / "tokenizer.json").write_text("{")
            text = file.path.read_text().replace("models.m", "models.n").replace("[1]", "[2]")
            file.path.write_text(text)
            server.signal(signal.SIGHUP)
            server.wait_for_log("tokenizer.json is not what its manifest says")
            assert server.ask(**ASK)["model"] == "m"
            assert server.health()["ready"]
            assert list(server.health()["failures"]) == ["n/2"]
            file.path.write_text(text.replace("[2]", "[1]"))
            server.signal(signal.SIGHUP)
            wait_until(lambda: states(server) == {"n/1": "READY"})


class TestUnfinishedFile:
    """The file is emptied or half written, as by an editor or a full disk."""

    def test_a_file_without_its_models_is_a_fault_unless_it_says_so(self, file):
        text = file.write("versions = [1]").read_text()
        with serving(file, "--poll_interval_s", "1") as server:
            pids = server.worker_pids()
            for content in ("", "[queue]\n", "# [models]\n"):
                file.path.write_text(content)
                wait_until(lambda: server.health()["reload_fault"])
                assert "has fewer models than before: m is" in server.health()["reload_fault"]
                assert server.ask(**ASK)["version"] == 1
                file.path.write_text(text)
                wait_until(lambda: server.health()["reload_fault"] is None)
            assert server.worker_pids() == pids
            file.path.write_text("[models]\n")
            wait_until(lambda: states(server) == {})
            assert server.ask(**ASK)["error"]["code"] == "unknown_model"
            file.path.write_text(text)
            wait_until(lambda: states(server) == {"m/1": "READY"})
