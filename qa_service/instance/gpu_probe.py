"""A program that asks CUDA's driver for the GPUs that it sees, as `gpus` has it.

Each start of a server runs it, so it loads nothing else.

    python -I -S gpu_probe.py

It prints the memory of each GPU in bytes, on one line, and then why there is none.
"""

from __future__ import annotations

import ctypes


def ask_driver() -> list[int]:
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


def main() -> None:
    sizes, why_none = [], "its driver counts none"
    try:
        sizes = ask_driver()
    except (OSError, AttributeError) as error:
        why_none = str(error)
    print(*sizes)
    print(why_none)


if __name__ == "__main__":
    main()
