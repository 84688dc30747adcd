"""A model of bert-base's shape with random weights: it answers nonsense, at bert-base's speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast

from qa_service.instance.model_folder.manifest import (
    TOKENIZER_FILE,
    Manifest,
    ReadingConfig,
    save_manifest,
)

SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {},  # BertConfig's own defaults: 12 layers of 768, 12 heads, 110 M weights
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    },
}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def make_random_bert(shape: str, tokenizer_of: Path, folder: Path, *, engine_type: str) -> Path:
    """Makes a model that the server can run.

    Args:
        shape: One of `SHAPES`.
        tokenizer_of: A prepared model whose tokenizer, of BERT's 30,522 uncased words, is used.
        engine_type: The engine that is to run it. For PyTorch nothing is exported, and the packages
            for that need not be installed.

    Returns:
        The prepared model's folder.
    """
    torch.manual_seed(0)
    model = BertForQuestionAnswering(BertConfig(**SHAPES[shape])).eval()
    source = folder / shape
    model.save_pretrained(source)
    tokenizer_file = str(tokenizer_of / TOKENIZER_FILE)
    if engine_type != "pytorch":
        from qa_service.preparation.prepare import PrepareArgs, prepare  # noqa: PLC0415

        PreTrainedTokenizerFast(tokenizer_file=tokenizer_file).save_pretrained(source)
        prepared = folder / "prepared"
        prepare(PrepareArgs(str(source), prepared, precision="fp16"))
        return prepare(PrepareArgs(str(source), prepared, tensorrt=engine_type == "tensorrt"))
    (source / TOKENIZER_FILE).write_bytes(Path(tokenizer_file).read_bytes())
    manifest = Manifest(
        name=shape,
        source=shape,
        fingerprint="",
        files={},
        inputs=INPUTS,
        pad_token_id=0,
        max_sequence_tokens=512,
        can_abstain=False,
        reading=ReadingConfig(),
        versions={},
    )
    save_manifest(source, manifest)
    return source
