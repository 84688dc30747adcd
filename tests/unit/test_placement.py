"""Sessions on devices and cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from qa_service.errors import DeviceError
from qa_service.gpus import Gpu, Gpus
from qa_service.placement import (
    Place,
    Placement,
    available_cores,
    describe,
    parse_devices,
    place_sessions,
    share_cores,
)

TWO = Gpus((Gpu(0, "4", 80 << 30), Gpu(1, "7", 24 << 30)))
NONE = Gpus((), "no driver")


def place(num_sessions, devices, gpus, affinity="off", cores_per_session=1):
    return place_sessions(
        num_sessions,
        devices,
        cores_per_session=cores_per_session,
        cpu_affinity=affinity,
        find=lambda: gpus,
    )


def test_sessions_go_round_the_devices():
    placements = place(5, "cuda:1,cuda:0,cpu", TWO)
    assert [p.device for p in placements] == ["cuda:1", "cuda:0", "cpu", "cuda:1", "cuda:0"]
    assert [p.visible_as for p in placements] == ["7", "4", "", "7", "4"]
    assert [p.gpu_memory_bytes >> 30 for p in placements] == [24, 80, 0, 24, 80]
    assert not any(p.may_fall_back for p in placements)


def test_auto_takes_every_gpu_and_may_fall_back():
    placements = place(3, "auto", TWO)
    assert [(p.device, p.may_fall_back) for p in placements] == [
        ("cuda:0", True), ("cuda:1", True), ("cuda:0", True),
    ]  # fmt: skip


def test_auto_takes_the_cpu_if_there_is_no_gpu_and_says_so(caplog):
    caplog.set_level("INFO")
    assert place(2, "auto", NONE) == [Placement(), Placement()]
    assert "sessions run on the CPU: CUDA sees no GPU (no driver)" in caplog.text


def test_the_driver_is_not_asked_for_the_cpu():
    def ask():
        raise AssertionError

    assert place_sessions(1, "cpu", cores_per_session=1, cpu_affinity="off", find=ask)


@pytest.mark.parametrize(
    ("devices", "gpus", "words"),
    [("cuda:0", NONE, r"names cuda:0, but CUDA sees no GPU \(no driver\)"),
     ("cuda:0,cuda:2", TWO, "names cuda:2, but CUDA sees only cuda:0, cuda:1")],
)  # fmt: skip
def test_a_gpu_that_is_not_there_is_an_error(devices, gpus, words):
    with pytest.raises(DeviceError, match=words):
        place(1, devices, gpus)


@pytest.mark.parametrize("word", ["auto", "cpu", "cuda:0", "cuda:0,cuda:11", "cpu,cuda:0"])
def test_devices_that_are_understood(word):
    assert parse_devices(word) == word


@pytest.mark.parametrize("word", ["", "gpu", "cuda", "cuda:", "cuda:01", "cuda:0,", "auto,cpu"])
def test_devices_that_are_not(word):
    with pytest.raises(ValueError, match="neither auto nor a list"):
        parse_devices(word)


def test_cores_are_shared_in_order_and_only_if_there_are_enough():
    assert share_cores(2, 2, [0, 2, 4, 6, 1]) == [(0, 2), (4, 6)]
    assert share_cores(3, 2, [0, 2, 4, 6, 1]) == [(), (), ()]


def test_each_session_on_a_cpu_has_a_core_of_its_own():
    cores = available_cores()
    assert sorted(cores) == sorted(os.sched_getaffinity(0))
    placements = place(len(cores), "cpu", NONE, "auto")
    assert [p.cores for p in placements] == [(core,) for core in cores]
    assert all(not p.cores for p in place(len(cores) + 1, "cpu", NONE, "auto"))
    assert all(not p.cores for p in place(1, "cpu", NONE, "off"))


def test_a_process_keeps_to_its_cores():
    core = available_cores()[-1]
    code = (
        "import os; from qa_service.placement import Placement; "
        f"Placement(cores=({core},)).keep_to_cores(); print(os.sched_getaffinity(0))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{{{core}}}\n"


def test_where_sessions_are_is_said_shortly_or_one_by_one():
    places = [Place(i, device, ()) for i, device in enumerate(["cuda:0", "cuda:1", "cuda:0"])]
    assert describe(places) == "cuda:0, cuda:1, cuda:0"
    assert describe(places[::2]) == "cuda:0"
