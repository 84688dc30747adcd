"""Runs batches of any shape in a few fixed shapes, for which a GPU can be prepared.

A batch is copied into the smallest bucket that holds it: a program whose inputs and outputs
stay where they are in memory, so that a graph of its kernels can be recorded once and replayed.
Filling rows and tokens are masked, and cut off from the output.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qa_service.instance.arrays import SPAN_VALUES, FloatArray, Int64Array, Logits
from qa_service.instance.engines import EngineConfig
from qa_service.instance.engines.base import Engine, ShapeCheck, checked, require_shape
from qa_service.instance.engines.kept_engines import KeptEngines
from qa_service.instance.model_folder.manifest import Manifest
from qa_service.instance.stages import taking

logger = logging.getLogger(__name__)

TEXT_MASK = "text_mask"
"""Staged with the model's inputs for an engine that chooses spans."""

RUNS_BEFORE_RECORDING = 1000
"""On an H200 a recording with its proof took some 150 ms with four instances at once, and a small
model saves a fraction of a millisecond where a batch has its own bucket."""

_GIVEN = ("input_ids", "attention_mask", "token_type_ids", TEXT_MASK)


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
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
        self.may_pad = may_pad
        self._rows = _up_to(max_batch_size, [1, 2, 3], lambda sizes: 2 * sizes[-2])
        self._tokens = _up_to(window_tokens, [32], lambda sizes: sizes[-1] + _step(sizes[-1]))
        self._max_batch_tokens = max_batch_tokens
        self.most = Bucket(self._rows[-1], self._tokens[-1])

    @classmethod
    def of(cls, manifest: Manifest, config: EngineConfig) -> BucketGrid:
        return cls(
            config.max_batch_size,
            config.max_batch_tokens,
            manifest.window_tokens,
            may_pad=manifest.may_pad,
        )

    def bucket_for(self, rows: int, tokens: int) -> Bucket:
        """The smallest bucket that holds a batch; a batch over the limits gets its own."""
        if not self.may_pad:
            return Bucket(rows, tokens)
        return Bucket(_at_least(rows, self._rows), _at_least(tokens, self._tokens))

    def buckets(self) -> list[Bucket]:
        """Every bucket that a batch within the limits can need, the largest first.

        Empty if rows may not be padded: there would be a bucket for every shape.
        """
        return self._needed(self._rows, self._tokens)

    def first_buckets(self) -> list[Bucket]:
        """Those of them that hold every batch within the limits, with few of them: some sixteen."""
        rows = _up_to(self._rows[-1], [1], lambda sizes: 4 * sizes[-1])
        return self._needed(rows, _up_to(self._tokens[-1], [64], lambda sizes: 2 * sizes[-1]))

    def _needed(self, all_rows: Sequence[int], all_tokens: Sequence[int]) -> list[Bucket]:
        needed = [
            Bucket(rows, tokens)
            for rows, fewer in zip(all_rows, [0, *all_rows], strict=False)
            for tokens, shorter in zip(all_tokens, [0, *all_tokens], strict=False)
            if self.may_pad and (rows == 1 or (fewer + 1) * (shorter + 1) <= self._max_batch_tokens)
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
    """A model made ready for one bucket."""

    staging: Int64Array
    """The inputs in host memory, [inputs, rows, tokens]; filled before each run."""

    @abstractmethod
    def run(self) -> Outputs:
        """Runs the staged inputs; what it returns was marked before, and the next run writes it."""


class BucketedEngine(Engine):
    """Runs every batch in the smallest bucket that holds it, of those that are ready.

    Where programs are recorded, a start makes the first buckets alone: the others follow while the
    instance has nothing to do, and one that many batches have needed at once. No batch runs without
    a recording, which takes tens of times as long and would spoil the costs that are learned. What
    is recorded while it serves is proved before it is used; what cannot be made or is wrong is left
    out.

    Args:
        grid: The buckets.
        inputs: The names of the planes of a program's staging, in their order.
        records: Whether a program is recorded when it is made, which takes long.
        kept: What it keeps for the next start.
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
        records: bool = False,
        chooses_spans: bool = False,
        kept: KeptEngines | None = None,
    ) -> None:
        self.device = device
        self.runtime = runtime
        self.chooses_spans = chooses_spans
        self._grid = grid
        self._inputs = inputs
        self._pad_token_id = pad_token_id
        self._make_program = make_program
        self._records = records
        self._kept = kept
        self._check: ShapeCheck | None = None
        self._runs: Counter[Bucket] = Counter()
        """Batches that needed a bucket and ran in a larger one."""
        self._chosen: dict[Bucket, Bucket] = {}
        self._programs: dict[Bucket, Program] = {}
        self._later: list[Bucket] = []
        if records:
            for bucket in grid.first_buckets():
                self._make(bucket)
            self._later = [one for one in grid.buckets() if one not in self._programs]

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        return [(bucket.rows, bucket.tokens) for bucket in self._programs]

    def forget_kept(self) -> bool:
        """Removes all that is kept: one engine runs all buckets."""
        if not self._kept:
            return False
        self._kept.remove("an engine computes wrongly")
        return self._kept.are_old

    def check_shapes_with(self, check: ShapeCheck) -> None:
        self._check = check

    def prepare_next(self) -> bool:
        """Records the bucket that most batches have needed; returns whether there are others."""
        if self._later:
            self._record(max(self._later, key=lambda bucket: self._runs[bucket]))
        return bool(self._later)

    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        return self._cut(self._run_staged(ids, mask, types), ids)

    def best_spans(
        self, ids: Int64Array, mask: Int64Array, types: Int64Array, text_mask: Int64Array
    ) -> tuple[FloatArray, Logits]:
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
        bucket = self._ready_for(self._grid.bucket_for(*batch[0].shape))
        return self._run_in(self._programs[bucket], bucket, *batch)

    def _run_in(self, program: Program, bucket: Bucket, *batch: Int64Array) -> Outputs:
        given = dict(zip(_GIVEN, batch, strict=False))
        stage(program.staging, self._inputs, given, self._pad_token_id)
        outputs = program.run()
        require_shape(outputs.logits.shape, (2, bucket.rows, bucket.tokens))
        if outputs.best_spans is not None:
            require_shape(outputs.best_spans.shape, (bucket.rows, SPAN_VALUES))
        return outputs

    def _ready_for(self, bucket: Bucket) -> Bucket:
        """The smallest bucket with a program that holds this one, which may be itself."""
        if bucket in self._programs:
            return bucket
        self._runs[bucket] += 1
        if self._runs[bucket] > RUNS_BEFORE_RECORDING and bucket in self._later:
            self._record(bucket)
        if bucket not in self._chosen:
            may_be_larger = self._records and self._grid.may_pad
            holding = [
                one
                for one in self._programs
                if may_be_larger and one.rows >= bucket.rows and one.tokens >= bucket.tokens
            ]
            if not holding:
                self._make(bucket)
            self._chosen[bucket] = min(
                holding, key=lambda one: one.rows * one.tokens, default=bucket
            )
        return self._chosen[bucket]

    def _record(self, bucket: Bucket) -> None:
        """Records a bucket for good, or leaves it out."""
        self._later.remove(bucket)
        try:
            self._make(bucket)
        except Exception as error:  # a library may raise anything
            shape = f"{bucket.rows} rows of {bucket.tokens} tokens"
            logger.warning("batches of %s run in a larger shape: %s", shape, error)

    def _make(self, bucket: Bucket) -> None:
        """Makes a bucket's program, and proves it; raises anything if it is wrong or not made."""
        with taking("recording" if self._records else "first runs"):
            program = self._make_program(bucket)

            def run(ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
                start, end = self._cut(self._run_in(program, bucket, ids, mask, types), ids)
                return checked(start, ids.shape), checked(end, ids.shape)

            if self._check:
                self._check(run, bucket.rows, bucket.tokens)
        self._programs[bucket] = program
        self._chosen.clear()


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
