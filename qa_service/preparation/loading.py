"""Loads a source's files as a plain PyTorch question-answering model, and makes its ONNX graph."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qa_service.engine_catalogue import PYTORCH_FILE
from qa_service.errors import SetupError
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.engines.base import named_inputs
from qa_service.instance.engines.pytorch import logits_of
from qa_service.instance.model_folder.manifest import CONFIG_FILE, TOKENIZER_FILE
from qa_service.instance.reader.windows import sample_rows
from qa_service.preparation import graphs
from qa_service.preparation.source_model import (
    INPUTS,
    OUTPUTS,
    USUAL_MAX_TOKENS,
    SourceModel,
    checked_pair,
    null_position,
)
from qa_service.preparation.sources import Source, as_setup_error

OPSET = 17
"""The first with LayerNormalization as one operator."""
_MAX_FILE_BYTES = 2**31 - 2**20
"""Protobuf's limit, less a MiB for the graph itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(SourceModel):
    """A model ready to be saved and exported.

    Attributes:
        model: In float32, with eager attention, which ONNX Runtime's optimizer can fuse.
    """

    model: PreTrainedModel

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        # safetensors writes files that only the owner can read; a server may be another user.
        shutil.copymode(folder / CONFIG_FILE, folder / PYTORCH_FILE)
        self.tokenizer.save(str(folder / TOKENIZER_FILE))

    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        return logits_of(self.model, self.inputs)(ids, mask, types)

    def write_graph(self, path: Path) -> int:
        self.write_plain_graph(path)
        config = self.model.config
        heads, size = (getattr(config, name, 0) for name in ("num_attention_heads", "hidden_size"))
        return graphs.fuse(path, heads, size)

    def write_plain_graph(self, path: Path) -> None:
        export_onnx(self, path)


def load(source: Source) -> LoadedModel:
    tokenizer = _load_tokenizer(source)
    model = _load_model(source)
    model.eval()  # type: ignore[no-untyped-call]
    has_types = source.adapter_dir is None and "token_type_ids" in tokenizer("a", "b")
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    pair = checked_pair(backend, source.label, getattr(model.config, "vocab_size", None))
    pads = getattr(model.config, "pad_token_id", None), tokenizer.pad_token_id
    return LoadedModel(
        model=model,
        tokenizer=backend,
        inputs=_inputs_of(model, has_types=has_types),
        pad_token_id=int(next((one for one in pads if one is not None), 0)),
        max_sequence_tokens=_max_sequence_tokens(model, tokenizer),
        null_position=null_position(pair, tokenizer.cls_token_id, tokenizer.bos_token_id),
    )


def _load_model(source: Source) -> PreTrainedModel:
    model: PreTrainedModel
    with as_setup_error(f"transformers cannot load {source.label} for question answering"):
        model, report = AutoModelForQuestionAnswering.from_pretrained(
            source.model_dir,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    misfits = [name for name, *_ in report["mismatched_keys"]]
    untrained = sorted([*report["missing_keys"], *misfits])
    if untrained and not source.adapter_dir:
        raise SetupError(
            f"{source.label} was not trained for extractive question answering: it has no weights "
            f"that fit {', '.join(untrained[:3])}; choose a model that was"
        )
    if source.adapter_dir:  # merged into the weights, which makes a plain model
        broken = as_setup_error(f"the adapter in {source.adapter_dir} is broken")
        with warnings.catch_warnings(), broken:
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = PeftModel.from_pretrained(model, str(source.adapter_dir))
            merged = adapted.merge_and_unload()
        assert isinstance(merged, PreTrainedModel)
        return merged
    return model


def _load_tokenizer(source: Source) -> PreTrainedTokenizerFast:
    with as_setup_error(f"cannot load the tokenizer of {source.label}"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.model_dir, local_files_only=True, trust_remote_code=False
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SetupError(
            f"{source.label} has only a slow tokenizer ({type(tokenizer).__name__}); "
            "the server needs a fast one (tokenizer.json)"
        )
    return tokenizer


def _inputs_of(model: PreTrainedModel, *, has_types: bool) -> tuple[str, ...]:
    """The inputs that both the tokenizer makes and the model's `forward` takes.

    RoBERTa's `forward` takes token types but has only one. An adapted model was trained without
    them, because `PeftModelForQuestionAnswering.forward` does not pass them on: with token types,
    the built-in model loses 3 points of F1.
    """
    has_types = has_types and getattr(model.config, "type_vocab_size", 2) > 1
    return tuple(
        name
        for name in inspect.signature(model.forward).parameters
        if name in INPUTS and (name != "token_type_ids" or has_types)
    )


def _max_sequence_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """The number of positions that the model can use.

    RoBERTa and its relatives number positions from padding_idx + 1, so that the first rows of their
    table are unused: 514 rows for 512 tokens. A model with only relative positions has no table;
    then the config or the tokenizer says (1e30 means "not known").
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - unused
    stated = getattr(model.config, "max_position_embeddings", 0) or tokenizer.model_max_length
    return int(stated) if 0 < stated < 1e6 else USUAL_MAX_TOKENS


class _Logits(torch.nn.Module):
    """Takes the inputs by position and returns the two logits, as the graph does."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.model = loaded.model
        self.inputs = loaded.inputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return output.start_logits, output.end_logits


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
        write_traced(_Logits(loaded), example, OUTPUTS, axes, path)


def write_traced(
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
