"""Which devices instances run on, and the GPUs that the driver knows."""

import sys

import msgspec
import pytest

from qa_service.errors import DeviceError
from qa_service.instance.devices import DeviceAssignment, assign_devices, describe
from qa_service.instance.engines import EngineConfig
from qa_service.instance.gpus import Gpu, Gpus, find_gpus, visible_as
from qa_service.instance.instance_options import InstanceOptions
from tests.gpu_driver import compile_driver

TWO = Gpus((Gpu(0, "4", 80 << 30), Gpu(1, "7", 24 << 30)))
NONE = Gpus((), "no driver")


def assign(num_instances, devices, gpus):
    return assign_devices(num_instances, devices, find=lambda: gpus)


def test_instances_are_assigned_to_the_devices_in_turn():
    assigned = assign(5, "cuda:1,cuda:0,cpu", TWO)
    assert [p.device for p in assigned] == ["cuda:1", "cuda:0", "cpu", "cuda:1", "cuda:0"]
    assert [p.visible_as for p in assigned] == ["7", "4", "", "7", "4"]
    assert [p.gpu_memory_bytes >> 30 for p in assigned] == [24, 80, 0, 24, 80]
    assert not any(p.may_fall_back for p in assigned)


def test_auto_takes_every_gpu_and_may_fall_back():
    assigned = assign(3, "auto", TWO)
    assert [(p.device, p.may_fall_back) for p in assigned] == [
        ("cuda:0", True), ("cuda:1", True), ("cuda:0", True),
    ]  # fmt: skip


def test_auto_takes_the_cpu_if_there_is_no_gpu_and_logs_it(caplog):
    caplog.set_level("INFO")
    assert assign(2, "auto", NONE) == [DeviceAssignment(), DeviceAssignment()]
    assert "instances run on the CPU: CUDA sees no GPU (no driver)" in caplog.text


def test_the_driver_is_not_asked_for_the_cpu():
    def ask():
        raise AssertionError

    assert assign_devices(1, "cpu", find=ask)


@pytest.mark.parametrize(
    ("devices", "gpus", "words"),
    [("cuda:0", NONE, r"names cuda:0, but CUDA sees no GPU \(no driver\)"),
     ("cuda:0,cuda:2", TWO, "names cuda:2, but CUDA sees only cuda:0, cuda:1")],
)  # fmt: skip
def test_a_gpu_that_is_not_there_is_an_error(devices, gpus, words):
    with pytest.raises(DeviceError, match=words):
        assign(1, devices, gpus)


def test_devices_are_described_briefly_or_one_by_one():
    devices_ = ["cuda:0", "cuda:1", "cuda:0"]
    assert describe(devices_) == "cuda:0, cuda:1, cuda:0"
    assert describe(devices_[::2]) == "cuda:0"


def test_an_engine_gets_every_option_of_its_instance_and_its_device():
    options = InstanceOptions(
        precision="fp16", intra_op_num_threads=3, static_shapes_bytes=7, max_batch_size=5
    )
    config = EngineConfig.of(options, DeviceAssignment("cuda:2", "2", gpu_memory_bytes=1 << 30))
    for name, value in msgspec.structs.asdict(options).items():
        assert getattr(config, name) == value, name
    assert (config.device, config.cuda_index, config.gpu_memory_bytes) == ("cuda", 0, 1 << 30)


@pytest.fixture(scope="module")
def with_driver(tmp_path_factory):
    return compile_driver(tmp_path_factory.mktemp("driver"))


def test_the_driver_is_asked_for_each_gpu(with_driver):
    assert find_gpus(with_driver).found == (Gpu(0, "0", 80 << 30), Gpu(1, "1", 24 << 30))


def test_a_failing_driver_means_no_gpu_and_gives_the_reason(with_driver):
    gpus = find_gpus({**with_driver, "BROKEN": "1"})
    assert (gpus.found, gpus.why_none) == ((), "cuInit failed with CUDA error 999")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("/bin/false", "returned non-zero exit status 1"),
        ("/bin/echo", "invalid literal"),
        ("/no/such/program", "No such file or directory"),
    ],
)
def test_a_failing_probe_means_no_gpu_and_gives_the_reason(monkeypatch, program, why):
    monkeypatch.setattr(sys, "executable", program)
    gpus = find_gpus()
    assert gpus.found == ()
    assert gpus.why_none.startswith("the CUDA driver cannot be asked: ")
    assert why in gpus.why_none


def test_no_driver_is_no_gpu():
    gpus = find_gpus({"LD_LIBRARY_PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": ""})
    assert gpus.found == ()


@pytest.mark.parametrize(
    ("mask", "index", "name"),
    [(None, 1, "1"), ("2,3", 1, "3"), ("GPU-8932f937, GPU-1b2f", 1, "GPU-1b2f"), ("5", 0, "5")],
)
def test_a_gpu_is_named_through_the_visible_devices_mask(mask, index, name):
    assert visible_as(index, {"CUDA_VISIBLE_DEVICES": mask} if mask else {}) == name
