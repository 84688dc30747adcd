"""A source's own model, as preparing needs it.

A shipped one is put together by NumPy, one with an ONNX graph is run by ONNX Runtime, another by
PyTorch.
"""

from __future__ import annotations

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
from tokenizers import Tokenizer

from qa_service.errors import SetupError
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.engines.onnx import LogSeverity
from qa_service.preparation.sources import Source

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("start_logits", "end_logits")
USUAL_MAX_TOKENS = 512
"""BERT's and its successors', for a model that states no maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel(ABC):
    """A source's model in float32.

    Attributes:
        tokenizer: Without truncation and padding.
        inputs: In the order of the model's `forward`.
        null_position: Where the model scores "no answer"; see `ReadingConfig`.
        may_pad: Whether padding leaves a row's logits unchanged.
    """

    tokenizer: Tokenizer
    inputs: tuple[str, ...]
    pad_token_id: int = 0
    max_sequence_tokens: int
    null_position: int = 0
    may_pad: bool = True

    @abstractmethod
    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits: ...

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes `config.json`, `tokenizer.json`, and if it has weights, `model.safetensors`."""

    @abstractmethod
    def write_graph(self, path: Path) -> int:
        """Writes `model.onnx`; returns the number of layers whose attention is fused."""

    @abstractmethod
    def write_plain_graph(self, path: Path) -> None:
        """Writes the graph with nothing fused."""


def open_model(source: Source) -> SourceModel:
    if source.is_shipped:
        from qa_service.preparation import shipped  # noqa: PLC0415

        return shipped.load(source)
    if source.graph:
        from qa_service.preparation import exported  # noqa: PLC0415

        return exported.load(source)
    from qa_service.preparation import loading  # noqa: PLC0415, torch takes seconds

    _quiet_transformers()
    return loading.load(source)


def checked_pair(tokenizer: Tokenizer, label: str, vocab_size: int | None) -> list[int]:
    """The ids of a question and a text.

    Args:
        label: What the source is called.
        vocab_size: The model's, if it is known.
    """
    pair = tokenizer.encode("a", "b")
    if not {0, 1} <= set(pair.sequence_ids):
        raise SetupError(f"the tokenizer of {label} makes no tokens of a question and a text")
    if vocab_size is not None and tokenizer.get_vocab_size() > vocab_size:
        raise SetupError(f"the tokenizer of {label} has more tokens than its model")
    return pair.ids


def null_position(pair: Sequence[int], cls_id: int | None, bos_id: int | None) -> int:
    """The position of the "no answer" token, as in transformers' run_qa.py: CLS, else BOS.

    It counts from the row's end if the tokenizer puts the token there, as XLNet's does.
    """
    for token_id in (cls_id, bos_id):
        if token_id is not None and token_id in pair:
            position = list(pair).index(token_id)
            return position if position <= len(pair) // 2 else position - len(pair)
    return 0


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences the libraries' logs, warnings and progress bars."""
    _quiet_transformers()
    onnxruntime.set_default_logger_severity(LogSeverity.FATAL)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            onnxruntime.set_default_logger_severity(LogSeverity.WARNING)


def _quiet_transformers() -> None:
    """Silences it for good, if it has been imported."""
    if transformers := sys.modules.get("transformers"):
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
