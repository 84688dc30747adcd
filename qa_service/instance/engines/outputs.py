"""A run's outputs: marked before the run, looked at after it.

An engine's silence is not success. OpenVINO, where memory runs short, returns from a run without an
error, and its outputs are still those of the run before: another request's answer. So every run
writes into new memory, or into memory that is marked before, and a mark that is still there after
the run is a run that has not happened.

The mark has all bits set: a NaN that arithmetic does not make, which is `0x7fc00000` or
`0xffc00000` in float32 on the processors that we know. So a model whose logits are NaN is not taken
for an engine that is broken.
"""

from __future__ import annotations

import numpy as np

from qa_service.instance.arrays import FloatArray

MARK_BYTE = 0xFF
"""Each byte of a mark."""


class EngineFaultError(Exception):
    """A run returned nothing new: what this process's engine returns cannot be believed."""


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
