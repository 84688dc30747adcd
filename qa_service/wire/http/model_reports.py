"""Reports on a served model, in the Open Inference Protocol as Triton speaks it. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from qa_service.engine_catalogue import AUTO, ENGINES
from qa_service.wire.fields import ALWAYS_SHOWN, OUTPUTS
from qa_service.wire.http.open_inference import MAX_QUESTIONS
from qa_service.wire.messages import MAX_PRIORITY

INPUT_TYPES = {"question": "BYTES", "text": "BYTES"}
OUTPUT_TYPES = {name: OUTPUTS[name].datatype for name in ALWAYS_SHOWN}
_CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}
CASCADE = "cascade"
"""The engine of a route, which asks models."""

_PLATFORMS = {name: (engine.platform, engine.backend) for name, engine in ENGINES.items()} | {
    AUTO: ("", ""),
    CASCADE: (CASCADE, CASCADE),
}
"""Triton's names for the platform and the backend; empty before an engine is chosen."""

_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")

State = Literal["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class StatisticDuration:
    """Triton's: a count and its total time."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """A model's work since the server's start; a batch of eight counts its time eight times.

    Attributes:
        inference_count: Questions run.
        execution_count: Batches run.
        success: Requests answered, and their time from arrival to answer.
        compute_input: Tokenizing.
        compute_infer: The model.
        compute_output: Finding the answers.
        failures: Requests that failed, by Triton's reasons.
    """

    inference_count: int = 0
    execution_count: int = 0
    success: StatisticDuration = StatisticDuration()
    fail: StatisticDuration = StatisticDuration()
    queue: StatisticDuration = StatisticDuration()
    compute_input: StatisticDuration = StatisticDuration()
    compute_infer: StatisticDuration = StatisticDuration()
    compute_output: StatisticDuration = StatisticDuration()
    failures: Mapping[str, int] = field(default_factory=dict)
    cache_hits: int = 0
    cache_misses: int = 0


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One version of a model, or a route, field by field as on the wire."""

    name: Annotated[str, Meta(description="the model's, or the route's")]
    version: Annotated[str, Meta(description="its version; empty for a route")]
    engine_type: Annotated[str, Meta(description="`--inference_engine_type`; `cascade` of a route")]
    state: Annotated[State, Meta(description="as Triton's repository index has it")]
    is_ready: Annotated[bool, Meta(description="whether it is likely to answer")]
    reason: Annotated[str, Meta(description="why it is not ready or could not be loaded")]
    instances: Annotated[int, Meta(description="how many are wanted; 0 for a route")]
    max_queue_delay_us: Annotated[int, Meta(description="how long a batch may wait to fill")]
    is_on_gpu: Annotated[bool, Meta(description="whether its instances run on GPUs")] = False
    statistics: Annotated[
        ModelStatistics, Meta(description="the figures of `/v2/models/M/stats`, and more")
    ] = field(default_factory=ModelStatistics)
    labels: Annotated[Sequence[str], Meta(description="the labels that name it")] = ()
    share: Annotated[float, Meta(description="its share of the requests without a version")] = 0.0
    alive: Annotated[int, Meta(description="instances that can take batches")] = 0
    queue_length: Annotated[int, Meta(description="requests that wait for one")] = 0
    memory_bytes: Annotated[int, Meta(description="of its instances when they were ready")] = 0
    failed_loads: Annotated[int, Meta(description="failed loads in a row")] = 0
    versions: Annotated[Sequence[str], Meta(description="empty; `/v2/models/M` lists them")] = ()
    precision: Annotated[str, Meta(description="as `--precision` has it; empty for a route")] = ""
    cascade: Annotated[Sequence[str], Meta(description="the models that a route asks in turn")] = ()


def metadata(model: ModelReport) -> dict[str, object]:
    """A model's inputs and outputs: N questions, or [N, top_k] answers."""
    platform, _ = _PLATFORMS[model.engine_type]
    return {
        "name": model.name,
        "versions": [version for version in model.versions or [model.version] if version],
        "platform": platform,
        "inputs": [{"name": n, "datatype": t, "shape": [-1, 1]} for n, t in INPUT_TYPES.items()],
        "outputs": [{"name": n, "datatype": t, "shape": [-1, -1]} for n, t in OUTPUT_TYPES.items()],
    }


def config(model: ModelReport) -> dict[str, object]:
    """A model's configuration, as far as Triton's has fields for it."""
    platform, backend = _PLATFORMS[model.engine_type]
    device = "KIND_GPU" if model.is_on_gpu else "KIND_CPU"
    # What Triton's configuration has no fields for.
    name, value = "precision", model.precision
    if model.cascade:
        name, value = "cascade", ",".join(model.cascade)
    group = {"name": model.name, "kind": device, "count": model.instances}
    return {
        "name": model.name,
        "platform": platform,
        "backend": backend,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": MAX_QUESTIONS,
        "input": [_config_tensor(name, kind, 1) for name, kind in INPUT_TYPES.items()],
        "output": [_config_tensor(name, kind, -1) for name, kind in OUTPUT_TYPES.items()],
        "instance_group": [] if model.cascade else [group],
        "dynamic_batching": {
            "max_queue_delay_microseconds": model.max_queue_delay_us,
            "priority_levels": MAX_PRIORITY + 1,
            "default_priority_level": MAX_PRIORITY + 1,
        },
        "parameters": {name: {"string_value": value}},
    }


def _config_tensor(name: str, datatype: str, size: int) -> dict[str, object]:
    return {"name": name, "data_type": _CONFIG_TYPES[datatype], "dims": [size]}


def statistics(models: Sequence[ModelReport]) -> dict[str, object]:
    return {
        "model_stats": [
            {
                "name": model.name,
                "version": model.version,
                "inference_count": (done := model.statistics).inference_count,
                "execution_count": done.execution_count,
                "inference_stats": {name: asdict(getattr(done, name)) for name in _DURATIONS},
            }
            for model in models
            if not model.cascade
        ]
    }


def index(models: Sequence[ModelReport]) -> list[dict[str, str]]:
    fields = ("name", "version", "state", "reason")
    return [{field: getattr(model, field) for field in fields} for model in models]
