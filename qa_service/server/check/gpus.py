"""GPUs: what CUDA sees, what its libraries need, and what is missing, step by step."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qa_service.installation import install_hint
from qa_service.instance.devices import AUTO, CPU
from qa_service.instance.gpus import Gpus, find_gpus
from qa_service.machine import gpu_driver
from qa_service.server.check.report import Finding, error, ok, warning
from qa_service.server.config import ServerConfig

GIB = 1 << 30
ROOT = Path("/")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_LIBRARIES = {
    "libcudart.so": ("12", "13"),
    "libcublas.so": ("12", "13"),
    "libcudnn.so": ("9",),
    "libnvinfer.so": ("10",),
}
"""By their name, the versions that packages of today are built for."""
_WHEELS = ("nvidia", "tensorrt_libs")
"""Where pip puts NVIDIA's libraries."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The CUDA that an installed package is built for; empty if it is built without."""

    package: str
    is_installed: bool
    cuda: str = ""
    cudnn: str = ""

    def __str__(self) -> str:
        if not self.is_installed:
            return f"{self.package} is not installed"
        cudnn = f", cuDNN {self.cudnn}" if self.cudnn else ""
        return f"{self.package} wants CUDA {self.cuda}{cudnn}" if self.cuda else (
            f"{self.package} is built without CUDA"
        )  # fmt: skip


def check_gpus(config: ServerConfig, root: Path = ROOT) -> Iterator[Finding]:
    """What CUDA sees; where `--devices` names a GPU that is not there, what is missing."""
    devices = config.instances.devices
    if devices == CPU:
        yield ok("instances run on the CPU, as --devices says")
        return
    gpus = find_gpus()
    for gpu in gpus.found:
        yield ok(f"cuda:{gpu.index} has {gpu.memory_bytes / GIB:.1f} GiB of memory")
    if driver := gpu_driver(root):
        yield ok(f"driver: {driver}")
    complain, steps = error if devices != AUTO else warning, list(_steps(config, gpus, root))
    missing = [
        complain(f"step {number} of {len(steps)}: {text}", remedy)
        for number, (text, remedy) in enumerate(steps, 1)
    ]
    if not gpus.found and devices == AUTO:
        yield ok(f"instances run on the CPU: CUDA sees no GPU ({gpus.why_none})")
        if _pci_gpus(root):
            yield warning("but this machine has an NVIDIA GPU", missing[0].remedy)
        return
    yield from (ok(str(wanted)) for wanted in _all_wanted())
    yield from (ok(line) for line in _found_libraries())
    yield from missing


def _steps(config: ServerConfig, gpus: Gpus, root: Path) -> Iterator[tuple[str, str]]:
    """What is missing and its remedy, in the order in which a person goes to a GPU that serves."""
    if not gpus.found:
        if not _pci_gpus(root):
            yield (
                "no NVIDIA GPU is on this machine's PCI bus",
                "take a machine that has one, or pass one through; without a GPU: --devices cpu",
            )
        if not gpu_driver(root):
            yield (
                "NVIDIA's driver is not loaded",
                "install it on the host (Ubuntu: apt-get install nvidia-driver-580-server) and "
                "restart; nvidia-smi must list the GPU",
            )
        if "libcuda.so.1" in gpus.why_none:
            yield (
                "the driver's library libcuda.so.1 is not found here",
                "in a container: NVIDIA's container toolkit on the host, and docker run --gpus all",
            )
        elif gpu_driver(root):
            yield (f"CUDA sees no GPU: {gpus.why_none}", "look at CUDA_VISIBLE_DEVICES")
    yield from _missing_packages(config)


def _missing_packages(config: ServerConfig) -> Iterator[tuple[str, str]]:
    engine_type = config.instances.inference_engine_type
    onnx, torch = _all_wanted()
    needed = {"pytorch": [torch], AUTO: [onnx, torch]}.get(engine_type, [onnx])
    if any(wanted.cuda for wanted in needed):
        return
    for wanted in needed:
        remedy = (
            f"in a fresh environment, install the extra gpu in place of cpu: {install_hint('gpu')}"
        )
        yield str(wanted), remedy


def _all_wanted() -> tuple[Wanted, Wanted]:
    """What ONNX Runtime and PyTorch want, read of their files: to import them takes seconds."""
    onnx = _module_text("onnxruntime", "capi/build_and_package_info.py")
    torch = _module_text("torch", "version.py")
    return (
        Wanted("onnxruntime", onnx is not None, _value(onnx, "cuda_version"),
               _value(onnx, "cudnn_version")),
        Wanted("torch", torch is not None, _value(torch, "cuda")),
    )  # fmt: skip


def _module_text(module: str, name: str) -> str | None:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations)), name)
    return path.read_text() if path.is_file() else ""


def _value(text: str | None, name: str) -> str:
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([\d.]+)", text or "", re.MULTILINE)
    return found[1] if found else ""


def _found_libraries() -> Iterator[str]:
    for name, versions in _LIBRARIES.items():
        files = {version: f"{name}.{version}" for version in versions}
        there = [
            version for version, its in files.items() if _can_load(its) or any(_in_wheels(its))
        ]
        yield f"{name}: {', '.join(there) or 'not found'} (known: {', '.join(versions)})"


def _in_wheels(name: str) -> Iterator[Path]:
    for package in _WHEELS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from Path(folder).rglob(name)


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _pci_gpus(root: Path) -> list[Path]:
    """NVIDIA's display and 3D controllers, by their PCI vendor and class."""
    return [
        device
        for device in (root / "sys/bus/pci/devices").glob("*")
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY)
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
