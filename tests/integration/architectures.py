"""A small model of every architecture that transformers loads for question answering.

With random weights and real tokenizers, made on the spot.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing

from tests.support import Lazy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

torch, transformers = Lazy("torch"), Lazy("transformers")

_CORPUS = (
    "The lighthouse on the point was built in 1849 by an engineer. Who built the lighthouse?",
    "When was it built, where does it stand, and what did the lamp burn? It burned whale oil.",
)
_SIZES = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "dim", "emb_dim", "n_embd", "embedding_size",
         "input_embedding_size", "output_embedding_size", "word_embed_proj_dim",
         "pooler_hidden_size", "prediction_head_size", "pronunciation_embed_dim",
         "shape_embed_dim", "true_hidden_size", "intra_bottleneck_size"), 32),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "ffn_dim",
         "d_inner", "d_ff", "ffn_hidden_size", "feed_forward_size", "moe_intermediate_size",
         "shared_expert_intermediate_size", "prompt_mid_dim"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers", "n_layer",
         "num_layers", "num_decoder_layers", "l_layers", "x_layers", "r_layers",
         "num_feedforward_networks"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "n_heads",
         "n_head", "num_heads", "num_key_value_heads", "num_kv_heads", "linear_num_key_heads",
         "linear_num_value_heads"), 4),
    **dict.fromkeys(
        ("head_dim", "d_head", "d_kv", "attention_head_size", "linear_key_head_dim",
         "linear_value_head_dim"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    "num_experts_per_tok": 2,
    "rotary_dim": 8,
    "entity_vocab_size": 10,
    "entity_emb_size": 8,
    "pronunciation_vocab_size": 400,
    "shape_vocab_size": 400,
    "max_2d_position_embeddings": 64,
    "initializer_range": 0.4,  # the usual 0.02 would make every logit nearly zero
    "init_std": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
    "decoder_start_token_id": 3,
}  # fmt: skip
"""What is small of any config that has it."""

_SPECIAL: dict[str, dict[str, Any]] = {
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"]},
    "funnel": {"block_sizes": [1, 1], "block_repeats": None, "num_decoder_layers": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "led": {"attention_window": [16, 16]},
    "lilt": {"hidden_size": 48},
    "longformer": {"attention_window": [16, 16], "pad_token_id": 1, "bos_token_id": 0,
                   "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2},
    "mobilebert": {"initializer_range": 0.1},
    "minimax": {"block_size": 16},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    **{kind: {"decoder_start_token_id": 0} for kind in ("t5", "mt5", "umt5")},
    "reformer": {"attn_layers": ["local", "lsh"], "axial_pos_shape": [16, 16],
                 "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 256},
    "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}  # fmt: skip

TOKENS = 400
"""Positions of those that count them."""

MAX_SEQUENCE_TOKENS = 64
"""Those that `make_tiny_model`'s models read."""


def make_small_model(
    kind: str,
    folder: Path,
    make_tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None,
    **changes: Any,
) -> PreTrainedModel:
    """Writes a model with random weights and a tokenizer, as the hub has them.

    Args:
        kind: One of `ARCHITECTURES`.
        folder: Where to.
        make_tokenizer: Its tokenizer, if not that of its kind.
        changes: What else its config is to say.
    """
    torch.manual_seed(20)
    tokenizer = (make_tokenizer or _TOKENIZERS.get(kind, wordpiece_tokenizer))()
    config_class = transformers.CONFIG_MAPPING[kind]
    known = config_class().to_dict().keys() | config_class.attribute_map.keys()
    sizes: dict[str, Any] = {
        **_SIZES,
        "vocab_size": len(tokenizer) + 8,
        "max_position_embeddings": TOKENS,
    }
    given = {name: value for name, value in sizes.items() if name in known}
    config = config_class(**given | _SPECIAL.get(kind, {}) | changes)
    model_class: Any = transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING[type(config)]
    model = model_class(config).eval()
    for name, weight in model.named_parameters():
        if "qa_outputs" in name and weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def make_tiny_model(kind: str, folder: Path) -> PreTrainedModel:
    """As `make_small_model`, of one that reads `MAX_SEQUENCE_TOKENS`."""
    unused = _SPECIAL.get(kind, {}).get("pad_token_id", -1) + 1  # positions up to the padding's
    return make_small_model(kind, folder, max_position_embeddings=MAX_SEQUENCE_TOKENS + unused)


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


def typeless_tokenizer() -> PreTrainedTokenizerFast:
    """One that gives no token types, as those of many models with types do not."""
    return _without_class(wordpiece_tokenizer().backend_tokenizer, "input_ids", "attention_mask")


def xlnet_tokenizer() -> PreTrainedTokenizerFast:
    """One that puts its CLS last."""
    backend = wordpiece_tokenizer().backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single="$A:0 [SEP]:0 [CLS]:2",
        pair="$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return _without_class(backend, "input_ids", "token_type_ids", "attention_mask")


def _without_class(backend: Tokenizer, *inputs: str) -> PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=list(inputs),
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip


_TOKENIZERS = {
    "longformer": bpe_tokenizer,
    "roberta": bpe_tokenizer,
    "xlnet": xlnet_tokenizer,
    **dict.fromkeys(
        ("albert", "jina_embeddings_v3", "mra", "splinter", "yoso"), typeless_tokenizer
    ),
}
