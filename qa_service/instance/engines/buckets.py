"""Runs batches of any shape in a few fixed shapes, for which a GPU can be prepared.

A batch is copied into the smallest bucket that holds it: a program whose inputs and outputs
stay where they are in memory, so that a graph of its kernels can be recorded once and replayed.
Filling rows and tokens are masked, and cut off from the output.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qa_service.instance.arrays import SPAN_VALUES, FloatArray, Int64Array, Logits
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import Engine, ShapeCheck
from qa_service.instance.engines.outputs import checked, require_shape
from qa_service.instance.model_folder.manifest import Manifest
from qa_service.instance.model_folder.seen_lengths import SeenLengths
from qa_service.instance.start_times import taking

logger = logging.getLogger(__name__)

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

    Until it serves, a bucket is recorded when a batch first needs it: the known answers need some
    ten. From then on the first batch of a bucket runs without a recording, which takes as long as
    tens of runs, and the bucket is recorded while nothing waits, or when a second batch needs it. A
    recording is proved before it is used; one that cannot be made or is wrong is left out.

    Args:
        grid: The buckets.
        inputs: The names of the planes of a program's staging, in their order.
        make_program: Makes a program for a bucket, recorded or not.
        records: Whether programs are recorded; else the second argument is always false.
    """

    def __init__(
        self,
        grid: BucketGrid,
        inputs: Sequence[str],
        pad_token_id: int,
        make_program: Callable[[Bucket, bool], Program],
        *,
        device: str,
        runtime: str,
        records: bool = False,
        chooses_spans: bool = False,
    ) -> None:
        self.device = device
        self.runtime = runtime
        self.chooses_spans = chooses_spans
        self._grid = grid
        self._inputs = inputs
        self._pad_token_id = pad_token_id
        self._make_program = make_program
        self._records = records
        self._check: ShapeCheck | None = None
        self._programs: dict[Bucket, Program] = {}
        self._serves = False
        self._unrecorded: list[Bucket] = []

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """The buckets that have run: rows and tokens of each."""
        return [(bucket.rows, bucket.tokens) for bucket in self._programs]

    def check_shapes_with(self, check: ShapeCheck) -> None:
        """Has each recording from now on checked before it is used."""
        self._check = check

    def prepare_lengths(self, seen: SeenLengths, usual: Iterable[int]) -> None:
        """Ends the start: what is not recorded by now waits until nothing else does."""
        self._serves = True
        if self._records:
            later = (bucket for bucket in self._grid.buckets() if bucket not in self._programs)
            self._unrecorded = [*later]

    def prepare_next(self) -> bool:
        """Records the next bucket, those that batches have needed before all others."""
        if self._unrecorded:
            self._record(self._unrecorded[0])
        return bool(self._unrecorded)

    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        return self._cut(self._run_staged(ids, mask, types), ids)

    def best_spans(
        self, ids: Int64Array, mask: Int64Array, types: Int64Array, text_mask: Int64Array
    ) -> tuple[FloatArray, Logits]:
        """The best spans of each row, and the logits; see `Engine.best_spans`."""
        rows = len(ids)
        outputs = self._run_staged(ids, mask, types, text_mask)
        assert outputs.best_spans is not None
        start, end = self._cut(outputs, ids)
        chosen = checked(outputs.best_spans[:rows], (rows, SPAN_VALUES))
        return chosen, (checked(start, ids.shape), checked(end, ids.shape))

    @staticmethod
    def _cut(outputs: Outputs, ids: Int64Array) -> Logits:
        """The logits of the batch, of those of the whole bucket."""
        rows, tokens = ids.shape
        start, end = outputs.logits[:, :rows, :tokens]
        return start, end

    def _run_staged(self, *batch: Int64Array) -> Outputs:
        """Runs a batch in its bucket; returns the outputs of the whole bucket.

        Raises:
            EngineFaultError: One has another shape.
        """
        bucket = self._grid.bucket_for(*batch[0].shape)
        return self._run_in(self._program_for(bucket), bucket, *batch)

    def _run_in(self, program: Program, bucket: Bucket, *batch: Int64Array) -> Outputs:
        given = dict(zip(_GIVEN, batch, strict=False))
        stage(program.staging, self._inputs, given, self._pad_token_id)
        outputs = program.run()
        require_shape(outputs.logits.shape, (2, bucket.rows, bucket.tokens))
        if outputs.best_spans is not None:
            require_shape(outputs.best_spans.shape, (bucket.rows, SPAN_VALUES))
        return outputs

    def _program_for(self, bucket: Bucket) -> Program:
        program = self._programs.get(bucket)
        if program and bucket not in self._unrecorded:
            return program
        if program or not self._serves:
            return self._record(bucket)
        program = self._programs[bucket] = self._make_program(bucket, False)
        if self._records:
            if bucket in self._unrecorded:
                self._unrecorded.remove(bucket)
            self._unrecorded.insert(0, bucket)
        return program

    def _record(self, bucket: Bucket) -> Program:
        """Makes a bucket's program and proves it.

        Raises:
            Exception: It cannot be made or is wrong, and the engine does not serve yet.
        """
        if bucket in self._unrecorded:
            self._unrecorded.remove(bucket)
        try:
            with taking("recording" if self._records else "first runs"):
                program = self._make_program(bucket, self._records)
                self._prove(program, bucket)
        except Exception as error:  # a library may raise anything
            if not self._serves:
                raise
            shape = f"{bucket.rows} rows of {bucket.tokens} tokens"
            logger.warning("batches of %s run without a recording: %s", shape, error)
            program = self._programs.get(bucket) or self._make_program(bucket, False)
        self._programs[bucket] = program
        return program

    def _prove(self, program: Program, bucket: Bucket) -> None:
        if not self._check:
            return

        def run(ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
            start, end = self._cut(self._run_in(program, bucket, ids, mask, types), ids)
            return checked(start, ids.shape), checked(end, ids.shape)

        self._check(run, bucket.rows, bucket.tokens)


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
