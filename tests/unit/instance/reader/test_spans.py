"""The vectorised search for spans against one that tries them all, one by one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.errors import InternalError
from qa_service.instance.arrays import NUM_BEST
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.instance.reader.spans import (
    NEAR_BEST,
    BestSpans,
    Candidate,
    _candidates,
    find_answers,
)
from qa_service.instance.reader.windows import WindowBuilder
from qa_service.wire.messages import Answer
from tests.unit.instance.tiny_reader import tiny_tokenizer

CONFIG = ReadingConfig(max_answer_tokens=4, window_tokens=20, window_overlap_tokens=6)


def encode(text, config=CONFIG, question="why", kind="bert"):
    builder = WindowBuilder(
        tiny_tokenizer(kind), config.window_tokens, config.window_overlap_tokens
    )
    return builder.encode(question, text)


def letters(count):
    return " ".join("abcdefg"[i % 7] for i in range(count))


def different_words(count):
    """Words of a Cyrillic or an Armenian letter; a token each."""
    return " ".join(chr((0x430 if i < 32 else 0x561 - 32) + i) for i in range(count))


def token_logits(encoded, starts, ends, level=-20.0):
    """Logits of `level`, but for these text tokens, in every window that has them."""
    logits = [tuple(np.full((2, len(w)), level, dtype=np.float32)) for w in encoded.windows]
    for window, (start, end) in zip(encoded.windows, logits, strict=True):
        for row, raised in ((start, starts), (end, ends)):
            for token, logit in raised.items():
                position = window.text_begin + token - window.first_token
                if window.text_begin <= position < window.text_end:
                    row[position] = logit
    return logits


def read(text, starts, ends, config=CONFIG, *, level=-20.0, top_k=1, kind="bert", question="why"):
    """The answers in a text whose tokens have these logits, and all others `level`."""
    encoded = encode(text, config, question, kind)
    logits = token_logits(encoded, starts, ends, level)
    return find_answers(text, encoded, logits, config, top_k)


def every_span(encoded, logits, config):
    """(log score, first token, last token) of each, in plain Python."""
    scores = {}
    for window, (start, end) in zip(encoded.windows, logits, strict=True):
        at = config.null_position % len(window)
        null = 0.0 if config.null_threshold is None else float(start[at]) + float(end[at])
        for first in range(window.text_begin, window.text_end):
            for last in range(first, min(first + config.max_answer_tokens, window.text_end)):
                further = max(0, last - first + 1 - config.usual_answer_tokens)
                score = float(start[first]) + float(end[last]) - null
                score = (score - config.length_penalty * further) / config.temperature
                shift = window.first_token - window.text_begin
                span = (first + shift, last + shift)
                scores[span] = max(score, scores.get(span, -math.inf))
    return [(score, *span) for span, score in scores.items()]


def read_one_by_one(text, encoded, logits, config, top_k):
    spans = sorted(every_span(encoded, logits, config), key=lambda span: (-span[0], span[1:]))
    null = [] if config.null_threshold is None else [config.null_threshold / config.temperature]
    total = math.fsum(math.exp(score) for score in [*(s[0] for s in spans), *null])
    kept = []
    for span in spans:
        if len(kept) < top_k and all(span[1] > k[2] or span[2] < k[1] for k in kept):
            kept.append(span)
    answers = []
    for score, first, last in kept:
        start, end = encoded.offsets[first][0], encoded.offsets[last][1]
        answers.append(Answer(text[start:end], math.exp(score) / total, start, end))
    if null and kept[0][0] * config.temperature < config.null_threshold:
        answers.insert(0, Answer("", math.exp(null[0]) / total, None, None))
    return answers[:top_k]


@st.composite
def readings(draw):
    """A text, its windows, logits for them, and how to read them.

    Logits are multiples of 1/8, so that sums are exact and ties are ties for both searches.
    """
    config = ReadingConfig(
        max_answer_tokens=draw(st.integers(1, 9)),
        usual_answer_tokens=draw(st.integers(1, 5)),
        length_penalty=draw(st.sampled_from([0.0, 0.25, 2.0])),
        window_tokens=draw(st.integers(16, 30)),
        window_overlap_tokens=draw(st.integers(0, 12)),
        temperature=draw(st.sampled_from([0.5, 1.0, 2.0])),
        null_threshold=draw(st.sampled_from([None, -2.0, 0.0, 4.0])),
        null_position=draw(st.sampled_from([0, -1])),
    )
    text = different_words(draw(st.integers(1, 70)))
    encoded = encode(text, config)
    assert len(encoded.offsets) == len(text.split())
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0, 10, 80]))
    logits = [
        tuple((generator.integers(-spread, spread + 1, (2, len(window))) / 8).astype(np.float32))
        for window in encoded.windows
    ]
    return text, encoded, logits, config, draw(st.integers(1, 6))


@pytest.mark.parametrize("times", [2, 4])
def test_equal_answers_in_a_text_are_one_with_the_sum_of_their_scores(times):
    text = "b c. The b d. A B! e, b"
    encoded = encode(text)
    tokens = [
        number for number, (start, end) in enumerate(encoded.offsets) if text[start:end] in "bB"
    ]
    raised = dict.fromkeys(tokens[:times], 5.0)
    first, second = find_answers(text, encoded, token_logits(encoded, raised, raised), CONFIG, 2)
    assert (first.answer, first.score) == ("b", 1.0)
    assert {text[place.start : place.end] for place in first.places} <= {"b", "B"}
    assert len(first.places) == times
    assert second.answer not in {"b", "B"}


@pytest.mark.parametrize("thresholds", [(8.0, 8.5)])
def test_equal_answers_together_are_compared_with_no_answer(thresholds):
    text = "b c b d e b"
    encoded = encode(text)
    raised = {0: 4.0, 2: 4.0}
    found = []
    for threshold in thresholds:  # each of the two has 8, both have 8.7
        config = ReadingConfig(max_answer_tokens=1, null_threshold=threshold)
        logits = token_logits(encoded, raised, raised)
        logits[0][0][0] = logits[0][1][0] = 0.0
        found.append(find_answers(text, encoded, logits, config)[0].answer)
    assert found == ["b", "b"]


@given(readings())
def test_the_best_span_is_that_of_an_exhaustive_search(reading):
    found, expected = find_answers(*reading), read_one_by_one(*reading)
    assert [(a.answer, a.start, a.end) for a in found] == [
        (a.answer, a.start, a.end) for a in expected
    ]
    scores = [answer.score for answer in found]
    assert scores == pytest.approx([a.score for a in expected], abs=1e-4)
    assert all(0 <= score <= 1 for score in scores)
    assert sum(scores) <= 1 + 5e-5 * len(scores)  # four digits each


@pytest.mark.parametrize("first", range(40))
def test_an_answer_is_found_wherever_windows_end(first):
    text = letters(43)
    encoded = encode(text)
    assert len(encoded.windows) > 3
    logits = token_logits(encoded, {first: 5.0}, {first + 3: 5.0})
    (answer,) = find_answers(text, encoded, logits, CONFIG)
    assert (answer.start, answer.end) == (2 * first, 2 * first + 7)
    assert answer.score == pytest.approx(1.0, abs=1e-3)


def test_a_whole_answer_scores_above_its_end():
    text = letters(40)
    encoded = encode(text)
    surer = encoded.windows[1]
    for first in range(surer.first_token, surer.first_token + 3):
        logits = token_logits(encoded, {first: 5.0, first + 1: 3.0}, {first + 1: 5.0})
        logits[1] = tuple(row + 4.0 for row in logits[1])
        (answer,) = find_answers(text, encoded, logits, CONFIG)
        assert (answer.start, answer.end) == (2 * first, 2 * first + 3)


@pytest.mark.parametrize(
    ("penalty", "expected"), [(0.0, "c d e f"), (0.5, "c d e f"), (1.5, "c d")]
)
def test_an_answer_longer_than_usual_has_to_be_better_by_its_length(penalty, expected):
    config = ReadingConfig(max_answer_tokens=4, usual_answer_tokens=2, length_penalty=penalty)
    (answer,) = read(letters(10), {2: 9.0}, {3: 7.0, 5: 9.0}, config)
    assert answer.answer == expected


@pytest.mark.parametrize(("threshold", "abstains"), [(3.9, False), (4.0, False), (4.1, True)])
def test_abstains_below_the_threshold_only(threshold, abstains):
    config = ReadingConfig(max_answer_tokens=4, null_threshold=threshold, temperature=2.0)
    text = letters(6)
    encoded = encode(text, config)
    logits = token_logits(encoded, {1: 3.0}, {2: 4.0})
    logits[0][0][0], logits[0][1][0] = 1.0, 2.0  # the span exceeds the null answer by 4
    first, second = find_answers(text, encoded, logits, config, top_k=2)
    null_score = 1 / (1 + math.exp((4 - threshold) / 2))
    if abstains:
        assert (first.answer, first.start, first.end) == ("", None, None)
        assert first.score == pytest.approx(null_score, abs=1e-3)
        assert second.answer == "b c"
        assert first.score > second.score
    else:
        assert first.answer == "b c"
        assert first.score == pytest.approx(1 - null_score, abs=1e-3)


def test_a_null_answer_at_the_end_is_at_the_end_of_the_window_and_not_of_its_padding():
    config = ReadingConfig(null_threshold=0.0, null_position=-1)
    text = letters(6)
    encoded = encode(text, config)
    (window,) = encoded.windows
    ((start, end),) = token_logits(encoded, {1: 3.0}, {2: 4.0})
    start[len(window) - 1] = end[len(window) - 1] = 9.0
    start, end = (np.append(row, [-50.0] * 3).astype(np.float32) for row in (start, end))
    assert find_answers(text, encoded, [(start, end)], config)[0].start is None


@pytest.mark.parametrize("text", ["", " \n"])
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_text_without_tokens_has_no_answer(text, threshold):
    config = ReadingConfig(null_threshold=threshold)
    answers = find_answers(text, encode(text), [], config, top_k=3)
    assert answers == [Answer("", 1.0, None, None)]


def test_huge_logits_neither_overflow_nor_vanish():
    assert read(letters(6), {1: 1e30}, {1: 1e30}, level=-1e30) == [Answer("b", 1.0, 2, 3)]


@pytest.mark.parametrize("logit", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_nan_logits_are_an_internal_error(logit, threshold):
    config = ReadingConfig(null_threshold=threshold)
    with pytest.raises(InternalError, match="not finite"), np.errstate(invalid="ignore"):
        read(letters(6), {}, {}, config, level=logit)


def test_white_space_that_is_a_token_is_no_answer():
    text = "a\n \nb"
    assert len(encode(text, kind="roberta").offsets) == 5
    (answer,) = read(text, {1: 9.0, 4: 5.0}, {2: 9.0, 4: 5.0}, kind="roberta")
    assert (answer.answer, answer.start) == ("b", 4)


@pytest.mark.parametrize("threshold", [None, -50.0])
def test_a_text_of_white_space_has_no_answer_and_is_read_quickly(threshold):
    config = ReadingConfig(null_threshold=threshold)
    answers = read("\n" * 50_000, {}, {}, config, top_k=20, level=0.0, kind="roberta")
    assert answers == [Answer("", 1.0, None, None)]


def test_a_character_of_several_tokens_is_one_answer():
    text, config = "🤔 b", ReadingConfig(max_answer_tokens=1)
    assert encode(text, kind="roberta").offsets[:4].tolist() == [[0, 1]] * 4
    answers = read(text, {}, {}, config, top_k=5, level=0.0, kind="roberta")
    assert [a.answer for a in answers] == ["🤔", "b"]


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
@pytest.mark.parametrize("size", [(3, 4), (200, 30)])
def test_the_best_spans_are_those_of_a_sort_of_all(levels, size):
    draw = np.random.default_rng(levels)
    table = (draw.integers(0, levels, size) / levels).astype(np.float32)
    found = _candidates(table, float(table.max()))
    places = np.ndindex(*size)
    every = [(float(table[at]), at[0], sum(at)) for at in places if table[at] >= -NEAR_BEST]
    assert list(map(tuple, found)) == sorted(every, key=lambda one: -one[0])[:NUM_BEST]


def test_one_answer_counts_the_spans_with_a_share_to_be_seen():
    shares = [0.4, 0.3, 0.021, 0.019, 0.018]
    candidates = [Candidate(math.log(share), at, at) for at, share in enumerate(shares)]
    assert BestSpans(candidates, 0.0).of_one_answer() == candidates[:3]
    assert BestSpans(candidates, 5.0).of_one_answer() == candidates[:2]
    assert BestSpans(candidates, -1.0).of_one_answer() == candidates
    assert BestSpans([], -math.inf).of_one_answer() == []
