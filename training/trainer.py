"""The training loop: batches in, an adapter out; an interrupted run resumes.

A run is a fixed list of batches, drawn from the seed before it starts. A checkpoint holds the
weights, the optimizer, and the number of batches done. So a resumed run sees the same batches as an
uninterrupted one. A run with a time limit ends by then, with as many batches as there was time for:
the learning rate falls with the time.

A GPU does not wait for the loop: the next batches are padded and copied by a thread, and a loss is
read only when it is shown.
"""

from __future__ import annotations

import functools
import json
import logging
import time
import timeit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qa_service.evaluation.measures import Metrics
from qa_service.progress import progress_bar
from training.features import Features, TrainingBatch, collate

_CHECKPOINT_FILE = "checkpoint.pt"
_LOG_FILE = "training_log.jsonl"
_LOG = logging.getLogger(__name__)

_PREPARED_BATCHES = 4
"""Batches that are padded and copied before their turn."""
_SHOWN_EVERY = 20
"""Steps between two looks at the loss, for which a GPU has to finish what it was given."""

_NEVER = -1e4
"""A logit of probability 0, finite because 0 times infinity is NaN."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How to train.

    Attributes:
        learning_rate: The peak: reached linearly, then lowered linearly to zero.
        weight_decay: AdamW's (Loshchilov and Hutter, 2019).
        max_gradient_norm: Longer gradients are shortened to this.
        max_seconds: When a run ends, whatever is left; 0 for never.
    """

    learning_rate: float = 5e-4
    warmup_share: float = 0.05
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    checkpoint_steps: int = 200
    evaluation_steps: int = 400
    max_seconds: float = 0.0


