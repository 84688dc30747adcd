"""An instance proves itself: it computes rows whose logits are known, by its real path.

before it is ready   the tokens of known questions and texts, each kind of row alone, rows of
several lengths together, few and many, every shape that the engine has prepared, and the spans
that it chooses
while it serves      each row in turn, in a batch of drawn size with drawn others, and each shape
that the engine has prepared by then, one of both whenever the loop asks for it
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from qa_service.errors import EngineFaultError, WrongAnswerError
from qa_service.instance.arrays import Int64Array, Logits, LogitsFunction
from qa_service.instance.engines.base import Engine
from qa_service.instance.model_folder.known_answers import KnownAnswers, KnownRow
from qa_service.instance.model_folder.manifest import Manifest
from qa_service.instance.reader.reader import Reader
from qa_service.instance.reader.spans import best_spans
from qa_service.instance.reader.windows import Window, padded

BATCH_SIZE = 16
"""Bounds a batch in the check before ready, in which all rows but those alone are together."""
NUM_ALONE = 3
"""Rows that run alone in it: the longest, and others; a start waits for all runs."""
FEW = 2, 4
"""Sizes of further batches in it, of the shortest rows: most batches of a server are small."""
NUM_WINDOWS = 2
"""Bounds a drawn batch, in tokens of full windows, padding included: a question may wait for it."""
SEED = 1
"""Of what is drawn, so that a failure can be repeated."""


class SelfTest:
    """Compares what an instance computes with the known answers.

    Args:
        tolerances: By how much a logit may differ, by the row's name.
        name: The engine and precision, for the message.

    Attributes:
        largest: The largest difference of a logit so far, by the row's name.
        took_ms: How long the check before ready took.
    """

    def __init__(
        self,
        known: KnownAnswers,
        reader: Reader,
        engine: Engine,
        manifest: Manifest,
        *,
        tolerances: Callable[[str], float],
        name: str,
    ) -> None:
        self.largest: dict[str, float] = {}
        self.took_ms = 0.0
        self._tolerances = tolerances
        self._rows = sorted(known.rows, key=lambda row: -len(row.ids))
        self._all = [*known.vocabulary, *known.rows]
        self._turns = itertools.cycle(self._all)
        self._shape_turns = itertools.count()
        self._draw = random.Random(SEED)
        self._reader = reader
        self._engine = engine
        self._manifest = manifest
        self._name = name

    def check(self) -> None:
        """Runs the rows in all the ways in which the instance will run questions."""
        started_s = time.monotonic()
        self._check_tokens()
        alone, together = self._rows[:NUM_ALONE], self._rows[NUM_ALONE:]
        if not self._manifest.may_pad:
            alone, together = self._rows, []
        for row in alone:
            self._run([row])
        # Rows of neighbouring lengths are apart, so that there is padding to look past.
        num_batches = -(-len(together) // min(BATCH_SIZE, self._reader.rule.max_batch_size))
        for first in range(num_batches):
            self._run(together[first::num_batches])
        for size in FEW:
            if num_batches and size < min(len(together), self._reader.rule.max_batch_size):
                self._run(together[-size:])
        for shape in self._engine.shapes:
            self._run_shape(*shape)
        if self._reader.chooses_spans:
            self._check_spans()
        self.took_ms = (time.monotonic() - started_s) * 1e3

    def check_next(self) -> None:
        """Runs the next row, in a batch, and the next of the shapes that are prepared by now.

        Where one fails, what the engine keeps of the shape that it ran in is removed.
        """
        try:
            self._run(self._batch_of(next(self._turns)))
            if shapes := self._engine.shapes:
                self._run_shape(*shapes[next(self._shape_turns) % len(shapes)])
        except EngineFaultError:
            self._engine.forget_kept()
            raise

    def _batch_of(self, row: KnownRow) -> list[KnownRow]:
        """The row among others: one to as many as fit, a few as often as many."""
        max_tokens = NUM_WINDOWS * self._manifest.window_tokens
        most = min(self._reader.rule.max_batch_size, max_tokens // len(row.ids))
        size = round(max(1, most) ** self._draw.random())
        fitting = [one for one in self._all if one is not row and len(one.ids) <= max_tokens / size]
        others = self._draw.choices(fitting, k=size - 1) if fitting else []
        place = self._draw.randrange(len(others) + 1)
        return [*others[:place], row, *others[place:]]

    def check_shape(self, run: LogitsFunction, rows: int, tokens: int) -> None:
        """Runs what is prepared for a shape on its longest row and others that fit into it."""
        shortest = 0 if self._manifest.may_pad else tokens
        fitting = [row for row in self._all if shortest <= len(row.ids) <= tokens]
        if fitting:
            longest = max(fitting, key=lambda row: len(row.ids))
            members = [longest, *self._draw.choices(fitting, k=rows - 1)]
            batch = padded([as_window(row) for row in members], self._manifest.pad_token_id, tokens)
            where = f"in the shape of {rows} rows of {tokens} tokens"
            start, end = self._attempt(members, where, lambda: run(*batch))
            self._compare(members, where, zip(start, end, strict=True))

    def _run_shape(self, rows: int, tokens: int) -> None:
        self.check_shape(self._engine.logits, rows, tokens)

    def _run(self, members: Sequence[KnownRow]) -> None:
        windows = [as_window(row) for row in members]
        where = "alone" if len(members) == 1 else f"in a batch of {len(members)}"
        logits = self._attempt(members, where, lambda: self._reader.run_logits(windows))
        self._compare(members, where, logits)

    def _check_tokens(self) -> None:
        """Compares the tokens of known questions and texts: other tokens are another question."""
        for row in self._rows:
            if row.asked is None or len(row.ids) > self._manifest.window_tokens:
                continue  # the window may be shorter now than when the model was prepared
            found = self._attempt([row], "in words", partial(self._reader.first_window, *row.asked))
            known = as_window(row)
            is_same = (
                np.array_equal(found.input_ids, known.input_ids)
                and np.array_equal(found.token_type_ids, known.token_type_ids)
                and (found.text_begin, found.text_end) == row.text
            )
            if not is_same:
                raise WrongAnswerError(
                    f"the tokenizer works wrongly: of {_asked(row, 'in words')}, it made the "
                    f"tokens {_few(found.input_ids)}, where {_few(known.input_ids)} are known"
                )

    def _check_spans(self) -> None:
        """Compares the best spans that the engine chooses with those of its logits."""
        config = self._manifest.reading
        for row in self._rows:
            window = as_window(row)
            (logits,) = self._reader.run_logits([window])
            run = partial(self._reader.run_best_spans, window)
            found = self._attempt([row], "for its spans", run)
            wanted = best_spans(window, *logits, config)
            theirs, ours = found.candidates[0].log_score, wanted.candidates[0].log_score
            difference = max(abs(theirs - ours), abs(found.log_total - wanted.log_total))
            # A log score is the sum of up to four logits.
            if not difference <= 4 * self._tolerances(row.name) / config.temperature:
                raise WrongAnswerError(
                    f"{self._name} computes wrongly: asked {_asked(row, 'for its spans')}, it "
                    f"scored the best {theirs:.4g}, where its logits give {ours:.4g}; the "
                    f"largest difference is {difference:.3g}"
                )

    def _attempt(self, members: Sequence[KnownRow], where: str, run: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `run` returns
        try:
            return run()
        except Exception as error:  # an engine's library may raise anything
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            asked = _asked(members[0], where)
            raise WrongAnswerError(f"{self._name} cannot run {asked}: {reason}") from error

    def _compare(
        self, members: Sequence[KnownRow], where: str, logits: Iterator[Logits] | list[Logits]
    ) -> None:
        """Compares each row's logits with the known ones; complains of the largest difference."""
        worst, words = 0.0, ""
        for row, (start, end) in zip(members, logits, strict=True):
            tolerance = self._tolerances(row.name)
            for side, found, known in (("start", start, row.start), ("end", end, row.end)):
                differences = np.abs(found[row.places] - np.array(known, np.float32))
                place = int(np.argmax(differences))  # of a NaN, if there is one
                difference = float(differences[place])
                self.largest[row.name] = max(self.largest.get(row.name, 0.0), difference)
                if not difference <= max(worst, tolerance):
                    worst = difference
                    words = (
                        f"asked {_asked(row, where)}, it gave the {side} logit "
                        f"{found[row.places[place]]:.4g} at token {row.places[place]}, where "
                        f"{known[place]:.4g} is known; the largest difference is {difference:.3g}, "
                        f"and {tolerance:.3g} is tolerated"
                    )
        if words:
            raise WrongAnswerError(f"{self._name} computes wrongly: {words}")


def _few(ids: Int64Array) -> str:
    return " ".join(map(str, ids[:16]))


def _asked(row: KnownRow, where: str) -> str:
    return f"{row.name} ({len(row.ids)} tokens) {where}"


def as_window(row: KnownRow) -> Window:
    ids, types = np.array(row.ids, np.int64), np.array(row.types, np.int64)
    return Window(ids, types, *row.text, first_token=0)
