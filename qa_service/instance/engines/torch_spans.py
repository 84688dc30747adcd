"""Chooses spans by PyTorch on the GPU, so that the CPU looks at a few numbers a row.

It builds the table that `reader.spans` builds for a window, for all rows of a batch at once: a few
more kernels in the CUDA graph instead of one table after another on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qa_service.instance.arrays import NUM_BEST
from qa_service.instance.model_folder.manifest import ReadingConfig


def choose_spans(config: ReadingConfig, logits: Tensor, text_mask: Tensor) -> Tensor:
    """Finds the best spans of each row.

    Args:
        config: The null position must not be negative, since a row's end is not known here.
        logits: Start and end logits, float32 [2, rows, tokens].
        text_mask: int64 [rows, tokens], 1 for the row's text tokens, which are contiguous.

    Returns:
        float32 [rows, SPAN_VALUES], see `Engine.best_spans`; equals are in any order.
    """
    width = config.max_answer_tokens
    start, end = logits.masked_fill(text_mask == 0, -torch.inf)
    ends = torch.nn.functional.pad(end, (0, width - 1), value=-torch.inf)
    table = start[:, :, None] + ends.unfold(1, width, 1)
    if config.null_threshold is not None:
        table -= logits[:, :, config.null_position].sum(dim=0)[:, None, None]
    if config.length_penalty:
        further = torch.arange(1, width + 1, device=end.device)
        further = (further - config.usual_answer_tokens).clamp(min=0)
        table -= config.length_penalty * further
    table /= config.temperature
    spans = table.flatten(1)
    num_missing = max(0, NUM_BEST - spans.shape[1])
    spans = torch.nn.functional.pad(spans, (0, num_missing), value=-torch.inf)
    log_scores, numbers = spans.topk(NUM_BEST)
    log_total = spans.logsumexp(dim=1, keepdim=True)
    return torch.cat((log_total, numbers.float(), log_scores), dim=1)
