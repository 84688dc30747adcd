"""Tokenizers of a few words, and a reader that needs no model."""

from functools import cache
from pathlib import Path
from string import ascii_lowercase, digits, punctuation

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from harness.models import make_manifest
from qa_service.instance.arrays import BestSpansFunction, LogitsFunction
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.model_folder.manifest import TOKENIZER_FILE, ReadingConfig
from qa_service.instance.reader.reader import Reader

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


class MadeUpModel:
    """Logits that depend on a row's own tokens only, as a model's do; keeps what it was given."""

    def __init__(self, pad_token_id=0):
        self.pad_token_id = pad_token_id
        self.batches = []

    def __call__(self, ids, mask, types):
        assert ids.shape == mask.shape == types.shape
        assert ids.dtype == mask.dtype == types.dtype == np.int64
        assert np.all(ids[mask == 0] == self.pad_token_id)
        assert np.all(types[mask == 0] == 0)
        self.batches.append((ids, mask, types))
        waves = ids * 12.9898 + np.arange(ids.shape[1]) * 78.233 + types
        start, end = 6 * np.sin(waves), 6 * np.cos(waves * 1.7)
        start[mask == 0] = end[mask == 0] = 1000.0  # nothing may ever be read from padding
        return start.astype(np.float32), end.astype(np.float32)


def tiny_reader(
    folder: Path,
    kind: str = "bert",
    logits: LogitsFunction | None = None,
    reading: ReadingConfig = ReadingConfig(),  # noqa: B008
    limits: BatchRule = BatchRule(),  # noqa: B008
    best_spans: BestSpansFunction | None = None,
    *,
    may_pad: bool = True,
) -> Reader:
    """Makes a reader from a folder, into which it writes the kind's tokenizer."""
    if not (folder / TOKENIZER_FILE).exists():
        tiny_tokenizer(kind).save(str(folder / TOKENIZER_FILE))
    manifest = make_manifest(
        kind, pad_token_id=PAD_TOKEN_ID[kind], reading=reading, may_pad=may_pad
    )
    return Reader(folder, manifest, logits or MadeUpModel(PAD_TOKEN_ID[kind]), limits, best_spans)
