"""The arrays that the reader hands to an engine, and those that come back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

Rows = tuple[Int64Array, Int64Array, Int64Array]
"""Windows padded to one length: ids, mask and types, int64 [batch, seq] each."""

Logits = tuple[FloatArray, FloatArray]
"""Start and end logits: float32 [batch, seq] each, or [seq] each for one window."""

LogitsFunction = Callable[[Int64Array, Int64Array, Int64Array], Logits]
"""`Engine.logits`: ids, mask and types, int64 [batch, seq] each, to start and end logits."""

NUM_BEST = 8
"""How many of a window's best spans are compared: equal ones among them are one answer. Each takes
time, of logits that are flat for all of them; a model that is sure has four or five that count."""
SPAN_VALUES = 1 + 2 * NUM_BEST
"""The numbers of a row's best spans; see `Engine.best_spans`."""

BestSpansFunction = Callable[
    [Int64Array, Int64Array, Int64Array, Int64Array], tuple[FloatArray, Logits]
]
"""`Engine.best_spans`: also takes the text's mask; each row's best spans, and the logits."""
