"""The steps of an engine on a GPU: from the fastest to the plain path that everybody uses.

    CUDA graphs ─▶ no CUDA graphs ─▶ no bound buffers ─▶ the CPU, where the user allows it

An instance takes the first step that gives the known answers. What passed is kept with the costs,
and the next start begins there. If no step of an engine passes, `auto` takes another: PyTorch's
last step is the model as `transformers` runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from qa_service.engine_catalogue import ROWS
from qa_service.errors import DeviceError, EngineFaultError, SetupError
from qa_service.instance.devices import CPU, DeviceAssignment
from qa_service.instance.engines import EngineConfig
from qa_service.instance.model_folder.costs_dir import keep, kept_path, read_kept
from qa_service.machine import gpu_driver

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GRAPHS, _NO_GRAPHS, _UNBOUND = "CUDA graphs", "no CUDA graphs", "no bound buffers"
ON_THE_CPU = "the CPU"
_CHANGES: Mapping[str, Mapping[str, object]] = {
    _GRAPHS: {},
    _NO_GRAPHS: {"cuda_graphs": False},
    _UNBOUND: {"cuda_graphs": False, "bound_buffers": False},
    ON_THE_CPU: {"device": CPU},
}
_STEPS = {
    "onnx": (_GRAPHS, _NO_GRAPHS, _UNBOUND),
    "tensorrt": (_NO_GRAPHS, _UNBOUND),
    "pytorch": (_GRAPHS, _NO_GRAPHS),
}


class Passed(msgspec.Struct, frozen=True):
    step: str


def climb(
    engine_type: str,
    config: EngineConfig,
    assigned: DeviceAssignment,
    model_dir: Path,
    *,
    key: str,
    attempt: Callable[[EngineConfig], T],
) -> T:
    """Returns what the first step of an engine that passes returns.

    Args:
        key: Names what the steps depend on, in addition to the driver and the options.

    Raises:
        SetupError: The last step cannot run the model.
        EngineFaultError: The last step computes wrongly.
    """
    depends_on = f"{key} {engine_type} {config} {gpu_driver()}"
    path = kept_path(model_dir, depends_on.encode(), "steps.")
    steps = _steps(engine_type, config, assigned, path)
    while True:
        step = steps.pop(0)
        try:
            found = attempt(msgspec.structs.replace(config, **_CHANGES[step]))
        except (SetupError, EngineFaultError) as error:
            if isinstance(error, DeviceError):  # no step can use the device
                steps = [one for one in steps if one == ON_THE_CPU]
            if not steps:
                raise
            if steps[0] == ON_THE_CPU:
                words = "this instance runs on the CPU and not on %s: %s"
                logger.warning(words, assigned.device, error)
            else:
                name = f"{engine_type} {config.precision} with {step}"
                logger.warning("%s is left out for %s: %s", name, steps[0], error)
        else:
            if config.keeps and config.device != CPU and step != ON_THE_CPU:
                keep(path, Passed(step))
            return found


def _steps(
    engine_type: str, config: EngineConfig, assigned: DeviceAssignment, path: Path
) -> list[str]:
    """The steps from the one that passed last, which a file names."""
    if config.device == CPU:
        return [ON_THE_CPU]
    has_graphs = config.cuda_graphs
    steps = [step for step in _STEPS[engine_type] if has_graphs or step != _GRAPHS]
    row = ROWS.get((engine_type, config.precision))
    if assigned.may_fall_back and row is not None and CPU in row.devices:
        steps.append(ON_THE_CPU)
    passed = read_kept(path, Passed)
    return steps[steps.index(passed.step) :] if passed and passed.step in steps else steps
