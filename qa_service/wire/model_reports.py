"""What is said of a served model, in the Open Inference Protocol as Triton has it. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from qa_service.engine_catalogue import AUTO, ENGINES
from qa_service.wire.messages import MAX_PRIORITY
from qa_service.wire.open_inference import INPUTS, MAX_QUESTIONS, OUTPUTS

_CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}
CASCADE = "cascade"
"""A route's engine: it asks models."""

_PLATFORMS = {name: (engine.platform, engine.backend) for name, engine in ENGINES.items()} | {
    AUTO: ("", ""),
    CASCADE: (CASCADE, CASCADE),
}
"""The platform and the backend, as Triton names them; none before an engine is chosen."""


State = Literal["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class StatisticDuration:
    """A count and its total time in nanoseconds, as in Triton's statistics."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """What a model has done since the server's start; a batch of eight counts its time eight times.

    Attributes:
        inference_count: Questions run.
        execution_count: Batches run.
        success: Requests answered, and their time from arrival to answer.
        fail: Requests that failed.
        queue: Their time in the queue.
        compute_input: Their batches' time for tokenizing.
        compute_infer: For the model.
        compute_output: For reading the answers.
        failures: Requests that failed, by Triton's reasons.
        cache_hits: Requests answered from the cache.
        cache_misses: Requests that the cache did not have.
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
    engine_type: Annotated[
        str, Meta(description="as `--inference_engine_type` has it; `cascade` for a route")
    ]
    state: Annotated[State, Meta(description="as Triton's repository index has it")]
    is_ready: Annotated[bool, Meta(description="whether it can be expected to answer")]
    reason: Annotated[
        str,
        Meta(
            description="why not, or why it could not be loaded; empty if there is nothing to say"
        ),
    ]
    instances: Annotated[int, Meta(description="how many there should be; 0 for a route")]
    max_queue_delay_us: Annotated[
        int, Meta(description="how long a batch may wait to fill, in microseconds")
    ]
    is_on_gpu: Annotated[bool, Meta(description="whether its instances run on GPUs")] = False
    statistics: Annotated[
        ModelStatistics,
        Meta(description="what it has done: the figures of `/v2/models/M/stats`, and more"),
    ] = field(default_factory=ModelStatistics)
    labels: Annotated[Sequence[str], Meta(description="the labels that name it")] = ()
    share: Annotated[
        float, Meta(description="its share of the requests that name no version, 0 to 1")
    ] = 0.0
    alive: Annotated[int, Meta(description="instances that can take batches")] = 0
    queue_length: Annotated[int, Meta(description="requests that wait for one")] = 0
    memory_bytes: Annotated[
        int, Meta(description="memory of its instances, as measured when they were ready")
    ] = 0
    failed_loads: Annotated[int, Meta(description="how often in a row it could not be loaded")] = 0
    versions: Annotated[Sequence[str], Meta(description="empty; `/v2/models/M` lists them")] = ()
    precision: Annotated[str, Meta(description="as `--precision` has it; empty for a route")] = ""
    cascade: Annotated[
        Sequence[str], Meta(description="the models that a route asks, in turn; empty for a model")
    ] = ()


def metadata(model: ModelReport) -> dict[str, object]:
    """Its inputs and outputs: N questions, or [N, top_k] answers."""
    platform, _ = _PLATFORMS[model.engine_type]
    return {
        "name": model.name,
        "versions": [version for version in model.versions or [model.version] if version],
        "platform": platform,
        "inputs": [{"name": n, "datatype": t, "shape": [-1, 1]} for n, t in INPUTS.items()],
        "outputs": [{"name": n, "datatype": t, "shape": [-1, -1]} for n, t in OUTPUTS.items()],
    }


def config(model: ModelReport) -> dict[str, object]:
    """Its configuration, as far as Triton's has words for it."""
    platform, backend = _PLATFORMS[model.engine_type]
    return {
        "name": model.name,
        "platform": platform,
        "backend": backend,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": MAX_QUESTIONS,
        "input": [_config_tensor(name, kind, 1) for name, kind in INPUTS.items()],
        "output": [_config_tensor(name, kind, -1) for name, kind in OUTPUTS.items()],
        "instance_group": [] if model.cascade else [_instance_group(model)],
        "dynamic_batching": {
            "max_queue_delay_microseconds": model.max_queue_delay_us,
            "priority_levels": MAX_PRIORITY + 1,
            "default_priority_level": MAX_PRIORITY + 1,
        },
        "parameters": _config_parameters(model),
    }


def _instance_group(model: ModelReport) -> dict[str, object]:
    kind = "KIND_GPU" if model.is_on_gpu else "KIND_CPU"
    return {"name": model.name, "kind": kind, "count": model.instances}


def _config_parameters(model: ModelReport) -> dict[str, object]:
    """What Triton's configuration has no field for."""
    if model.cascade:
        return {"cascade": {"string_value": ",".join(model.cascade)}}
    return {"precision": {"string_value": model.precision}}


def _config_tensor(name: str, datatype: str, size: int) -> dict[str, object]:
    return {"name": name, "data_type": _CONFIG_TYPES[datatype], "dims": [size]}


def statistics(models: Sequence[ModelReport]) -> dict[str, object]:
    """What they have done; routes count elsewhere."""
    return {"model_stats": [_model_statistics(model) for model in models if not model.cascade]}


def _model_statistics(model: ModelReport) -> dict[str, object]:
    done = model.statistics
    return {
        "name": model.name,
        "version": model.version,
        "inference_count": done.inference_count,
        "execution_count": done.execution_count,
        "inference_stats": {
            name: {"count": span.count, "ns": span.ns}
            for name in ("success", "fail", "queue", "compute_input", "compute_infer",
                         "compute_output")
            for span in [getattr(done, name)]
        },
    }  # fmt: skip


def index(models: Sequence[ModelReport]) -> list[dict[str, str]]:
    """What is in the repository, and how it is."""
    return [
        {
            "name": model.name,
            "version": model.version,
            "state": model.state,
            "reason": model.reason,
        }
        for model in models
    ]
