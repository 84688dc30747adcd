"""The programs of a version's instances: the local ones each on its device, the others on Ray.

    loop ──channel── bridge process ──Ray── actor process on a node ──channel── local worker

To the loop a bridge is a worker process like any other. The loop's process never imports Ray, which
ends its process when it loses the cluster's head.
"""

from __future__ import annotations

from functools import partial

import msgspec

from qa_service.instance.channel import WORKER_PROGRAM, launch
from qa_service.instance.devices import CPU, DeviceAssignment, devices_of, need_ray
from qa_service.instance.worker_messages import Setup
from qa_service.logs import LogOptions
from qa_service.server.instances.base import InstanceProgram
from qa_service.server.instances.pool import ProgramFactory

RAY_PROGRAM = "qa_service.instance.ray_main"


def make_factory(logs: LogOptions, setup: Setup) -> ProgramFactory:
    """The function that says how a version's instances are started, each with its device.

    Raises:
        DeviceError: A GPU is named that CUDA does not see.
        SetupError: The options ask for instances on Ray, which is not installed.
    """
    options = setup.options
    need_ray(options)
    devices = devices_of(options.num_inference_sessions, options.devices)
    remote = DeviceAssignment("cuda:0" if options.ray_num_gpus else CPU)

    def make(number: int) -> InstanceProgram:
        is_remote = number >= len(devices)
        own = msgspec.structs.replace(setup, device=remote if is_remote else devices[number])
        program = RAY_PROGRAM if is_remote else WORKER_PROGRAM
        return InstanceProgram(own, partial(launch, program, own, logs), is_remote)

    return make
