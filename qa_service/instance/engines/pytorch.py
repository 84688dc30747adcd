"""The PyTorch engine: the model as `transformers` loads it.

On a CPU it runs each batch as it comes. On a GPU it runs buckets (`buckets`): the inputs are in
pinned memory and go to the GPU in one copy, the kernels are a recorded CUDA graph, and
the logits and the best spans of each row come back in a copy each. A batch of a small model is
hundreds of kernels, which take longer to launch one by one than to run.

Attention is `scaled_dot_product_attention` wherever `transformers` has it for the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from qa_service.errors import DeviceError, SetupError
from qa_service.instance.arrays import NUM_BEST, SPAN_VALUES, Int64Array, Logits, LogitsFunction
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import (
    MARK_BYTE,
    Engine,
    describe_cpu,
    named_inputs,
    require_shape,
)
from qa_service.instance.engines.buckets import (
    TEXT_MASK,
    Bucket,
    BucketedEngine,
    BucketGrid,
    Outputs,
    Program,
)
from qa_service.instance.model_folder.manifest import Manifest, ReadingConfig
from qa_service.instance.stages import taking

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_RUNS_BEFORE_CAPTURE = 3
"""Libraries choose kernels and allocate workspaces in their first runs; PyTorch's manual on CUDA
graphs ("Whole-network capture") asks for some, on a separate stream."""

REPLAY_TOLERANCE = 0.05
"""A replay runs the same kernels; in half precision a sum may be in another order."""

Forward = Callable[[Tensor], Tensor]
"""From stacked inputs, int64 [inputs, rows, tokens], to logits, float32 [2, rows, tokens]."""

Scoring = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From inputs and the text's mask to the logits and the best spans, float32 [rows, 4]."""

Capture = Callable[[Scoring, Tensor], Callable[[], tuple[Tensor, Tensor]]]
"""Takes a scoring and the tensor that always holds its inputs; returns a function that runs it."""


class PyTorchEngine(Engine):
    """Runs a prepared model's `model.safetensors` on a CPU."""

    def __init__(self, model_dir: Path, manifest: Manifest, config: EngineConfig) -> None:
        torch.set_num_threads(config.intra_op_num_threads)
        self._logits = logits_of(load_model(model_dir, config.precision), manifest.inputs)
        self.runtime = f"torch {torch.__version__}, {describe_cpu(config.intra_op_num_threads)}"

    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        return self._logits(ids, mask, types)