class Trainer:
    """Trains a model on a list of batches; calls `evaluate` at intervals, in eval mode."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        output_dir: Path,
        evaluate: Callable[[], Metrics],
    ) -> None:
        self._model = model.to(training_device()).train()
        self._config = config
        self._output_dir = output_dir
        self._evaluate = evaluate
        self._weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._weights.values(),
            config.learning_rate,
            weight_decay=config.weight_decay,
            fused=training_device().type == "cuda",
        )
        self._steps_done = 0
        self._seconds = 0.0

    def train(
        self, rows: Sequence[Features], batches: Sequence[Sequence[int]], pad_token_id: int
    ) -> Metrics:
        """Trains on every batch of row indices once, from the checkpoint on if there is one.

        Returns:
            Steps, hours, and the mean loss of the last tenth.
        """
        self._resume(len(batches))
        losses: list[torch.Tensor] = []
        bar = progress_bar(total=len(batches), initial=self._steps_done, unit="batch")
        left = batches[self._steps_done :]
        began = time.monotonic()
        for batch in _prepared(rows, left, pad_token_id):
            losses.append(self._step(batch, len(batches)))
            if self._steps_done % _SHOWN_EVERY == 0:
                bar.set_postfix(loss=f"{_mean(losses[-100:]):.3f}", refresh=False)
            bar.update()
            self._seconds += time.monotonic() - began
            self._at_intervals(len(batches))
            began = time.monotonic()
            if 0 < self._config.max_seconds <= self._seconds:
                break
        return {
            "steps": self._steps_done,
            "training_hours": self._seconds / 3600,
            "final_loss": _mean(losses[-max(1, len(losses) // 10) :]),
        }

    def _step(self, batch: TrainingBatch, total_steps: int) -> torch.Tensor:
        if not self._model.training:
            self._model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * self._rate(total_steps)
        with autocast():
            output = self._model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        loss = span_loss(output.start_logits, output.end_logits, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._weights.values(), self._config.max_gradient_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._steps_done += 1
        return loss.detach()

    def _rate(self, total_steps: int) -> float:
        """The share of the peak learning rate that the next step takes, in (0, 1]."""
        warmup_steps = max(1, round(self._config.warmup_share * total_steps))
        rising = (self._steps_done + 1) / warmup_steps
        left = 1 - self._steps_done / total_steps
        if self._config.max_seconds:
            left = min(left, max(0.0, 1 - self._seconds / self._config.max_seconds))
        falling = left / max(1 / total_steps, 1 - warmup_steps / total_steps)
        return min(1.0, rising, falling)

    def _at_intervals(self, total_steps: int) -> None:
        if self._steps_done % self._config.evaluation_steps == 0 < total_steps - self._steps_done:
            self._model.eval()
            self._log(self._evaluate())
        if self._steps_done % self._config.checkpoint_steps == 0:
            self._save(total_steps)

    def _log(self, metrics: Metrics) -> None:
        line = json.dumps({"step": self._steps_done, **metrics})
        _LOG.info("%s", line)
        with (self._output_dir / _LOG_FILE).open("a") as file:
            file.write(line + "\n")

    def _save(self, total_steps: int) -> None:
        state = {
            "config": asdict(self._config),
            "total_steps": total_steps,
            "steps_done": self._steps_done,
            "seconds": self._seconds,
            "weights": {name: weight.detach() for name, weight in self._weights.items()},
            "optimizer": self._optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        whole = self._output_dir / _CHECKPOINT_FILE
        partial = whole.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(whole)

    def _resume(self, total_steps: int) -> None:
        path = self._output_dir / _CHECKPOINT_FILE
        if not path.exists():
            return
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if (state["config"], state["total_steps"]) != (asdict(self._config), total_steps):
            raise ValueError(f"{path} is of a run with other settings: remove it to start again")
        self._model.load_state_dict(state["weights"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self._steps_done, self._seconds = state["steps_done"], state["seconds"]
        _LOG.info("resumed after %d of %d steps", self._steps_done, total_steps)


def _prepared(
    rows: Sequence[Features], batches: Sequence[Sequence[int]], pad_token_id: int
) -> Iterator[TrainingBatch]:
    """Pads batches and copies them to the device, some ahead of their turn."""
    device = training_device()

    def prepare(numbers: Sequence[int]) -> TrainingBatch:
        return collate([rows[i] for i in numbers], pad_token_id).to(device)

    with ThreadPoolExecutor(1) as thread:
        ahead: deque[Future[TrainingBatch]] = deque()
        try:
            for numbers in batches:
                ahead.append(thread.submit(prepare, numbers))
                if len(ahead) > _PREPARED_BATCHES:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _mean(losses: Sequence[torch.Tensor]) -> float:
    return float(torch.stack(list(losses)).mean()) if losses else float("nan")


def span_loss(start: torch.Tensor, end: torch.Tensor, batch: TrainingBatch) -> torch.Tensor:
    """Cross-entropy of the batch's probabilities and the model's logits, float [batch, seq].

    It is the mean over both ends, and over two readings: each row by itself, and each group by one
    softmax, over a null answer and the tokens of all its rows relative to each row's own, as the
    passages of a collection are compared (the shared norm of Clark and Gardner 2018). For a row
    alone both are the same. Padding does not count.
    """
    padding = batch.attention_mask == 0
    groups, count = len(batch.group), batch.group.max() + 1
    is_of = batch.group == torch.arange(groups, device=batch.group.device)[:, None]
    losses = []
    sides = (start, batch.start, batch.start_in_group), (end, batch.end, batch.end_in_group)
    for logits, wanted, in_group in sides:
        relative = (logits.float() - logits[:, :1].float()).masked_fill(padding, _NEVER)
        losses.append((relative.logsumexp(dim=1) - (wanted * relative).sum(dim=1)).mean())
        tokens = relative[:, 1:].logsumexp(dim=1).expand(groups, -1).masked_fill(~is_of, _NEVER)
        totals = nn.functional.pad(tokens, (1, 0)).logsumexp(dim=1)
        of_groups = totals - is_of.float() @ (in_group * relative).sum(dim=1)
        losses.append(of_groups.sum() / count)
    return torch.stack(losses).mean()


def training_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast() -> torch.autocast:
    """Computes matrix products in bfloat16, on a CPU only if that is faster."""
    device = training_device().type
    return torch.autocast(
        device, dtype=torch.bfloat16, enabled=device != "cpu" or is_bfloat16_faster()
    )


@functools.cache
def is_bfloat16_faster() -> bool:
    """Measures for a tenth of a second, since CPU flags do not tell.

    Few rows come first: a CPU without bfloat16 takes ten seconds for many.
    """
    return all(
        _product_s(torch.bfloat16, rows) < _product_s(torch.float32, rows) for rows in (64, 2048)
    )


def _product_s(dtype: torch.dtype, rows: int) -> float:
    """The shortest time of a matrix product, without the first run."""
    batch, weights = torch.ones(rows, 384, dtype=dtype), torch.ones(384, 1536, dtype=dtype)
    return min(timeit.repeat(lambda: batch @ weights, repeat=6, number=1)[1:])
