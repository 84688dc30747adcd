"""A source's files become a plain PyTorch question-answering model, with trained weights only."""

from __future__ import annotations

import inspect
import logging
import shutil
import warnings
from collections.abc import Iterator
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
from transformers.utils import logging as transformers_logging

from qa_service.errors import SetupError
from qa_service.preparation.sources import Source, first_line
from qa_service.repository.manifest import CONFIG_FILE, PYTORCH_FILE, TOKENIZER_FILE

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_USUAL_MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to be saved and exported.

    Attributes:
        model: In float32, its attention written out in plain operators,
            which is the form that ONNX Runtime's optimizer knows how to fuse.
        tokenizer: Its fast tokenizer, without truncation and padding.
        inputs: The inputs it takes, in the order of its `forward`.
        pad_token_id: The id it was trained to see as padding.
        max_sequence_tokens: The longest sequence it has positions for.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    inputs: tuple[str, ...]
    pad_token_id: int
    max_sequence_tokens: int

    def save(self, folder: Path) -> None:
        """Writes `config.json`, `model.safetensors` and `tokenizer.json`."""
        self.model.save_pretrained(folder)
        # safetensors lets only the owner read its files; a server may run as someone else.
        shutil.copymode(folder / CONFIG_FILE, folder / PYTORCH_FILE)
        self.tokenizer.save(str(folder / TOKENIZER_FILE))


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hushes what transformers, peft and torch say when all is well; errors still come."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("onnxruntime").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load(source: Source) -> LoadedModel:
    """Loads a source's model and tokenizer.

    Raises:
        SetupError: `transformers` cannot load it, it is no extractive question-answering model,
            some of its weights were never trained, or it has no fast tokenizer of its own.
    """
    tokenizer = _load_tokenizer(source)
    model = _load_model(source)
    if source.adapter_dir:
        model = _merge_adapter(model, source.adapter_dir)
    if len(tokenizer) > model.config.vocab_size:
        raise SetupError(f"the tokenizer of {source.label} has more tokens than its model")
    return LoadedModel(
        model=model,
        tokenizer=_without_limits(tokenizer),
        inputs=_inputs_of(model, is_adapted=source.adapter_dir is not None),
        pad_token_id=_pad_token_id(model, tokenizer),
        max_sequence_tokens=_max_sequence_tokens(model, tokenizer),
    )


def _load_model(source: Source) -> PreTrainedModel:
    model: PreTrainedModel
    try:
        model, report = AutoModelForQuestionAnswering.from_pretrained(
            source.model_dir,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # broken files and unknown architectures each raise their own
        raise SetupError(
            f"transformers cannot load {source.label} for question answering: {first_line(error)}"
        ) from None
    misfits = [name for name, *_ in report["mismatched_keys"]]
    untrained = sorted([*report["missing_keys"], *misfits])
    if untrained and not source.adapter_dir:
        raise SetupError(
            f"{source.label} was not trained for extractive question answering: it has no weights "
            f"that fit {', '.join(untrained[:3])}; choose a model that was"
        )
    return model


def _merge_adapter(encoder: PreTrainedModel, adapter_dir: Path) -> PreTrainedModel:
    """Adds a LoRA adapter's products to the weights they adapt, which leaves a plain model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        try:
            merged = PeftModel.from_pretrained(encoder, str(adapter_dir)).merge_and_unload()
        except Exception as error:  # missing keys, wrong shapes and broken files, each its own
            raise SetupError(
                f"the adapter in {adapter_dir} is broken: {first_line(error)}"
            ) from None
    assert isinstance(merged, PreTrainedModel)
    return merged


def _load_tokenizer(source: Source) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.model_dir, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # missing packages, files and formats each raise their own
        raise SetupError(
            f"cannot load the tokenizer of {source.label}: {first_line(error)}"
        ) from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SetupError(
            f"{source.label} has only a slow tokenizer ({type(tokenizer).__name__}); "
            "the server needs a fast one (tokenizer.json)"
        )
    return tokenizer


def _without_limits(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Takes the tokenizer proper: cutting texts into windows is the reader's business."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend


def _inputs_of(model: PreTrainedModel, *, is_adapted: bool) -> tuple[str, ...]:
    """RoBERTa's forward takes token types but has one kind only; DistilBERT's takes none.

    An adapted model never saw any: `PeftModelForQuestionAnswering.forward` does not hand token
    types on, so it was trained with zeros. Given types, the built-in one loses 3 points of F1.
    """
    has_types = getattr(model.config, "type_vocab_size", 0) > 1 and not is_adapted
    return tuple(
        name
        for name in inspect.signature(model.forward).parameters
        if name in _INPUTS and (name != "token_type_ids" or has_types)
    )


def _pad_token_id(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    for pad_token_id in (getattr(model.config, "pad_token_id", None), tokenizer.pad_token_id):
        if pad_token_id is not None:
            return int(pad_token_id)
    return 0


def _max_sequence_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """Counts the positions the model can really use.

    RoBERTa and relatives number positions from padding_idx + 1 on, so that the first rows of their
    table are never used: 514 rows for 512 tokens. Models with relative positions only have no
    table; theirs is what the config or the tokenizer says (1e30 there means "not known").
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - unused
    stated = getattr(model.config, "max_position_embeddings", 0) or tokenizer.model_max_length
    return int(stated) if 0 < stated < 1e6 else _USUAL_MAX_TOKENS
