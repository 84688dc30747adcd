"""A source's own model, as preparing needs it: a shipped one by NumPy, another by PyTorch."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import onnxruntime
from tokenizers import Tokenizer

from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.engines.onnx import LogSeverity
from qa_service.preparation.sources import Source


class SourceModel(Protocol):
    """A source's model in float32.

    Attributes:
        tokenizer: Without truncation and padding.
        inputs: In the order of the model's `forward`.
        null_position: Where the model scores "no answer"; see `ReadingConfig`.
        may_pad: Whether padding leaves a row's logits unchanged.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def pad_token_id(self) -> int: ...
    @property
    def max_sequence_tokens(self) -> int: ...
    @property
    def null_position(self) -> int: ...
    @property
    def may_pad(self) -> bool: ...

    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        """What the model computes, for comparing the files: a `LogitsFunction`."""

    def save(self, folder: Path) -> None:
        """Writes `config.json`, `model.safetensors` and `tokenizer.json`."""

    def write_graph(self, path: Path) -> int:
        """Writes `model.onnx`; returns the number of layers whose attention is fused.

        Raises:
            SetupError: The model cannot be exported.
        """

    def write_plain_graph(self, path: Path) -> None:
        """Writes the graph with nothing fused.

        Raises:
            SetupError: The model cannot be exported.
        """


def open_model(source: Source) -> SourceModel:
    """Loads a source's model.

    Raises:
        SetupError: It cannot be loaded, or is not an extractive question-answering model.
    """
    if source.is_shipped:
        from qa_service.preparation import shipped  # noqa: PLC0415

        return shipped.load(source)
    from qa_service.preparation import loading  # noqa: PLC0415, torch takes seconds

    return loading.load(source)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences the libraries' logs, warnings and progress bars."""
    if transformers := sys.modules.get("transformers"):
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
    onnxruntime.set_default_logger_severity(LogSeverity.FATAL)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            onnxruntime.set_default_logger_severity(LogSeverity.WARNING)
