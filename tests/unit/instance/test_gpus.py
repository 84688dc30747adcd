"""What CUDA's driver says; where there is none, a stand-in for its library is compiled."""

import sys

import pytest

from qa_service.instance.gpus import Gpu, find_gpus, visible_as
from tests.gpu_driver import compile_driver


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
        ("/bin/echo", "Expecting value"),
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
