"""Models and instances that compute wrongly: what is damaged is really damaged."""

import json
import re
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from harness.frames import ASK
from harness.models import link_model
from harness.process import wait_until
from harness.server import ONE_INSTANCE, RunningServer, running_server
from qa_service.autotune.engine_race import Record
from qa_service.autotune.engine_table import EngineTable, Finding
from qa_service.autotune.engine_trial import Instance
from qa_service.engine_catalogue import ONNX_FILE
from qa_service.files import sha256_of
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    load_manifest,
    save_manifest,
)
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions
from qa_service.wire.messages import Task
from tests.fault.faults import FAULTY_WORKER
from tests.http_calls import get
from tests.programs import fail_to_start

TESTED_EACH_SECOND = ("--self_test_interval_s", "1")
FLIPPED_BIT = 30
"""Of a float32: the highest bit of the exponent, which makes 0.01 a 10 to the 36."""


@pytest.fixture
def own_model(builtin_model, tmp_path):
    """A folder of the model with all known answers."""
    return link_model(builtin_model, tmp_path / "model")


def scale_a_weight(model: Path, factor: float) -> None:
    """Scales a matrix of the ONNX file, and makes the manifest's hash right again."""
    path = model / ONNX_FILE
    graph = onnx.load(path)
    matrices = [one for one in graph.graph.initializer if len(one.dims) == 2]
    weight = max(matrices[len(matrices) // 2 :], key=lambda one: one.dims[0] * one.dims[1])
    scaled = numpy_helper.to_array(weight) * np.float32(factor)
    weight.CopyFrom(numpy_helper.from_array(scaled, weight.name))
    path.unlink()  # a link to the file of all
    onnx.save(graph, path)
    rehash(model, ONNX_FILE)


def rehash(model: Path, name: str) -> None:
    manifest = load_manifest(model)
    manifest.files[name] = sha256_of(model / name)
    save_manifest(model, manifest)


def test_a_weight_scaled_by_three_is_not_served_though_its_hash_is_right(own_model):
    scale_a_weight(own_model, 3)
    (line,) = [
        line
        for line in fail_to_start("--model", own_model, *ONE_INSTANCE).stderr.splitlines()
        if "cannot start" in line or "cannot be loaded" in line
    ][:1]
    assert "onnx fp32 computes wrongly: asked " in line
    assert re.search(r"where -?[\d.]+ is known; the largest difference is [\d.]+", line)


def test_the_race_excludes_engines_that_compute_wrongly_and_gives_the_reason(own_model):
    scale_a_weight(own_model, 3)
    options = InstanceOptions(
        inference_engine_type="onnx", precision="fp32", devices="cpu", cost_table="off"
    )
    finding = Finding("onnx", "fp32")
    with Instance(Setup(str(own_model), options), LogOptions()) as instance:
        record = Record(finding, instance)
        record.warm_up([Task("Who wrote it?", "Ada wrote it.")])
    assert record.finding.failure.startswith("onnx fp32 computes wrongly: asked ")
    assert record.finding.failure in str(EngineTable("a processor", 0.98, (record.finding,)))


def test_known_answers_that_were_changed_are_refused_by_their_hash(own_model):
    path = own_model / KNOWN_ANSWERS_FILE
    path.write_bytes(path.read_bytes().replace(b"7", b"8", 1))
    assert KNOWN_ANSWERS_FILE in fail_to_start("--model", own_model, *ONE_INSTANCE).stderr


def test_a_model_without_known_answers_is_refused(own_model):
    manifest = load_manifest(own_model)
    manifest.files.pop(KNOWN_ANSWERS_FILE)
    save_manifest(own_model, manifest)
    why = f"there is no {KNOWN_ANSWERS_FILE} in {own_model}; make it with: "
    assert why in fail_to_start("--model", own_model, *ONE_INSTANCE).stderr


class Memory:
    """A process's memory, as `/proc` has it."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def find(self, pattern: bytes) -> list[int]:
        """The addresses of a pattern in memory that the process may write."""
        found = []
        with (self._folder / "mem").open("rb", 0) as memory:
            for line in (self._folder / "maps").read_text().splitlines():
                span, rights, *_ = line.split()
                start, end = (int(number, 16) for number in span.split("-"))
                if not rights.startswith("rw"):
                    continue
                memory.seek(start)
                data = memory.read(end - start)
                found += [start + match.start() for match in re.finditer(re.escape(pattern), data)]
        return found

    def flip(self, address: int, bit: int) -> None:
        with (self._folder / "mem").open("r+b", 0) as memory:
            memory.seek(address)
            (value,) = struct.unpack("<I", memory.read(4))
            memory.seek(address)
            memory.write(struct.pack("<I", value ^ (1 << bit)))


def a_weight_of_every_answer(model: Path) -> bytes:
    """Some values of the embedding of the fourth position: whatever is asked depends on them."""
    graph = onnx.load(model / ONNX_FILE)
    (positions,) = [one for one in graph.graph.initializer if one.dims == [512, 384]]
    return numpy_helper.to_array(positions)[3, :16].tobytes()


def self_tests(server: RunningServer) -> dict[str, int]:
    text = get(server.port, "/metrics").body.decode()
    found = re.findall(r'qa_self_tests_total\{.*?result="(\w+)".*?\} (\d+)', text)
    return {result: int(float(number)) for result, number in found}


def test_a_bit_flipped_in_a_running_instance_is_found_and_the_instance_replaced(quick_model):
    with running_server(quick_model, *ONE_INSTANCE, *TESTED_EACH_SECOND) as server:
        right = server.ask(**ASK)
        wait_until(lambda: self_tests(server)["passed"] > 0)
        assert self_tests(server)["failed"] == 0
        (pid,) = server.worker_pids()
        memory = Memory(pid)
        addresses = memory.find(a_weight_of_every_answer(quick_model))
        assert addresses
        for address in addresses:  # engines keep copies
            memory.flip(address, FLIPPED_BIT)
        server.wait_for_log("has failed its self-test", 1)
        server.wait_for_log("is ready", 2)
        assert re.search(r"ended \(onnx fp32 computes wrongly: asked .*; it held no", server.log)
        wait_until(lambda: re.search("answers? that it gave since", server.log))
        assert self_tests(server)["failed"] == 1
        again = server.ask(**ASK)
        assert (again["answer"], again["score"]) == (right["answer"], right["score"])


@pytest.mark.parametrize("kind", ["stale", "wrong"])
def test_if_the_replacement_is_wrong_too_the_version_is_not_ready_and_says_why(
    quick_model, tmp_path, kind
):
    """`stale` stands in for a CUDA program that returns the last batch."""
    damage = tmp_path / "damage"
    env = {"PYTHONPATH": str(FAULTY_WORKER), "QA_TEST_DAMAGE": str(damage)}
    server = RunningServer(quick_model, *ONE_INSTANCE, *TESTED_EACH_SECOND, env=env)
    with closing(server):
        right = server.ask(**ASK)
        damage.write_text(kind)
        server.wait_for_log("cannot be loaded", 1)
        health = server.health()
        assert not health["ready"]
        assert "onnx fp32 computes wrongly: asked " in health["reason"]
        assert server.ask(**ASK)["error"]["code"] == "unavailable"
        damage.unlink()
        wait_until(lambda: server.health()["ready"])
        assert server.ask(**ASK)["score"] == right["score"]


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_the_engines_that_are_installed_pass(builtin_model, engine):
    flags = (*ONE_INSTANCE, "--inference_engine_type", engine, "--precision", "int8")
    with running_server(builtin_model, *flags, *TESTED_EACH_SECOND) as server:
        wait_until(lambda: self_tests(server)["passed"] >= 2)
        assert json.dumps(self_tests(server)) and self_tests(server)["failed"] == 0
