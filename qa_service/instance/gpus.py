"""The GPUs that CUDA sees, asked of its driver. As a program, prints them as JSON.

The driver's library (`libcuda.so.1`) follows CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the
libraries under a model do, so its GPU number N is their `cuda:N`; `nvidia-smi` follows neither.
A child process that runs only this file asks it: the driver may crash the process that loads it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_PROBE_TIMEOUT_S = 60.0
"""Without NVIDIA's persistence mode, `cuInit` takes seconds for each GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number for CUDA here, and the CUDA_VISIBLE_DEVICES that shows it alone."""

    index: int
    visible_as: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that CUDA sees, in the order of their index; `why_none` is for when it sees none."""

    found: tuple[Gpu, ...]
    why_none: str = ""


def find_gpus(environ: Mapping[str, str] | None = None) -> Gpus:
    """Asks the driver in a child process of this environment; if that fails, there is no GPU."""
    environ = os.environ if environ is None else environ
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(child.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Gpus((), f"the CUDA driver cannot be asked: {error}")
    sizes: list[int] = answer["memory_bytes"]
    found = (Gpu(i, visible_as(i, environ), size) for i, size in enumerate(sizes))
    return Gpus(tuple(found), answer["why_none"])


def visible_as(index: int, environ: Mapping[str, str]) -> str:
    """Names a GPU as CUDA_VISIBLE_DEVICES does; its index counts within a mask that is set."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    return mask.split(",")[index].strip() if mask else str(index)


def _ask_driver() -> list[int]:
    """The memory of each GPU, in bytes; CUDA driver API, "Initialization", "Device Management"."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(driver, name)(*arguments):
            raise OSError(f"{name} failed with CUDA error {code}")

    call("cuInit", 0)
    count, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    call("cuDeviceGetCount", ctypes.byref(count))
    sizes = []
    for index in range(count.value):
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        sizes.append(size.value)
    return sizes


def _main() -> None:
    sizes, why_none = [], "its driver counts none"
    try:
        sizes = _ask_driver()
    except (OSError, AttributeError) as error:
        why_none = str(error)
    print(json.dumps({"memory_bytes": sizes, "why_none": why_none}))


if __name__ == "__main__":
    _main()
