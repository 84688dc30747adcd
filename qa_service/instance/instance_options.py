"""The options of a model's instances: all that may differ from one model to the next.

They are one struct, into which a configuration file's table is read for each model, and which one
message carries to a worker.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from qa_service.engine_catalogue import AUTO, EngineType, Precision
from qa_service.instance.batch_cost import BatchRule
from qa_service.options import Ms

START_TIMEOUT_S = 300.0
"""An instance that has not loaded and warmed up by then hangs: the slowest takes a tenth of it."""
BUILD_TIMEOUT_S = 1800.0
"""The same for TensorRT, which builds a program for each shape at its first start."""

_Count = Annotated[int, Meta(ge=0, le=1024)]
_Amount = Annotated[float, Meta(ge=0, le=1024)]
_Share = Annotated[float, Meta(gt=0, le=1)]
_Range = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,2}):[1-9][0-9]{0,2}\Z")]
_CLASS = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*\Z"
_DEVICE = r"(cpu|cuda:(0|[1-9][0-9]{0,3}))"


def _is_in_order(ray_instances: object) -> bool:
    fewest, _, most = str(ray_instances).partition(":")
    return not most or int(fewest) <= int(most)


class InstanceOptions(Struct, frozen=True, kw_only=True):
    """The instances of a model: how many, where, on what engine, their batches and timeouts."""

    num_inference_sessions: Annotated[
        _Count,
        Meta(
            description="number of inference instances, one worker process each; 0 only with "
            "--ray_instances"
        ),
    ] = 2
    ray_instances: Annotated[
        _Count | _Range,
        Meta(
            title="a number from 0 to 1024, or two as in 2:8, the smaller first",
            extra={"is_valid": _is_in_order},
            description="further instances, on a Ray cluster; 2:8 grows from 2 up to 8 with the "
            "queued work, and shrinks when instances are idle",
        ),
    ] = 0
    ray_address: Annotated[
        str,
        Meta(
            min_length=1,
            description="the cluster's address, host:port of its head; auto finds a cluster that "
            "runs on this machine",
        ),
    ] = "auto"
    ray_num_gpus: Annotated[
        _Amount, Meta(description="GPUs of the cluster that an instance on it takes; 0 for the CPU")
    ] = 0.0
    ray_push_model: Annotated[
        bool,
        Meta(
            description="send the model once to each node of the cluster that lacks it; otherwise "
            "every node must have the folder"
        ),
    ] = False
    inference_engine_type: Annotated[
        EngineType,
        Meta(
            description="the engine that runs the model; auto takes the fastest on this machine "
            "that answers as fp32 does, measured at the first start; instant answers without a "
            "model, to measure the server itself"
        ),
    ] = "auto"
    precision: Annotated[
        Precision,
        Meta(
            description="the model's precision: auto, as for the engine; onnx fp32, fp16 or "
            "int8; openvino fp32, bf16, int8, or int8_bf16 (int8 products, the rest in bf16); "
            "pytorch and tensorrt fp32, fp16 or bf16; int8 is for a CPU"
        ),
    ] = "auto"
    hooks: Annotated[
        Annotated[str, Meta(pattern=_CLASS)] | None,
        Meta(
            title="module:Class",
            description="your own class that changes questions, texts and answers in the instance "
            "(docs/HOOKS.md)",
        ),
    ] = None
    devices: Annotated[
        str,
        Meta(
            pattern=rf"^(auto|{_DEVICE}(,{_DEVICE})*)\Z",
            title="auto or a list of cpu, cuda:0, cuda:1, ...",
            description="where instances run, in turn: cpu, or cuda:0,cuda:1,...; auto takes every "
            "GPU, or the CPU",
        ),
    ] = "auto"
    gpu_memory_fraction: Annotated[
        _Share, Meta(description="share of a GPU's memory that one instance may take")
    ] = 1.0
    static_shapes_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=2**50,
            description="bytes of memory that each OpenVINO instance may take for static shapes, "
            "the model compiled for frequent lengths; 0 for none",
        ),
    ] = 512 * 2**20
    intra_op_num_threads: Annotated[
        _Count,
        Meta(
            description="threads within one operator, per instance; 0 is 1, or 2 if every instance "
            "has two cores and auto measured that as faster"
        ),
    ] = 0
    max_batch_size: Annotated[
        int, Meta(ge=1, le=4096, description="maximum number of requests in a batch")
    ] = 64
    max_batch_tokens: Annotated[
        int, Meta(ge=1, le=2**24, description="tokens in a batch, padding included")
    ] = 16384
    cost_table: Annotated[
        str,
        Meta(
            min_length=1,
            description="the cost of batches: auto takes the table kept with the model, or on a "
            "CPU begins with an estimate, and corrects it by every batch that runs; measure "
            "measures it at the start; off fills batches to their bounds; or a table's file, which "
            "is not changed",
        ),
    ] = "auto"
    execution_timeout_ms: Annotated[
        Ms, Meta(description="milliseconds a batch may run before its instance is killed")
    ] = 120_000
    self_test_interval_s: Annotated[
        int,
        Meta(
            ge=0,
            le=10**6,
            description="seconds between two self-tests of a serving instance by a known answer, "
            "when it is idle or else after its batch; an instance that fails is replaced; 0 for "
            "no self-tests",
        ),
    ] = 600

    @property
    def is_engine_open(self) -> bool:
        return AUTO in (self.inference_engine_type, self.precision)

    def names(self, engine_type: str, precision: str) -> bool:
        """Whether an engine is what they name, or one of those that `auto` leaves open."""
        is_named = self.inference_engine_type in (AUTO, engine_type)
        return is_named and self.precision in (AUTO, precision)

    @property
    def num_instances(self) -> int:
        """The minimum number of instances, local and remote."""
        return self.num_inference_sessions + self.ray_range[0]

    @property
    def ray_range(self) -> tuple[int, int]:
        fewest, _, most = str(self.ray_instances).partition(":")
        return int(fewest), int(most or fewest)

    @property
    def start_timeout_s(self) -> float:
        return BUILD_TIMEOUT_S if self.inference_engine_type == "tensorrt" else START_TIMEOUT_S

    @property
    def ray_num_cpus(self) -> int:
        return max(1, self.intra_op_num_threads)

    @property
    def execution_timeout_s(self) -> float:
        return self.execution_timeout_ms / 1e3

    @property
    def batch_rule(self) -> BatchRule:
        """Bounds on a batch; an instance adds what it measured."""
        return BatchRule(self.max_batch_size, self.max_batch_tokens)
