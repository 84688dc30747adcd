"""Windows of every size, from tokenizers of three architectures."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_service.errors import QuestionTooLongError
from qa_service.instance.reader.windows import WindowBuilder
from tests.unit.instance.tiny_reader import KINDS, tiny_tokenizer


def letters(count):
    """So many words of one letter; for RoBERTa each space is a token too."""
    return " ".join("xyz"[i % 3] for i in range(count))


def builder(kind="bert", window_tokens=32, overlap_tokens=8):
    return WindowBuilder(tiny_tokenizer(kind), window_tokens, overlap_tokens)


def token_ids(kind, text):
    return tiny_tokenizer(kind).encode(text, add_special_tokens=False).ids


def text_slice(window):
    return slice(window.first_token, window.first_token + window.text_end - window.text_begin)


cuts = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "window_tokens": st.integers(16, 60),
        "overlap_tokens": st.integers(0, 40),
    }
)


@given(cut=cuts, question_words=st.integers(0, 3), text_words=st.integers(0, 150))
def test_every_token_is_read_and_no_window_is_redundant(cut, question_words, text_words):
    text = letters(text_words)
    encoded = builder(**cut).encode(letters(question_words), text)
    slices = [text_slice(window) for window in encoded.windows]
    ids = token_ids(cut["kind"], text)
    for window, part in zip(encoded.windows, slices, strict=True):
        assert len(window) <= cut["window_tokens"]
        row = window.input_ids[window.text_begin : window.text_end]
        assert row.tolist() == ids[part]
    assert not slices or (slices[0].start, slices[-1].stop) == (0, len(ids))
    for before, after in pairwise(slices):
        assert before.start < after.start <= before.stop < after.stop


@given(cut=cuts, question_words=st.integers(0, 3), text_words=st.integers(0, 150))
def test_a_span_no_longer_than_the_overlap_is_whole_in_some_window(cut, question_words, text_words):
    encoded = builder(**cut).encode(letters(question_words), letters(text_words))
    slices = [text_slice(window) for window in encoded.windows]
    overlap = min((a.stop - b.start for a, b in pairwise(slices)), default=0)
    for first in range(len(encoded.offsets)):
        last = min(first + overlap, len(encoded.offsets) - 1)
        assert any(part.start <= first and last < part.stop for part in slices)


@pytest.mark.parametrize("kind", KINDS)
@given(question_words=st.integers(1, 12), text_words=st.integers(1, 60))
def test_a_window_is_laid_out_as_the_tokenizer_lays_out_a_pair(kind, question_words, text_words):
    question, text = letters(question_words), letters(text_words)
    pair = tiny_tokenizer(kind).encode(question, text)
    (window,) = builder(kind, window_tokens=200, overlap_tokens=50).encode(question, text).windows
    assert window.input_ids.tolist() == pair.ids
    assert window.token_type_ids.tolist() == pair.type_ids
    assert window.input_ids.dtype == window.token_type_ids.dtype == np.int64
    positions = [i for i, sequence in enumerate(pair.sequence_ids) if sequence == 1]
    assert [window.text_begin, window.text_end - 1] == [positions[0], positions[-1]]


@settings(max_examples=30)
@given(cut=cuts, text_words=st.integers(1, 60))
def test_the_longest_question_leaves_room_and_a_longer_one_is_refused(cut, text_words):
    windows = builder(**cut)
    longest = max(
        count for count in range(cut["window_tokens"]) if not refuses(windows, "?" * count)
    )
    encoded = windows.encode("?" * longest, letters(text_words))
    assert all(len(window) <= cut["window_tokens"] for window in encoded.windows)
    with pytest.raises(QuestionTooLongError, match=f"at most {longest}$"):
        windows.encode("?" * (longest + 1), "x")


def refuses(windows, question):
    try:
        windows.encode(question, "x")
    except QuestionTooLongError:
        return True
    return False


@pytest.mark.parametrize(("kind", "special"), [("bert", "[SEP]"), ("roberta", "</s>")])
def test_special_tokens_in_what_a_client_sends_are_ordinary_text(kind, special):
    separator = tiny_tokenizer(kind).token_to_id(special)
    (window,) = builder(kind).encode(f"the {special}", f"the {special} river").windows
    (clean,) = builder(kind).encode("the", "river").windows
    assert np.sum(window.input_ids == separator) == np.sum(clean.input_ids == separator)
    assert "[PAD]" not in tiny_tokenizer(kind).encode("[PAD]").tokens[1:-1]


def test_offsets_count_code_points():
    encoded = builder("bert").encode("the", "😀 river e\u0301")
    assert encoded.offsets[:2].tolist() == [[0, 1], [2, 7]]
    assert encoded.offsets[2][0] == 8
