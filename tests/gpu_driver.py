"""A stand-in for CUDA's driver library, compiled on the spot: two GPUs that compute nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
#include <stddef.h>
#include <stdlib.h>
int cuInit(unsigned flags) { return getenv("BROKEN") ? 999 : 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index + 70; return 0; }
int cuDeviceTotalMem_v2(size_t *size, int device) {
    *size = device == 70 ? 80ull << 30 : 24ull << 30;
    return 0;
}
"""


def compile_driver(folder: Path) -> dict[str, str]:
    """Compiles it; returns an environment in which it is found."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    (folder / "cuda.c").write_text(_SOURCE)
    library = str(folder / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "cuda.c"], check=True)
    environ = {name: word for name, word in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**environ, "LD_LIBRARY_PATH": str(folder)}
