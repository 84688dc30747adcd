"""Which device each instance runs on, and the loop's scheduling priority.

Instances take the named devices in turn. If a named GPU is missing, the server does not start;
only `auto` takes the CPU instead, and logs that.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import msgspec

from qa_service.engine_catalogue import is_installed
from qa_service.errors import DeviceError, SetupError
from qa_service.installation import install_hint
from qa_service.instance.gpus import Gpu, Gpus, find_gpus
from qa_service.instance.instance_options import InstanceOptions

logger = logging.getLogger(__name__)

AUTO = "auto"
CPU = "cpu"


class DeviceAssignment(msgspec.Struct, frozen=True, array_like=True):
    """Where one instance runs.

    Attributes:
        device: `cpu` or `cuda:N`, as the server's process numbers GPUs.
        visible_as: CUDA_VISIBLE_DEVICES in the instance's process, which so sees its own GPU alone,
            as number 0; empty hides every GPU.
        gpu_memory_bytes: All the memory of the GPU; 0 on a CPU.
        may_fall_back: Whether it may run on the CPU if its libraries cannot use the GPU.
    """

    device: str = CPU
    visible_as: str = ""
    gpu_memory_bytes: int = 0
    may_fall_back: bool = False


def assign_devices(
    num_instances: int, devices: str, find: Callable[[], Gpus] = find_gpus
) -> list[DeviceAssignment]:
    """Decides where the instances run; `find` is not called if `devices` is `cpu`."""
    gpus = Gpus(()) if devices == CPU else find()
    chosen: Sequence[Gpu | None] = gpus.found or [None]
    if devices != AUTO:
        chosen = [_named(word, gpus) for word in devices.split(",")]
    elif not gpus.found:
        logger.info("instances run on the CPU: CUDA sees no GPU (%s)", gpus.why_none)
    assigned = [
        on_gpu(gpu, may_fall_back=devices == AUTO) if gpu else DeviceAssignment() for gpu in chosen
    ]
    return [assigned[number % len(assigned)] for number in range(num_instances)]


_find_gpus_once = functools.cache(find_gpus)


@functools.cache
def devices_of(num_instances: int, devices: str) -> Sequence[DeviceAssignment]:
    """The devices of a number of instances; that there is no GPU is logged once."""
    return assign_devices(num_instances, devices, _find_gpus_once)


def first_device(options: InstanceOptions) -> DeviceAssignment | None:
    """The first instance's device, on which engines are measured; None if all are on Ray."""
    return next(iter(devices_of(options.num_inference_sessions, options.devices)), None)


def on_gpu(gpu: Gpu, *, may_fall_back: bool) -> DeviceAssignment:
    device = f"cuda:{gpu.index}"
    return DeviceAssignment(device, gpu.visible_as, gpu.memory_bytes, may_fall_back)


def _named(word: str, gpus: Gpus) -> Gpu | None:
    if word == CPU:
        return None
    index = int(word.partition(":")[2])
    if index < len(gpus.found):
        return gpus.found[index]
    there = ", ".join(f"cuda:{gpu.index}" for gpu in gpus.found)
    seen = f"only {there}" if there else f"no GPU ({gpus.why_none})"
    raise DeviceError(f"--devices names {word}, but CUDA sees {seen}")


def describe(devices: Sequence[str]) -> str:
    return devices[0] if len(set(devices)) == 1 else ", ".join(devices)


def need_ray(options: InstanceOptions) -> None:
    if options.ray_range[1] and not is_installed("ray"):
        raise SetupError(
            f"--ray_instances {options.ray_instances}: Ray is not installed: {install_hint('ray')}"
        )
