"""Starts the instances of a version: the local ones each on its device, the others on Ray."""

from __future__ import annotations

import msgspec

from qa_service.instance.devices import CPU, DeviceAssignment, devices_of, need_ray
from qa_service.instance.messages import Setup
from qa_service.logs import LogOptions
from qa_service.net.event_loop import EventLoop
from qa_service.server.instances.base import Worker, WorkerListener
from qa_service.server.instances.pool import WorkerFactory
from qa_service.server.instances.process import ProcessWorker, RayWorker


def make_factory(loop: EventLoop, logs: LogOptions, setup: Setup) -> WorkerFactory:
    """The function that starts a version's instances: each gets the setup with its device.

    Raises:
        DeviceError: A GPU is named that CUDA does not see.
        SetupError: The options ask for instances on Ray, which is not installed.
    """
    options = setup.options
    need_ray(options)
    devices = devices_of(options.num_inference_sessions, options.devices)
    remote = DeviceAssignment("cuda:0" if options.ray_num_gpus else CPU)

    def make(number: int, listener: WorkerListener) -> Worker:
        is_local = number < len(devices)
        kind = ProcessWorker if is_local else RayWorker
        device = devices[number] if is_local else remote
        own = msgspec.structs.replace(setup, device=device)
        return kind(number, loop, listener, own, logs=logs)

    return make
