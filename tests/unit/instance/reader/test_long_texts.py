"""A long text has the same answers, whether the loop cuts it or the reader reads it whole."""

import random
from functools import cache
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.reader import Reader
from qa_service.instance.stages import Stopwatch
from qa_service.instance.worker_messages import Answers
from qa_service.server.scheduling.call import SegmentRead
from qa_service.server.scheduling.ticket import Ticket
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.segments import Segments
from qa_service.wire.messages import Question, Timings
from qa_service.wire.spans import SegmentResult
from tests.unit.calls import make_call
from tests.unit.instance.reader.texts import texts
from tests.unit.instance.tiny_reader import MadeUpModel, tiny_reader, tiny_tokenizer

WINDOWS = (64, 96, 128, 144, 384, 512)
WORDS = "the river runs by the old stone mill and on to the sea. "


class ReadingDispatcher:
    """Reads each segment alone, as an instance does; the youngest that waits first."""

    alive = 2

    def __init__(self, reader: Reader) -> None:
        self.pool, self.model, self._reader = self, reader.model, reader
        self._waiting, self.num_tasks = [], 0

    def ignore(self, *_, **__):
        """Nothing is scheduled."""

    admit = begin = reserve = ignore

    def cost_of(self, tokens):
        return float(tokens)

    def can_finish(self, ticket, cost):
        return True

    def submit(self, call):
        self.submit_segment(Ticket(call, 1))

    def submit_segment(self, segment):
        self._waiting.append(segment)

    def run(self):
        while self._waiting:
            ticket = self._waiting.pop()
            self.num_tasks += 1
            watch, task = Stopwatch(), ticket.call.request.as_task(ticket.core)
            (outcome,) = self._reader.answer(self._reader.encode([task], watch), watch)
            if isinstance(outcome, SegmentResult):
                ticket.call.settle(SegmentRead((), Timings(0.0, 0.0), segment=outcome))
            else:
                assert isinstance(outcome, Answers)
                ticket.call.resolve(outcome.answers, Timings(0.0, 0.0))


def read_in_segments(reader, question):
    """The answers of a text that the loop cuts, and how many segments it cut."""
    dispatcher, outcomes = ReadingDispatcher(reader), []
    call = make_call(
        question=question.question, text=question.text, top_k=question.top_k,
        on_settled=outcomes.append,
    )  # fmt: skip
    Segments(cast(Dispatcher, dispatcher)).submit(call)
    dispatcher.run()
    (outcome,) = outcomes
    return outcome.answers, dispatcher.num_tasks


@pytest.fixture(scope="module")
def make_reader(tmp_path_factory):
    folder = cache(tmp_path_factory.mktemp)

    def make(kind, window_tokens, overlap_tokens=128, logits=None):
        cut = {"window_tokens": window_tokens, "window_overlap_tokens": overlap_tokens}
        reading = ReadingConfig(max_answer_tokens=20, null_threshold=0.0, **cut)
        return tiny_reader(folder(kind), kind, logits, reading)

    return make


@pytest.mark.parametrize("kind", ["bert", "roberta"])  # DistilBERT's tokenizer is BERT's
@pytest.mark.parametrize("window_tokens", [WINDOWS[0], WINDOWS[-1]])
@settings(max_examples=8)
@given(
    pieces=st.lists(texts | st.just(WORDS), min_size=1, max_size=6),
    num_chars=st.integers(100, 6_000),
    question=texts,
    top_k=st.integers(1, 3),
)
@example([WORDS], 9_538, "Who wrote it?", 3)
@example(["!"], 5_000, "why", 1)
@example(["字"], 5_000, "why", 2)
@example(["e\u0301"], 5_000, "why", 2)
@example([" "], 9_000, "why", 1)
def test_the_loop_and_the_reader_cut_a_text_to_the_same_answers(
    make_reader, kind, window_tokens, pieces, num_chars, question, top_k
):
    pieces = [*pieces, "."] if not "".join(pieces) else pieces
    text = "".join(pieces) * (1 + num_chars // len("".join(pieces)))
    asked = Question(question[:5], text[:num_chars], top_k)
    reader = make_reader(kind, window_tokens)
    (whole,) = reader.read([asked])
    assert read_in_segments(reader, asked)[0] == whole


@pytest.mark.parametrize("window_tokens", WINDOWS)
@pytest.mark.parametrize("overlap_tokens", [0, 32, 128, 1000])
def test_a_long_text_takes_no_more_windows_than_its_tokens_need(
    make_reader, window_tokens, overlap_tokens
):
    rng = random.Random(0)
    words = ["the", "river", "a", ",", "dog", "mill", "4"]
    text = " ".join(rng.choice(words) for _ in range(4_000))
    model = MadeUpModel()
    reader = make_reader("bert", window_tokens, overlap_tokens, model)
    _, num_segments = read_in_segments(reader, Question("why", text))
    num_tokens = len(tiny_tokenizer("bert").encode(text, add_special_tokens=False).ids)
    room = window_tokens - 3 - len("why")
    needed = num_tokens / (room - min(overlap_tokens, room // 2))
    assert needed <= sum(len(ids) for ids, _, _ in model.batches) <= 1.5 * needed + 2
    assert num_tokens / 2_500 <= num_segments <= num_tokens / 500
