"""The OpenVINO engine on a CPU. Imports neither torch nor transformers.

OpenVINO compiles kernels for each new shape, which takes about as long as a question. So rows are
padded to a few lengths, each of which runs once at the start, as far as `WARMING_S` allows; the
padding is masked, and cut off from the output. Single rows of lengths that occur often get models
of their own, with static shapes. What is compiled is kept in its folder, by processor and
version, for the next start.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from qa_service.engine_catalogue import ROWS
from qa_service.errors import DeviceError, SetupError
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import Engine, ShapeCheck, describe_cpu, marked, named_inputs
from qa_service.instance.engines.kept_shapes import ANY_LENGTH, Kept, KeptShapes, name_of
from qa_service.instance.engines.quiet_openvino import openvino
from qa_service.instance.engines.static_shapes import OFTEN, StaticShapes
from qa_service.instance.model_folder.costs_dir import COSTS_DIR, SeenLengths
from qa_service.instance.model_folder.known_answers import STEP_TOKENS, row_lengths
from qa_service.instance.model_folder.manifest import Manifest, prepared_file
from qa_service.machine import processor

WARMING_S = 0.5
"""Bounds how long warming delays a start; lengths that it leaves out compile at their first use."""
CACHE_DIR = "openvino"
GROUP_VALUES = 64
"""So many values of an activation share a scale in int8: OpenVINO's own 32 take longer, 128
and more change more answers (`docs/DECISIONS.md`)."""


class OpenVinoEngine(Engine):
    """Runs a prepared model's ONNX file, or its int8 twin.

    Attributes:
        static_shapes: What it compiled for lengths that occur often.
    """

    def __init__(self, model_dir: Path, manifest: Manifest, config: EngineConfig) -> None:
        _check_processor(config.precision)
        self._path = prepared_file(model_dir, manifest, ROWS["openvino", config.precision].file)
        self._options = options(config)
        version = openvino.__version__.partition("-")[0]
        self._kept = KeptShapes(
            model_dir / COSTS_DIR / CACHE_DIR,
            f"{version} {processor()} {manifest.files.get(self._path.name)} {self._options}",
            config.static_shapes_bytes,
            keeps=config.keeps,
            is_trusted=config.uses_kept,
        )
        self._buffers: dict[str, Kept] = {}
        """What was loaded, which the compiled models go on reading."""
        self._ran = ANY_LENGTH
        """The name of what ran last."""
        compiled = self._loaded(ANY_LENGTH) or self._compiled_for_any_length()
        self._request = compiled.create_infer_request()
        # The first length also takes the model as it is read: about its file.
        self.static_shapes = StaticShapes(
            self._made_for,
            config.static_shapes_bytes,
            self._path.stat().st_size,
            is_in_the_making=lambda tokens: self._kept.is_in_the_making(name_of(tokens)),
        )
        names = {name for item in compiled.inputs for name in item.get_names()}
        self._inputs = [name for name in manifest.inputs if name in names]
        self._pad_token_id = manifest.pad_token_id
        self._longest = manifest.window_tokens
        self._may_pad = manifest.may_pad
        device = describe_cpu(config.intra_op_num_threads)
        self.runtime = f"openvino {version} {config.precision}, {device}"
        self._warm()

    @property
    def later_bytes(self) -> int:
        return self.static_shapes.left_bytes

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        return [(1, tokens) for tokens in self.static_shapes.lengths]

    def forget_kept(self) -> bool:
        """Removes the file of the shape that ran last; the others have been proved by theirs."""
        self._kept.remove(self._ran, "computes wrongly")
        return self._ran in self._buffers

    def prepare_lengths(self, seen: SeenLengths, usual: Iterable[int]) -> None:
        """Begins to get static shapes for the lengths that were seen most, while it serves.

        A first start expects the usual ones, those between them, and some that are longer.
        """
        if not self.static_shapes.left_bytes:
            return
        if not seen:
            expected = [padded_tokens(tokens, self._longest) for tokens in usual]
            shortest, longest = min(expected, default=0), max(expected, default=0)
            longest = min(longest + longest // 4, self._longest)
            expected += range(shortest, longest, STEP_TOKENS)
            seen.add({tokens: OFTEN * rows for tokens, rows in Counter(expected).items()})
        self.static_shapes.prepare(seen)

    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        tokens = ids.shape[1]
        width = padded_tokens(tokens, self._longest) if self._may_pad else tokens
        batch = named_inputs(
            self._inputs,
            _widened(ids, width, self._pad_token_id),
            _widened(mask, width, 0),
            _widened(types, width, 0),
        )
        fixed = self.static_shapes.find(width) if len(ids) == 1 else None
        self._ran = name_of(width) if fixed else ANY_LENGTH
        start, end = _infer(fixed or self._request, batch)
        return start[:, :tokens], end[:, :tokens]

    def check_shapes_with(self, check: ShapeCheck) -> None:
        """Has each length checked before it is used; a file that does not pass is removed."""

        def check_one(request: openvino.InferRequest, tokens: int) -> None:
            try:
                check(lambda *rows: _infer(request, named_inputs(self._inputs, *rows)), 1, tokens)
            except Exception:
                self._kept.remove(name_of(tokens), "computes wrongly")
                raise

        self.static_shapes.check = check_one

    def _warm(self) -> None:
        """Runs one row of each length, the shortest first, until the time is up."""
        over_s = time.monotonic() + WARMING_S
        for tokens in row_lengths(self._longest):
            if time.monotonic() >= over_s:
                return
            row = np.full((1, tokens), self._pad_token_id, np.int64)
            self.logits(row, np.ones_like(row), np.zeros_like(row))
            self._drop_pages(ANY_LENGTH)

    def _made_for(self, tokens: int) -> openvino.InferRequest:
        """The model for one row of a length: from its file, or compiled."""
        name = name_of(tokens)
        compiled = self._loaded(name)
        if compiled is None:
            compiled = self._kept.keeping(name, lambda kept: self._compiled_for(tokens, kept))
        request = compiled.create_infer_request()
        request.infer({name: np.ones((1, tokens), np.int64) for name in self._inputs})
        self._drop_pages(name)
        return request

    def _drop_pages(self, name: str) -> None:
        """Gives pages back once the model has run: what it has rearranged is not read again."""
        if isinstance(kept := self._buffers.get(name), mmap.mmap):
            kept.madvise(mmap.MADV_DONTNEED)

    def _loaded(self, name: str) -> openvino.CompiledModel | None:
        """What is kept under a name; None if there is nothing, or it is damaged."""
        if (kept := self._kept.load(name)) is None:
            return None
        blob = openvino.Tensor(np.frombuffer(kept, np.uint8), shared_memory=True)
        try:
            compiled = shared_core().import_model(blob, "CPU", self._options)
        except RuntimeError:
            self._kept.remove(name, "cannot be loaded")
            return None
        self._buffers[name] = kept
        return compiled

    def _compiled_for_any_length(self) -> openvino.CompiledModel:
        path = str(self._path)
        try:
            return self._kept.keeping(ANY_LENGTH, lambda kept: self._compiled(path, kept))
        except RuntimeError as error:
            reason = str(error).strip().replace("\n", " ")
            raise SetupError(f"OpenVINO cannot load {self._path.name}: {reason}") from None

    def _compiled_for(self, tokens: int, kept: dict[str, str]) -> openvino.CompiledModel:
        """Compiles the model for one row of this many tokens.

        All lengths are made of one model that was read once: they share its weights, though not
        those that OpenVINO rearranges for its kernels.
        """
        self._model.reshape({name: [1, tokens] for name in self._inputs})
        return self._compiled(self._model, kept)

    def _compiled(
        self, model: openvino.Model | str, kept: dict[str, str]
    ) -> openvino.CompiledModel:
        """Compiles a model, or loads what is kept of it.

        Other processes write and remove the files that are kept: if those are what fails, the model
        is compiled without them.
        """
        with contextlib.suppress(RuntimeError):
            return shared_core().compile_model(model, "CPU", self._options | kept)
        return shared_core().compile_model(model, "CPU", self._options)

    @functools.cached_property
    def _model(self) -> openvino.Model:
        return shared_core().read_model(str(self._path))


@functools.cache
def shared_core() -> openvino.Core:
    """OpenVINO's Core, one for the life of the process.

    A Core sets the signal stack of the thread that loads its CPU plugin, and restores the former
    one when it is destroyed. Destroying two Cores in creation order restores a freed signal stack;
    the next signal crashes the process.
    """
    return openvino.Core()


def options(config: EngineConfig) -> dict[str, str | int | bool]:
    """The options with which a model is compiled.

    Threads are not pinned to cores: every process would pin to the first. If there is one, the
    caller is it: a stream would add two idle threads for each static shape.
    """
    return {
        "INFERENCE_NUM_THREADS": config.intra_op_num_threads,
        "NUM_STREAMS": int(config.intra_op_num_threads > 1),
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": ROWS["openvino", config.precision].requires or "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP_VALUES,
    }


def padded_tokens(tokens: int, longest: int) -> int:
    """The length to which a row is padded: in steps, which cost 8 tokens on average."""
    return max(min(-(-tokens // STEP_TOKENS) * STEP_TOKENS, longest), tokens)


def _infer(request: openvino.InferRequest, batch: Mapping[str, Int64Array]) -> Logits:
    """Runs a batch of the request's shape; float32 [batch, width] each."""
    start, end = outputs = marked(2, *next(iter(batch.values())).shape)
    for number, output in enumerate(outputs):
        request.set_output_tensor(number, openvino.Tensor(output, shared_memory=True))
    request.infer(batch, share_inputs=True)
    return start, end


def _widened(rows: Int64Array, width: int, filling: int) -> Int64Array:
    wide = np.full((len(rows), width), filling, np.int64)
    wide[:, : rows.shape[1]] = rows
    return wide


def _check_processor(precision: str) -> None:
    """Refuses a precision that the processor lacks; OpenVINO would silently take float32."""
    needs = ROWS["openvino", precision].requires
    capabilities = shared_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if needs and needs.upper() not in capabilities:
        without = "int8" if precision == "int8_bf16" else "fp32"
        raise DeviceError(f"this processor does not compute in {needs}: use --precision {without}")
