"""What the machine is too small for: said at the start, and by `--check` with what can be done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qa_service.errors import DeviceError
from qa_service.instance.devices import CPU, devices_of
from qa_service.instance.instance_options import InstanceOptions
from qa_service.logs import plural
from qa_service.machine import allow_descriptors, num_cpus
from qa_service.server.config import OTHER_DESCRIPTORS, ServerConfig


class Shortage(NamedTuple):
    """What is short, and what a person can do about it."""

    text: str
    remedy: str


def find_cpu_shortage(models: Iterable[InstanceOptions]) -> Shortage | None:
    """Compares the threads of all models' instances on the CPU with the CPUs that may be used."""
    wanted, usable = sum(map(_num_threads, models)), num_cpus()
    if wanted <= usable:
        return None
    return Shortage(
        f"{plural(wanted, 'thread')} of instances share {plural(usable, 'CPU')}",
        f"--num_inference_sessions {usable} has one for each, if there is one model",
    )


def _num_threads(options: InstanceOptions) -> int:
    try:
        devices = devices_of(options.num_inference_sessions, options.devices)
    except DeviceError:  # which ends a start, and has a line of its own in `--check`
        return 0
    return sum(its.device == CPU for its in devices) * (options.intra_op_num_threads or 1)


def raise_descriptor_limit(config: ServerConfig) -> Shortage | None:
    """Raises the limit of descriptors to what all connections need, as far as that can be."""
    wanted = config.listen.max_connections
    needed = wanted + OTHER_DESCRIPTORS
    if (found := allow_descriptors(needed)) >= needed:
        return None
    fitting = max(0, found - OTHER_DESCRIPTORS)
    return Shortage(
        f"at most {fitting} of --max_connections {wanted} fit into the limit of {found} "
        "descriptors",
        f"ulimit -n {needed}",
    )
