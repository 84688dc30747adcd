"""Where each session runs: its device, and on a CPU its own cores; and before whom the loop runs.

Sessions go round the devices that were named, in turn. Asked for a GPU that is not there, the
server does not start; only `auto` takes the CPU instead, and says so.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_service.errors import DeviceError, SetupError
from qa_service.gpus import Gpu, Gpus, find_gpus

logger = logging.getLogger(__name__)

AUTO = "auto"
CPU = "cpu"
CPU_AFFINITIES = ("auto", "off")

_NO_GPU = "its driver counts none"
_DEVICE = re.compile(r"cpu|cuda:(0|[1-9]\d{0,3})")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one session runs.

    Attributes:
        device: `cpu` or `cuda:N`, as the server's own process would number it.
        cuda_index: The GPU's number for the session's libraries; 0 in a process that sees no other.
        visible_as: What CUDA_VISIBLE_DEVICES is in the session's process; empty hides every GPU.
        gpu_memory_bytes: All the memory of the GPU; 0 on a CPU.
        cores: The cores it keeps to; none for any.
        may_fall_back: Whether it may run on the CPU if its libraries cannot use the GPU.
    """

    device: str = CPU
    cuda_index: int = 0
    visible_as: str = ""
    gpu_memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    may_fall_back: bool = False

    def keep_to_cores(self) -> None:
        """Binds the calling process, and every thread it starts from now on, to its cores."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session really is, field by field as in the answer to `stats`.

    Attributes:
        session: Its number.
        device: `cpu` or `cuda:N`.
        cores: Those it keeps to; none for any.
    """

    session: int
    device: str
    cores: tuple[int, ...]


def run_in_real_time() -> None:
    """Has the kernel run the calling thread before all ordinary ones; what it starts is ordinary.

    A kernel that preempts lazily or not at all lets an ordinary thread that is woken on a busy core
    wait for that core's next tick, 4 ms at 250 Hz, however low the priority of what runs there.
    Linux, sched(7).

    Raises:
        SetupError: This process may not.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        raise SetupError(
            "real-time priority is not permitted here: it takes CAP_SYS_NICE (docker run --cap-add "
            "SYS_NICE) or a limit on it above 0 (ulimit -r)"
        ) from None


def parse_devices(word: str) -> str:
    """Checks `auto` or a list such as `cuda:0,cuda:1`.

    Raises:
        ValueError: It is neither.
    """
    if word != AUTO and not all(map(_DEVICE.fullmatch, word.split(","))):
        raise ValueError(f"{word!r} is neither auto nor a list of cpu, cuda:0, cuda:1, ...")
    return word


def place_sessions(
    num_sessions: int,
    devices: str,
    *,
    cores_per_session: int,
    cpu_affinity: str,
    find: Callable[[], Gpus] = find_gpus,
) -> list[Placement]:
    """Decides where the sessions run.

    Args:
        num_sessions: How many there are.
        devices: What `parse_devices` lets pass.
        cores_per_session: Threads that compute in one session.
        cpu_affinity: One of `CPU_AFFINITIES`.
        find: Asks for the GPUs; not called if only the CPU is named.

    Raises:
        DeviceError: A GPU is named that CUDA does not see.
    """
    gpus = _choose(devices, find)
    mine = [gpus[number % len(gpus)] for number in range(num_sessions)]
    on_cpu = mine.count(None)
    cores = share_cores(on_cpu, cores_per_session, available_cores() if on_cpu else [])
    own = iter(cores if cpu_affinity == "auto" else [()] * on_cpu)
    return [
        _on_gpu(gpu, may_fall_back=devices == AUTO) if gpu else Placement(cores=next(own))
        for gpu in mine
    ]


def _on_gpu(gpu: Gpu, *, may_fall_back: bool) -> Placement:
    return Placement(
        device=f"cuda:{gpu.index}",
        cuda_index=gpu.index,
        visible_as=gpu.visible_as,
        gpu_memory_bytes=gpu.memory_bytes,
        may_fall_back=may_fall_back,
    )


def _choose(devices: str, find: Callable[[], Gpus]) -> Sequence[Gpu | None]:
    """Returns the devices to go round; None is the CPU."""
    if devices == CPU:
        return [None]
    gpus = find()
    if devices == AUTO:
        if not gpus.found:
            logger.info("sessions run on the CPU: CUDA sees no GPU (%s)", gpus.why_none or _NO_GPU)
        return gpus.found or [None]
    return [_named(word, gpus) for word in devices.split(",")]


def _named(word: str, gpus: Gpus) -> Gpu | None:
    if word == CPU:
        return None
    index = int(word.partition(":")[2])
    if index < len(gpus.found):
        return gpus.found[index]
    there = ", ".join(f"cuda:{gpu.index}" for gpu in gpus.found)
    seen = f"only {there}" if there else f"no GPU ({gpus.why_none or _NO_GPU})"
    raise DeviceError(f"--devices names {word}, but CUDA sees {seen}")


def describe(places: Sequence[Place]) -> str:
    """Says where sessions run: one device if it is that of all, or each one's in turn."""
    devices = [place.device for place in places]
    return devices[0] if len(set(devices)) == 1 else ", ".join(devices)


def share_cores(num_sessions: int, per_session: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Gives each session cores of its own, in order; none to any if there are not enough."""
    if num_sessions * per_session > len(cores):
        return [()] * num_sessions
    return [tuple(cores[i * per_session :][:per_session]) for i in range(num_sessions)]


def available_cores() -> list[int]:
    """The cores this process may use; hardware threads of a core already named come last."""
    first: list[int] = []
    second: list[int] = []
    seen: set[str] = set()
    for core in sorted(os.sched_getaffinity(0)):
        siblings = _siblings(core)
        (second if siblings in seen else first).append(core)
        seen.add(siblings)
    return first + second


def _siblings(core: int) -> str:
    try:
        return Path(_SIBLINGS.format(core)).read_text().strip()
    except OSError:  # not every kernel and sandbox says
        return str(core)
