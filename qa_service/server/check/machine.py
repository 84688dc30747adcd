"""The machine, the program's own packages, what is too small, and step by step what a GPU lacks."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import resource
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import qa_service
from qa_service.engine_catalogue import ENGINES, PROCESSOR_FLAGS
from qa_service.errors import DeviceError, hide_password
from qa_service.installation import install_hint, installed_version
from qa_service.instance.devices import AUTO, CPU, devices_of
from qa_service.instance.gpus import Gpus, find_gpus
from qa_service.instance.instance_options import InstanceOptions
from qa_service.logs import plural
from qa_service.machine import (
    allow_descriptors,
    gpu_driver,
    meminfo_bytes,
    num_cpus,
    processor,
)
from qa_service.server.check.report import Finding, error, ok, warning
from qa_service.server.config import OTHER_DESCRIPTORS, ServerConfig, changed_options

GIB = 1 << 30
LITTLE_MEMORY_BYTES = GIB
"""An instance of the built-in model takes 200 to 400 MiB."""
_PACKAGES = ("msgspec", "numpy", "tokenizers", "tantivy", "transformers", "ray", "grpcio")


def check_program(_: ServerConfig) -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield ok(f"qa-server {qa_service.__version__}, Python {platform.python_version()}, {system}")
    names = [package for engine in ENGINES.values() for package in engine.packages.values()]
    there = {name: installed_version(name) for name in dict.fromkeys([*names, *_PACKAGES])}
    yield ok(", ".join(f"{name} {version}" for name, version in there.items() if version))
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if there.get(name)]
    if len(both) > 1:
        yield warning(
            "onnxruntime and onnxruntime-gpu are both installed, and one hides the other",
            "python -m pip uninstall onnxruntime onnxruntime-gpu; then install one of them",
        )


def check_configuration(config: ServerConfig) -> Iterator[Finding]:
    """The options that are not the defaults, without passwords, and what is served by name."""
    changed = changed_options(ServerConfig(), config)
    for name in sorted(changed):
        section, _, option = name.partition(" ")
        value = getattr(getattr(config, section.strip("[]")), option)
        yield ok(f"{name} = {hide_password(str(value))}")
    if not changed:
        yield ok("every option has its default")
    for kind, named in (
        ("model", config.models),
        ("route", config.routes),
        ("collection", config.collections),
    ):
        if named:
            yield ok(f"{plural(len(named), kind)}: {', '.join(named)}")


def check_machine(config: ServerConfig) -> Iterator[Finding]:
    its = processor()
    formats = [name for name, flags in PROCESSOR_FLAGS.items() if flags & its.flags]
    yield ok(f"{its.name}; it computes in {', '.join(['float32', *formats])}")
    usable, there = num_cpus(), os.cpu_count() or 1
    yield ok(f"{plural(usable, 'CPU')} of {there} may be used, by affinity and the cgroup's quota")
    if shortage := find_cpu_shortage(config.models.values() or [config.instances]):
        yield warning(*shortage)
    yield from _memory()
    yield from _folders(config)
    now = datetime.now(UTC)
    newest = datetime.fromtimestamp(Path(qa_service.__file__).stat().st_mtime, UTC)
    words = f"the clock says {now:%Y-%m-%d %H:%M:%S} UTC"
    if now < newest:
        yield warning(f"{words}, before this program was installed", "timedatectl set-ntp on")
    else:
        yield ok(words)


def _memory() -> Iterator[Finding]:
    total, available = map(meminfo_bytes, ("MemTotal", "MemAvailable"))
    limit = 0  # what the innermost cgroup grants, in bytes; 0 without a limit
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
            number = int((Path("/sys/fs/cgroup") / name).read_text())
            limit = number if number < 1 << 60 else 0
            break
    words = f"{available / GIB:.1f} of {total / GIB:.1f} GiB of memory are available"
    yield ok(f"{words}; a cgroup's limit is {limit / GIB:.1f} GiB" if limit else words)
    if min(available, limit or available) < LITTLE_MEMORY_BYTES:
        yield warning("less than 1 GiB of memory is available", "end other programs, or get more")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield warning(f"a process may map {soft / GIB:.1f} GiB", "ulimit -v unlimited")
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        yield warning("there is no /dev/shm; Ray and PyTorch need it", "mount a tmpfs there")
    else:
        yield ok(f"/dev/shm has {free / GIB:.2f} GiB free")


def _folders(config: ServerConfig) -> Iterator[Finding]:
    home = os.environ.get("HOME", "")
    if not home or not _is_writable(Path(home)):
        yield warning(
            f"HOME ({home or 'not set'}) cannot be written; libraries keep their caches there",
            "HOME=/tmp",
        )
    else:
        yield ok(f"HOME ({home}) can be written")
    if temporary := temporary_folder():
        yield ok(f"{temporary} can be written")
    else:
        yield warning("there is no folder for temporary files", "TMPDIR=FOLDER")
    model = config.repository.model
    if model.is_dir() and not _is_writable(model):
        yield warning(
            f"{model} cannot be written: what is measured is measured again at each start",
            "start once with the folder writable, as who serves",
        )


def temporary_folder() -> Path | None:
    """The folder that `tempfile` takes, which finds it by writing a file there."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    usual = ("/tmp", "/var/tmp", "/usr/tmp", ".")
    folders = (Path(name) for name in (*named, *usual) if name)
    return next(filter(_is_writable, folders), None)


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


