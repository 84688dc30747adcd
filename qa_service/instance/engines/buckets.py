"""Runs batches of any shape in a few fixed shapes, for which a GPU can be prepared.

A batch is copied into the smallest bucket that holds it: a program whose inputs and outputs
stay where they are in memory, so that a graph of its kernels can be recorded once and replayed.
Filling rows and tokens are masked, and cut off from the output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qa_service.instance.arrays import SPAN_VALUES, FloatArray, Int64Array, Logits
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import Engine, ShapeCheck
from qa_service.instance.engines.outputs import checked, require_shape
from qa_service.instance.model_folder.manifest import Manifest

TEXT_MASK = "text_mask"
"""Staged with the model's inputs for an engine that chooses spans."""

_GIVEN = ("input_ids", "attention_mask", "token_type_ids", TEXT_MASK)


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A shape."""

    rows: int
    tokens: int


class BucketGrid:
    """The shapes that batches are brought to.

    Neighbouring sizes differ by at most a factor of 1.5 in rows, and by at most 64 tokens up to
    512, which bounds what filling costs.

    Args:
        max_batch_tokens: Of two or more rows together, padding included.
        may_pad: Whether rows may be padded; else every batch has a bucket of exactly its shape.

    Attributes:
        most: The most rows and the most tokens of any bucket; no bucket may have both.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_batch_tokens: int,
        window_tokens: int,
        *,
        may_pad: bool = True,
    ) -> None:
        self._may_pad = may_pad
        self._rows = _up_to(max_batch_size, [1, 2, 3], lambda sizes: 2 * sizes[-2])
        self._tokens = _up_to(window_tokens, [32], lambda sizes: sizes[-1] + _step(sizes[-1]))
        self._max_batch_tokens = max_batch_tokens
        self.most = Bucket(self._rows[-1], self._tokens[-1])

    @classmethod
    def of(cls, manifest: Manifest, config: EngineConfig) -> BucketGrid:
        """The buckets of a model's batches."""
        return cls(
            config.max_batch_size,
            config.max_batch_tokens,
            manifest.window_tokens,
            may_pad=manifest.may_pad,
        )

    def bucket_for(self, rows: int, tokens: int) -> Bucket:
        """The smallest bucket that holds a batch; a batch over the limits gets its own."""
        if not self._may_pad:
            return Bucket(rows, tokens)
        return Bucket(_at_least(rows, self._rows), _at_least(tokens, self._tokens))

    def buckets(self) -> list[Bucket]:
        """Every bucket that a batch within the limits can need, the largest first.

        Empty if rows may not be padded: there would be a bucket for every shape.
        """
        if not self._may_pad:
            return []
        needed = [
            Bucket(rows, tokens)
            for rows, fewer in zip(self._rows, [0, *self._rows], strict=False)
            for tokens, shorter in zip(self._tokens, [0, *self._tokens], strict=False)
            if rows == 1 or (fewer + 1) * (shorter + 1) <= self._max_batch_tokens
        ]
        return sorted(needed, key=lambda bucket: -bucket.rows * bucket.tokens)


def _up_to(limit: int, sizes: list[int], following: Callable[[list[int]], int]) -> list[int]:
    while sizes[-1] < limit:
        sizes.append(following(sizes))
    return [size for size in sizes if size < limit] + [limit]


def _step(tokens: int) -> int:
    return 32 if tokens < 128 else 64 if tokens < 512 else tokens // 4


def _at_least(size: int, sizes: Sequence[int]) -> int:
    position = bisect_left(sizes, size)
    return sizes[position] if position < len(sizes) else size


class Outputs(NamedTuple):
    """What a program's run returns, in host memory.

    Attributes:
        logits: Start and end logits, float32 [2, rows, tokens].
        best_spans: float32 [rows, SPAN_VALUES], if the program chooses spans.
    """

    logits: FloatArray
    best_spans: FloatArray | None = None


class Program(ABC):
    """A model made ready for one bucket.

    Attributes:
        staging: The inputs in host memory, int64 [inputs, rows, tokens]; filled before each run.
    """

    staging: Int64Array

    @abstractmethod
    def run(self) -> Outputs:
        """Runs the model on the staged inputs.

        Returns:
            Memory that is marked before the run, and overwritten by the next.
        """


class BucketedEngine(Engine):
    """Runs every batch in the bucket that holds it.

    Args:
        grid: The buckets; the constructor makes a program for each, as part of warming up.
        inputs: The names of the planes of a program's staging, in their order.
    """

    def __init__(
        self,
        grid: BucketGrid,
        inputs: Sequence[str],
        pad_token_id: int,
        make_program: Callable[[Bucket], Program],
        *,
        device: str,
        runtime: str,
        chooses_spans: bool = False,
    ) -> None:
        self.device = device
        self.runtime = runtime
        self.chooses_spans = chooses_spans
        self._grid = grid
        self._inputs = inputs
        self._pad_token_id = pad_token_id
        self._make_program = make_program
        self._check: ShapeCheck | None = None
        self._programs = {bucket: make_program(bucket) for bucket in grid.buckets()}

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """The buckets: rows and tokens of each."""
        return [(bucket.rows, bucket.tokens) for bucket in self._programs]

    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        rows, tokens = ids.shape
        start, end = self._run_staged(ids, mask, types).logits[:, :rows, :tokens]
        return start, end

    def best_spans(
        self, ids: Int64Array, mask: Int64Array, types: Int64Array, text_mask: Int64Array
    ) -> tuple[FloatArray, Logits]:
        """The best spans of each row, and the logits; see `Engine.best_spans`."""
        rows, tokens = ids.shape
        logits, spans = self._run_staged(ids, mask, types, text_mask)
        assert spans is not None
        start, end = logits[:, :rows, :tokens]
        chosen = checked(spans[:rows], (rows, SPAN_VALUES))
        return chosen, (checked(start, ids.shape), checked(end, ids.shape))

    def _run_staged(self, *batch: Int64Array) -> Outputs:
        """Runs a batch in its bucket; returns the outputs of the whole bucket.

        Raises:
            EngineFaultError: One has another shape.
        """
        bucket = self._grid.bucket_for(*batch[0].shape)
        program = self._programs.get(bucket) or self._make_later(bucket)
        given = dict(zip(_GIVEN, batch, strict=False))
        stage(program.staging, self._inputs, given, self._pad_token_id)
        outputs = program.run()
        require_shape(outputs.logits.shape, (2, bucket.rows, bucket.tokens))
        if outputs.best_spans is not None:
            require_shape(outputs.best_spans.shape, (bucket.rows, SPAN_VALUES))
        return outputs

    def check_shapes_with(self, check: ShapeCheck) -> None:
        """Has each bucket that is beyond the grid checked before it is used."""
        self._check = check

    def _make_later(self, bucket: Bucket) -> Program:
        program = self._programs[bucket] = self._make_program(bucket)
        if self._check:
            self._check(self.logits, bucket.rows, bucket.tokens)
        return program


def stage(
    staging: Int64Array, inputs: Sequence[str], given: Mapping[str, Int64Array], pad_token_id: int
) -> None:
    """Copies a batch into a bucket's staging memory, and fills the rest; missing inputs are 0.

    A filling row attends to its first token: a softmax over nothing would be NaN.
    """
    for plane, name in zip(staging, inputs, strict=True):
        plane[...] = pad_token_id if name == "input_ids" else 0
        if name not in given:
            continue
        rows, tokens = given[name].shape
        plane[:rows, :tokens] = given[name]
        if name == "attention_mask":
            plane[rows:, 0] = 1
