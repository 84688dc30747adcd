"""What an engine must do: logits for a padded batch of windows."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


class Engine(ABC):
    """One loaded model on one device. Not shared between threads.

    Attributes:
        device: `cpu` or `cuda`: where it really runs.
    """

    device = "cpu"

    @abstractmethod
    def logits(
        self, input_ids: Int64Array, attention_mask: Int64Array, token_type_ids: Int64Array
    ) -> tuple[FloatArray, FloatArray]:
        """Runs the model.

        Args:
            input_ids: int64 [batch, seq], padded.
            attention_mask: int64 [batch, seq], 0 where padded.
            token_type_ids: int64 [batch, seq]; not used by models without token types.

        Returns:
            Start and end logits, float32 [batch, seq] each.
        """
