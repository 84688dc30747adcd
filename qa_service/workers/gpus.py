"""The GPUs that CUDA sees, asked of its driver. As a program, prints them as JSON.

The driver's library (`libcuda.so.1`) heeds CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the
libraries under a model do, so its GPU number N is their `cuda:N`; `nvidia-smi` heeds neither.
It is asked in a child process, which runs this file and nothing else: what the driver maps,
opens and may crash of stays out of the loop's process.
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


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        index: Its number, as this process's CUDA would count.
        visible_as: What CUDA_VISIBLE_DEVICES has to be for a process to see it alone.
        memory_bytes: All the memory it has.
    """

    index: int
    visible_as: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the driver answered.

    Attributes:
        found: The GPUs that CUDA sees, by their index.
        why_none: Why there are none, if that is known.
    """

    found: tuple[Gpu, ...]
    why_none: str = ""


def find_gpus(environ: Mapping[str, str] | None = None) -> Gpus:
    """Asks a child process what the driver says; at worst it says that there is no GPU.

    Args:
        environ: The environment whose GPUs are meant; this process's if None.
    """
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
    """Names the GPU of that index as CUDA_VISIBLE_DEVICES does; that may already be a mask."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    return mask.split(",")[index].strip() if mask else str(index)


def _ask_driver() -> list[int]:
    """Returns the memory of each GPU, in bytes.

    The calls are those of the CUDA driver API's "Initialization" and "Device Management".
    """
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
    sizes, why_none = [], ""
    try:
        sizes = _ask_driver()
    except (OSError, AttributeError) as error:
        why_none = str(error)
    print(json.dumps({"memory_bytes": sizes, "why_none": why_none}))


if __name__ == "__main__":
    _main()