def logits_of(model: PreTrainedModel, inputs: Sequence[str]) -> LogitsFunction:
    forward = make_forward(model, inputs)

    def logits(ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        batch = named_inputs(inputs, ids, mask, types)
        start, end = forward(torch.stack([torch.from_numpy(rows) for rows in batch.values()]))
        return start.numpy(), end.numpy()

    return logits


def bucketed_engine(
    model_dir: Path, manifest: Manifest, config: EngineConfig, device: str = "cuda"
) -> BucketedEngine:
    """Loads a prepared model for buckets.

    Args:
        device: `cuda`, or `cpu` in tests.
    """
    torch.set_num_threads(config.intra_op_num_threads)
    with taking("device"):
        place = claim_gpu(config) if device == "cuda" else torch.device(device)
    with taking("weights"):
        model = load_model(model_dir, config.precision)
        model.to(place)  # type: ignore[arg-type]
    forward = make_forward(model, manifest.inputs)

    @torch.inference_mode()
    def scoring(staged: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the model, and chooses the best spans."""
        logits = forward(staged[:-1])
        return logits, choose_spans(manifest.reading, logits, staged[-1])

    inputs = (*manifest.inputs, TEXT_MASK)
    capture = GraphCapture() if device == "cuda" and config.cuda_graphs else run_eagerly
    name = torch.cuda.get_device_name(place) if device == "cuda" else device
    graphs = "graphs" if config.cuda_graphs else "no graphs"
    return BucketedEngine(
        BucketGrid.of(manifest, config),
        inputs,
        manifest.pad_token_id,
        lambda bucket: TorchProgram(scoring, bucket, len(inputs), place, capture),
        device=device,
        runtime=f"torch {torch.__version__}, {name}, {graphs}",
        records=config.cuda_graphs,
        chooses_spans=manifest.reading.null_position >= 0,
    )


def claim_gpu(config: EngineConfig) -> torch.device:
    """Makes the GPU the calling thread's, and bounds the process's share of its memory."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise DeviceError(
            f"PyTorch {torch.__version__} is a build without CUDA; install one that has it"
        )
    try:
        device = torch.device("cuda", config.cuda_index)
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(config.gpu_memory_fraction, device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(f"PyTorch cannot use the GPU: {reason}") from None
    return device


def load_model(model_dir: Path, precision: str) -> PreTrainedModel:
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model: PreTrainedModel
    try:
        model = AutoModelForQuestionAnswering.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=False, dtype=_DTYPES[precision]
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise SetupError(f"transformers cannot load the model: {reason}") from None
    model.eval()  # type: ignore[no-untyped-call]
    return model


def make_forward(model: PreTrainedModel, inputs: Sequence[str]) -> Forward:
    """Wraps a model as one tensor in, one tensor out, so that each is one copy."""

    @torch.inference_mode()
    def forward(stacked: Tensor) -> Tensor:
        output = model(**dict(zip(inputs, stacked, strict=True)))
        return torch.stack((output.start_logits, output.end_logits)).float()

    return forward


class TorchProgram(Program):
    def __init__(
        self,
        scoring: Scoring,
        bucket: Bucket,
        num_inputs: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        shape = (bucket.rows, bucket.tokens)
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        pinned = self._stream is not None
        self._staged = torch.ones((num_inputs, *shape), dtype=torch.int64, pin_memory=pinned)
        self._logits = torch.empty((2, *shape), dtype=torch.float32, pin_memory=pinned)
        self._best_spans = torch.empty(
            (bucket.rows, SPAN_VALUES), dtype=torch.float32, pin_memory=pinned
        )
        self._inputs = self._staged.to(device, copy=True)
        self._replay = capture(scoring, self._inputs)
        self.staging = self._staged.numpy()

    def run(self) -> Outputs:
        self._inputs.copy_(self._staged, non_blocking=True)
        outputs = self._replay()
        for its, output in zip((self._logits, self._best_spans), outputs, strict=True):
            require_shape(output.shape, its.shape)  # which `copy_` would broadcast to
            its.copy_(output, non_blocking=True)
        if self._stream:
            self._stream.synchronize()
        return Outputs(self._logits.numpy(), self._best_spans.numpy())


def run_eagerly(scoring: Scoring, inputs: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    """A `Capture` that records nothing: each run calls the model."""
    return lambda: scoring(inputs)


class GraphCapture:
    """A `Capture` that records a CUDA graph for each bucket.

    The graphs share one memory pool: only one runs at a time, and its output is copied before the
    next runs. A model whose code waits for the GPU cannot be recorded, which is a `RuntimeError`.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, scoring: Scoring, inputs: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_RUNS_BEFORE_CAPTURE):
                scoring(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may be instances too, and may allocate meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            scores = scoring(inputs)

        def replay() -> tuple[Tensor, Tensor]:
            for output in scores:
                output.view(torch.uint8).fill_(MARK_BYTE)
            graph.replay()
            return scores

        check_replay(replay, scoring, inputs)
        return replay


def check_replay(
    replay: Callable[[], tuple[Tensor, Tensor]], scoring: Scoring, inputs: Tensor
) -> None:
    """Compares a recorded graph with the model, on other inputs than it was recorded with."""
    recorded = inputs.clone()
    inputs[0] += 1
    wanted = scoring(inputs)[0].clone()
    found = replay()[0].clone()
    inputs.copy_(recorded)
    if not torch.allclose(found, wanted, rtol=REPLAY_TOLERANCE, atol=REPLAY_TOLERANCE):
        difference = (found - wanted).abs().max().item()
        shape = tuple(inputs.shape[1:])
        raise RuntimeError(f"the CUDA graph of {shape} differs from the model by {difference:.3g}")


def choose_spans(config: ReadingConfig, logits: Tensor, text_mask: Tensor) -> Tensor:
    """Finds the best spans of each row.

    Args:
        config: The null position must not be negative, since a row's end is not known here.
        logits: Start and end logits, float32 [2, rows, tokens].
        text_mask: int64 [rows, tokens], 1 for the row's text tokens, which are contiguous.

    Returns:
        float32 [rows, SPAN_VALUES], see `Engine.best_spans`; equals are in any order.
    """
    width = config.max_answer_tokens
    start, end = logits.masked_fill(text_mask == 0, -torch.inf)
    ends = torch.nn.functional.pad(end, (0, width - 1), value=-torch.inf)
    table = start[:, :, None] + ends.unfold(1, width, 1)
    if config.null_threshold is not None:
        table -= logits[:, :, config.null_position].sum(dim=0)[:, None, None]
    if config.length_penalty:
        further = torch.arange(1, width + 1, device=end.device)
        further = (further - config.usual_answer_tokens).clamp(min=0)
        table -= config.length_penalty * further
    table /= config.temperature
    spans = table.flatten(1)
    num_missing = max(0, NUM_BEST - spans.shape[1])
    spans = torch.nn.functional.pad(spans, (0, num_missing), value=-torch.inf)
    log_scores, numbers = spans.topk(NUM_BEST)
    log_total = spans.logsumexp(dim=1, keepdim=True)
    return torch.cat((log_total, numbers.float(), log_scores), dim=1)
