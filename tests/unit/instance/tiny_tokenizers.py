"""Tokenizers of three architectures with tiny vocabularies, made on the spot."""

from __future__ import annotations

from functools import cache
from string import ascii_lowercase, digits, punctuation

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

KINDS = ("bert", "distilbert", "roberta")
PAD_TOKEN_ID = {"bert": 0, "distilbert": 0, "roberta": 1}


@cache
def tiny_tokenizer(kind: str) -> Tokenizer:
    """One token a letter, but for the words `the` and `river`, which are one token each."""
    return {"bert": _bert, "distilbert": _distilbert, "roberta": _roberta}[kind]()


def _bert(text_type: int = 1) -> Tokenizer:
    letters = ascii_lowercase + digits
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + c for c in letters)]
    words += [*punctuation, "the", "river", "é", "字"]
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.add_special_tokens(words[:4])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{text_type} [SEP]:{text_type}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def _distilbert() -> Tokenizer:
    return _bert(text_type=0)


def _roberta() -> Tokenizer:
    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("t", "h"), ("th", "e"), ("r", "i"), ("ri", "v"), ("riv", "e"), ("rive", "r")]
    words += [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.add_special_tokens(words[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