Shortage = tuple[str, str]
"""What is short, and what a person can do about it."""


def find_cpu_shortage(models: Iterable[InstanceOptions]) -> Shortage | None:
    """Compares the threads of all models' instances on the CPU with the CPUs that may be used."""
    wanted, usable = 0, num_cpus()
    for its in models:
        with contextlib.suppress(DeviceError):  # which ends a start, and has a line in `--check`
            devices = devices_of(its.num_inference_sessions, its.devices)
            on_cpu = sum(one.device == CPU for one in devices)
            wanted += on_cpu * (its.intra_op_num_threads or 1)
    if wanted <= usable:
        return None
    return (
        f"{plural(wanted, 'thread')} of instances share {plural(usable, 'CPU')}",
        f"--num_inference_sessions {usable} has one for each, if there is one model",
    )


def fitting_connections(wanted: int) -> tuple[int, int]:
    """How many connections fit into the limit of descriptors, which is raised if it can be.

    Returns them, at most as many as wanted, and the limit.
    """
    found = allow_descriptors(wanted + OTHER_DESCRIPTORS)
    return min(wanted, max(found // 2, found - OTHER_DESCRIPTORS)), found


def raise_descriptor_limit(config: ServerConfig) -> Shortage | None:
    """Raises the limit of descriptors to what all connections need, as far as that can be."""
    wanted = config.listen.max_connections
    fitting, found = fitting_connections(wanted)
    if fitting == wanted:
        return None
    return (
        f"at most {fitting} of --max_connections {wanted} fit into the limit of {found} "
        "descriptors",
        f"ulimit -n {wanted + OTHER_DESCRIPTORS}",
    )


# GPUs.

ROOT = Path("/")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_LIBRARIES = {
    "libcudart.so": ("12", "13"),
    "libcublas.so": ("12", "13"),
    "libcudnn.so": ("9",),
    "libnvinfer.so": ("10",),
}
"""By their name, the versions that packages of today are built for."""


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
    yield from (ok(words) for words, _ in _wanted())
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
    engine_type = config.instances.inference_engine_type
    onnx, torch = _wanted()
    needed = {"pytorch": [torch], AUTO: [onnx, torch]}.get(engine_type, [onnx])
    if not any(cuda for _, cuda in needed):
        hint = install_hint("gpu")
        remedy = f"in a fresh environment, install the extra gpu in place of cpu: {hint}"
        yield from ((words, remedy) for words, _ in needed)


def _wanted() -> list[tuple[str, str]]:
    """The CUDA that ONNX Runtime and PyTorch are built for: in words, and alone; empty for none.

    It is read of their files: to import them takes seconds.
    """
    return [
        _wanted_by(
            "onnxruntime", "capi/build_and_package_info.py", "cuda_version", "cudnn_version"
        ),
        _wanted_by("torch", "version.py", "cuda"),
    ]


def _wanted_by(package: str, file: str, *names: str) -> tuple[str, str]:
    """What a package wants, by the names of the versions of CUDA and of cuDNN in a file of it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return f"{package} is not installed", ""
    path = Path(next(iter(spec.submodule_search_locations)), file)
    text = path.read_text() if path.is_file() else ""
    patterns = (rf"^{name}\b[^=\n]*=\s*['\"]([\d.]+)" for name in names)
    found = [re.search(pattern, text, re.MULTILINE) for pattern in patterns]
    cuda, *cudnn = [its[1] if its else "" for its in found]
    if not cuda:
        return f"{package} is built without CUDA", ""
    return ", cuDNN ".join(filter(None, (f"{package} wants CUDA {cuda}", *cudnn))), cuda


def _found_libraries() -> Iterator[str]:
    specs = [importlib.util.find_spec(package) for package in ("nvidia", "tensorrt_libs")]
    wheels = [Path(path) for its in specs if its for path in its.submodule_search_locations or ()]
    for name, versions in _LIBRARIES.items():
        there = []
        for version in versions:
            file = f"{name}.{version}"
            try:
                ctypes.CDLL(file)
            except OSError:
                if not any(any(folder.rglob(file)) for folder in wheels):
                    continue
            there.append(version)
        yield f"{name}: {', '.join(there) or 'not found'} (known: {', '.join(versions)})"


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
