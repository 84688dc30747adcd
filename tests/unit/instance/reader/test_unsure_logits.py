"""Logits of a model that is sure of nothing: the short ways to the answer take no other one."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qa_service.instance.arrays import NUM_BEST
from qa_service.instance.reader import spans, whole_words
from qa_service.instance.reader.spans import NEAR_BEST

SIGNS = "+-.,/():;apmAPM'\u2032\"\u2033 0123456789x\u00a0\n"


@given(st.text(SIGNS, max_size=60), st.integers(0, 60), st.integers(1, 60))
@example("Call +49 (0) 30 12-34 now", 5, 4)
@example("It ends at 10 p.m. today", 11, 2)
@example('He is 5 ft 10" tall, or 5\'10"', 24, 2)
def test_a_span_is_cut_in_a_spaced_word_only_where_one_may_be_cut(text, start, length):
    start = min(start, len(text))
    end = min(start + length, len(text))
    begin = max(0, text.rfind("\n", 0, start) + 1, start - whole_words._MAX_SPACED_CHARS)
    for found in whole_words._SPACED.finditer(text, begin, end + whole_words._MAX_SPACED_CHARS):
        for place in (start, end):
            if found.start() < place < found.end():
                assert whole_words._SPACED_CHARS.match(text, place)
                assert whole_words._DIGIT.search(found[0])


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
@pytest.mark.parametrize("size", [(3, 4), (200, 30)])
def test_the_best_spans_are_those_of_a_sort_of_all(levels, size):
    draw = np.random.default_rng(levels)
    table = (draw.integers(0, levels, size) / levels).astype(np.float32)
    found = spans._candidates(table, float(table.max()))
    places = np.ndindex(*size)
    every = [(float(table[at]), at[0], sum(at)) for at in places if table[at] >= -NEAR_BEST]
    assert list(map(tuple, found)) == sorted(every, key=lambda one: -one[0])[:NUM_BEST]
