"""Spans of a text's parts, merged."""

import itertools

from qa_service.wire.spans import ScoredSpan, SegmentResult, merge


def test_of_spans_that_score_the_same_the_first_in_the_text_is_first_whatever_is_read_first():
    parts = [
        (start, SegmentResult([ScoredSpan(1.0, 2, 5), ScoredSpan(0.5, 7, 9)], 1.0, 10))
        for start in (0, 10, 20)
    ]
    expected = [(at + first, at + last) for first, last in ((2, 5), (7, 9)) for at in (0, 10, 20)]
    for order in itertools.permutations(parts):
        assert [(span.start, span.end) for span in merge(order).spans] == expected
