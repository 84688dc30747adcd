"""The steps of an engine on a GPU: from the fastest to the plain path that everybody uses.

    CUDA graphs ─▶ no CUDA graphs ─▶ no bound buffers ─▶ the CPU, where the user allows it

An instance takes the first step that gives the known answers. What passed is kept with the costs,
and the next start begins there. If no step of an engine passes, `auto` takes another: PyTorch's
last step is the model as `transformers` runs it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from qa_service.engine_catalogue import ROWS
from qa_service.errors import DeviceError, EngineFaultError, SetupError
from qa_service.instance.devices import CPU, DeviceAssignment
from qa_service.instance.engines import EngineConfig
from qa_service.instance.model_folder.costs_dir import keep, kept_path
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


@dataclass(frozen=True, slots=True)
class Ladder:
    """The steps of an engine for a model on this machine; `path` has the one that passed last."""

    engine_type: str
    config: EngineConfig
    device: str
    path: Path
    may_fall_back: bool = False

    @classmethod
    def of(
        cls,
        engine_type: str,
        config: EngineConfig,
        assigned: DeviceAssignment,
        model_dir: Path,
        key: str,
    ) -> Ladder:
        """The steps; `key` names what they depend on, in addition to the driver and the options."""
        words = f"{key} {engine_type} {config} {gpu_driver()}"
        row = ROWS.get((engine_type, config.precision))
        may_fall_back = assigned.may_fall_back and row is not None and CPU in row.devices
        path = kept_path(model_dir, words.encode(), "steps.")
        return cls(engine_type, config, assigned.device, path, may_fall_back)

    def climb(self, attempt: Callable[[EngineConfig], T]) -> T:
        """Returns what the first step that passes returns.

        Raises:
            SetupError: The last step cannot run the model.
            EngineFaultError: The last step computes wrongly.
        """
        steps = self._steps()
        while True:
            step = steps.pop(0)
            try:
                found = attempt(msgspec.structs.replace(self.config, **_CHANGES[step]))
            except (SetupError, EngineFaultError) as error:
                if isinstance(error, DeviceError):  # no step can use the device
                    steps = [one for one in steps if one == ON_THE_CPU]
                if not steps:
                    raise
                if steps[0] == ON_THE_CPU:
                    words = "this instance runs on the CPU and not on %s: %s"
                    logger.warning(words, self.device, error)
                else:
                    name = f"{self.engine_type} {self.config.precision} with {step}"
                    logger.warning("%s is left out for %s: %s", name, steps[0], error)
            else:
                if self.config.keeps and self.config.device != CPU and step != ON_THE_CPU:
                    keep(self.path, Passed(step))
                return found

    def _steps(self) -> list[str]:
        """The steps from the one that passed last."""
        if self.config.device == CPU:
            return [ON_THE_CPU]
        has_graphs = self.config.cuda_graphs
        steps = [step for step in _STEPS[self.engine_type] if has_graphs or step != _GRAPHS]
        if self.may_fall_back:
            steps.append(ON_THE_CPU)
        with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
            passed = msgspec.json.decode(self.path.read_bytes(), type=Passed).step
            return steps[steps.index(passed) :]
        return steps
