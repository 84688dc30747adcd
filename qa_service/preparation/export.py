"""Makes an ONNX graph of a PyTorch model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from qa_service.errors import SetupError
from qa_service.instance.engines.base import named_inputs
from qa_service.instance.reader.windows import sample_rows
from qa_service.preparation.sentence_graph import EMBEDDING_INPUTS, EMBEDDING_OUTPUT
from qa_service.preparation.source_model import OUTPUTS
from qa_service.preparation.sources import as_setup_error

if TYPE_CHECKING:
    from qa_service.preparation.loading import LoadedModel

OPSET = 17
"""The first with LayerNormalization as one operator."""
_MAX_FILE_BYTES = 2**31 - 2**20
"""Protobuf's limit, less a MiB for the graph itself."""


class _Logits(torch.nn.Module):
    """Takes the inputs by position and returns the two logits, as the graph does."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.model = loaded.model
        self.inputs = loaded.inputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return output.start_logits, output.end_logits


class _Sentence(torch.nn.Module):
    """The mean of a text's states, of length 1."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        is_read = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * is_read).sum(1) / is_read.sum(1)
        embedding: torch.Tensor = mean / mean.norm(dim=1, keepdim=True)
        return embedding


def export_onnx(loaded: LoadedModel, path: Path) -> None:
    """Writes the model's ONNX graph.

    Inputs, by the model's names: int64 [batch, sequence]; outputs `start_logits` and `end_logits`:
    float32 [batch, sequence]; both axes are dynamic. It uses torch's older, tracing exporter:
    onnxruntime's optimizer fuses no attention in the newer one's graphs.
    """
    if sum(p.numel() * p.element_size() for p in loaded.model.parameters()) > _MAX_FILE_BYTES:
        raise SetupError("the model is too large: an ONNX file holds at most 2 GiB of weights")
    axes = {name: {0: "batch", 1: "sequence"} for name in (*loaded.inputs, *OUTPUTS)}
    ids, mask, types = sample_rows(loaded.tokenizer, 2, 16)
    ids[1, 8:], mask[1, 8:], types[1, 8:] = loaded.pad_token_id, 0, 0
    batch = named_inputs(loaded.inputs, ids, mask, types)
    example = {name: torch.from_numpy(rows) for name, rows in batch.items()}
    with as_setup_error("the model cannot be exported to ONNX"):
        _trace(_Logits(loaded), example, OUTPUTS, axes, path)


def export_embedding(model: PreTrainedModel, path: Path) -> None:
    """Writes a sentence encoder's graph: a text's tokens in, the mean of their states out.

    Inputs `input_ids` and `attention_mask`: int64 [batch, sequence]; output `embedding`: float32
    [batch, dimensions], of length 1.
    """
    ids = torch.arange(1000, 1032).reshape(2, 16)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    example = dict(zip(EMBEDDING_INPUTS, (ids, mask), strict=True))
    axes = {name: {0: "batch", 1: "sequence"} for name in EMBEDDING_INPUTS}
    axes[EMBEDDING_OUTPUT] = {0: "batch"}
    with as_setup_error("the encoder cannot be exported to ONNX"):
        _trace(_Sentence(model), example, [EMBEDDING_OUTPUT], axes, path)


def _trace(
    module: torch.nn.Module,
    example: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    axes: Mapping[str, dict[int, str]],
    path: Path,
) -> None:
    """Writes a module's graph, traced on a batch whose second row is half padded."""
    with silent_stdout():
        torch.onnx.export(
            module.eval(),
            tuple(example.values()),
            str(path),
            input_names=list(example),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )


@contextmanager
def silent_stdout() -> Iterator[None]:
    """Discards file descriptor 1: torch's C++ prints every node of a graph it cannot export."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
