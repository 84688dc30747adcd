"""Small models with random weights and real tokenizers, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

from tests.support import Lazy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

torch, transformers = Lazy("torch"), Lazy("transformers")
KINDS = ("bert", "roberta", "distilbert")
MAX_SEQUENCE_TOKENS = 64

_CORPUS = (
    "The lighthouse on the point was built in 1849 by an engineer. Who built the lighthouse?",
    "When was it built, where does it stand, and what did the lamp burn? It burned whale oil.",
)
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.4,  # the usual 0.02 would make every logit nearly zero
}


def make_tiny_model(kind: str, folder: Path) -> PreTrainedModel:
    """Writes a question-answering model and its tokenizer, as the hub has them."""
    torch.manual_seed(20)
    tokenizer = bpe_tokenizer() if kind == "roberta" else wordpiece_tokenizer()
    model = _MAKERS[kind](len(tokenizer)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def _bert(vocab_size: int) -> PreTrainedModel:
    config = transformers.BertConfig(
        vocab_size=vocab_size, max_position_embeddings=MAX_SEQUENCE_TOKENS, **_SHAPE
    )
    return transformers.BertForQuestionAnswering(config)


def _roberta(vocab_size: int) -> PreTrainedModel:
    positions = MAX_SEQUENCE_TOKENS + 2  # RoBERTa's first position is padding_idx + 1
    config = transformers.RobertaConfig(
        vocab_size=vocab_size, max_position_embeddings=positions, type_vocab_size=1, **_SHAPE
    )
    return transformers.RobertaForQuestionAnswering(config)


def _distilbert(vocab_size: int) -> PreTrainedModel:
    config = transformers.DistilBertConfig(
        vocab_size=vocab_size,
        max_position_embeddings=MAX_SEQUENCE_TOKENS,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        initializer_range=0.4,
    )
    return transformers.DistilBertForQuestionAnswering(config)


_MAKERS = {"bert": _bert, "roberta": _roberta, "distilbert": _distilbert}


def wordpiece_tokenizer() -> PreTrainedTokenizerBase:
    trained = BertWordPieceTokenizer()
    trained.train_from_iterator(iter(_CORPUS), vocab_size=300, show_progress=False)
    return transformers.BertTokenizer(vocab=trained.get_vocab())


def bpe_tokenizer() -> PreTrainedTokenizerBase:
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        iter(_CORPUS),
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
    )
    model = json.loads(trained.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)
