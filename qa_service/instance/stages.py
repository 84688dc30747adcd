"""The stages of a batch in an instance, and their times."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal["tokenize", "model", "read"]


class StagesMs(msgspec.Struct, frozen=True, array_like=True):
    """Milliseconds by stage.

    Attributes:
        tokenize: Questions and texts to windows of tokens.
        model: Padding the windows and running the model.
        read: Answers from the model's logits.
    """

    tokenize: float = 0.0
    model: float = 0.0
    read: float = 0.0
