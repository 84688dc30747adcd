"""What an engine must do: logits for a padded batch of windows.

An engine's silence is not success. OpenVINO, where memory runs short, returns from a run without an
error, and its outputs are still those of the run before: another request's answer. So every run
writes into new memory, or into memory that is marked before, and a mark that is still there after
the run is a run that has not happened.

The mark has all bits set: a NaN that arithmetic does not make, which is `0x7fc00000` or
`0xffc00000` in float32 on the processors that we know. So a model whose logits are NaN is not taken
for an engine that is broken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from qa_service.errors import EngineFaultError
from qa_service.instance.arrays import FloatArray, Int64Array, Logits, LogitsFunction
from qa_service.instance.model_folder.costs_dir import SeenLengths
from qa_service.machine import num_cpus, processor

MARK_BYTE = 0xFF
"""Each byte of a mark."""
ShapeCheck = Callable[[LogitsFunction, int, int], object]
"""Looks at what is prepared for a shape of rows and tokens; raises an exception if it is wrong."""


def marked(*shape: int) -> FloatArray:
    """A new output without a value: float32, of that shape."""
    output = np.empty(shape, np.float32)
    output.view(np.uint8).fill(MARK_BYTE)
    return output


def checked(output: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """A run's output as float32, in memory that the next run does not overwrite.

    Args:
        output: Of any type of floats.
        shape: What was asked for.

    Raises:
        EngineFaultError: It has another shape, or a value that the run did not write.
    """
    require_shape(output.shape, shape)
    if np.isnan(output).any():
        bits = np.ascontiguousarray(output).view(f"u{output.dtype.itemsize}")
        if (bits == np.iinfo(bits.dtype).max).any():
            raise EngineFaultError("the engine returned without an error and without results")
    return output.astype(np.float32)


def require_shape(found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise EngineFaultError(
            f"the engine returned an output of shape {found} where {wanted} was asked for"
        )


class Engine(ABC):
    """One loaded model on one device. Not shared between threads.

    Attributes:
        device: `cpu` or `cuda`: where it really runs.
        runtime: Library, version and device; part of the key of the cost table.
        chooses_spans: Whether it has `best_spans`; on a CPU the reader has the logits anyway.
    """

    device = "cpu"
    chooses_spans = False
    runtime: str

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """Rows and tokens of each shape of batch that it has prepared."""
        return ()

    @property
    def later_bytes(self) -> int:
        """Memory that it may still take while it runs."""
        return 0

    def forget_kept(self) -> bool:
        """Removes the kept file of what ran last; returns whether it was loaded from there."""
        return False

    def prepare_lengths(self, seen: SeenLengths, usual: Iterable[int]) -> None:  # noqa: B027
        """Begins to prepare for the lengths of rows that occur often; the rest while it serves.

        Args:
            seen: How often each length ran; the engine counts on in it.
            usual: Lengths to expect if none has been seen, one for each row; read only then.
        """

    def prepare_next(self) -> bool:
        """Prepares one shape more, while nothing waits; returns whether there are others."""
        return False

    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        """Runs the model, and looks whether it has run.

        Args:
            ids: int64 [batch, seq], padded.
            mask: int64 [batch, seq], 0 where padded.
            types: int64 [batch, seq]; not used by models without token types.

        Returns:
            Start and end logits, float32 [batch, seq] each; the next run leaves them as they are.

        Raises:
            EngineFaultError: The run returned nothing new.
        """
        start, end = self._run(ids, mask, types)
        return checked(start, ids.shape), checked(end, ids.shape)

    def check_shapes_with(self, check: ShapeCheck) -> None:  # noqa: B027 - most prepare none
        """Has each shape that it prepares later checked before it is used."""

    @abstractmethod
    def _run(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        """Runs the model; returns new memory, or memory that was marked before the run."""

    def best_spans(
        self, ids: Int64Array, mask: Int64Array, types: Int64Array, text_mask: Int64Array
    ) -> tuple[FloatArray, Logits]:
        """Runs the model and chooses each row's best spans on the device; only if `chooses_spans`.

        Args:
            text_mask: int64 [batch, seq], 1 for the row's text tokens: one or more, contiguous.

        Returns:
            float32 [batch, SPAN_VALUES]: the log of the sum over all spans of the row, as
            `reader.spans` defines it; the numbers of the best, `first * max_answer_tokens + last -
            first`; their log scores, best first, minus infinity where there are fewer. And what
            `logits` returns.
        """
        raise NotImplementedError


def named_inputs(
    names: Sequence[str], ids: Int64Array, mask: Int64Array, types: Int64Array
) -> dict[str, Int64Array]:
    """The inputs that the model takes, in its order; int64 [batch, seq] each."""
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: given[name] for name in names}


def describe_cpu(num_threads: int) -> str:
    """The cores in use and the processor's name, as in `1 of 2 cores of AMD EPYC 9B45`."""
    return f"{num_threads} of {num_cpus()} cores of {processor().name}"
