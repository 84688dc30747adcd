"""The GPUs that CUDA sees, asked of its driver.

The driver's library (`libcuda.so.1`) follows CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the
libraries under a model do, so its GPU number N is their `cuda:N`; `nvidia-smi` follows neither.
A child process, `gpu_probe`, asks it: the driver may crash the process that loads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

PROBE = Path(__file__).with_name("gpu_probe.py")

_PROBE_TIMEOUT_S = 60.0
"""Without NVIDIA's persistence mode, `cuInit` takes seconds for each GPU."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU: its number for CUDA here, and the CUDA_VISIBLE_DEVICES that shows it alone."""

    index: int
    visible_as: str
    memory_bytes: int


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs that CUDA sees, in the order of their index; `why_none` is for when it sees none."""

    found: tuple[Gpu, ...]
    why_none: str = ""


def find_gpus(environ: Mapping[str, str] | None = None) -> Gpus:
    """Asks the driver in a child process of this environment; if that fails, there is no GPU."""
    environ = os.environ if environ is None else environ
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", PROBE],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
        sizes, _, why_none = child.stdout.partition("\n")
        memory_bytes = [int(size) for size in sizes.split()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Gpus((), f"the CUDA driver cannot be asked: {error}")
    found = (Gpu(i, visible_as(i, environ), size) for i, size in enumerate(memory_bytes))
    return Gpus(tuple(found), why_none.strip())


def visible_as(index: int, environ: Mapping[str, str]) -> str:
    """Names a GPU as CUDA_VISIBLE_DEVICES does; its index counts within a mask that is set."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    return mask.split(",")[index].strip() if mask else str(index)
