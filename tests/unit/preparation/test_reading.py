from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qa_service.errors import SetupError
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.preparation.reading import choose_reading
from qa_service.preparation.sources import Source


def _threshold(source: Source, **flags: Any) -> float | None:
    return choose_reading(source, **flags)[0].null_threshold


@pytest.mark.parametrize(
    "label",
    ["deepset/bert-base-cased-squad2", "x/roberta-squad_v2", "x/SQuAD-v2", "squad-2.0", "squadv2"],
)
def test_a_model_named_squad2_can_abstain(source, label):
    reading, words = choose_reading(replace(source, label=label))
    assert reading == ReadingConfig(null_threshold=0.0)
    assert "guessed from its name; or give --no-can_abstain" in words


@pytest.mark.parametrize("label", ["bert-squad", "squad1", "squad-20k", "squad_2023", "squash2"])
def test_a_model_named_otherwise_cannot_abstain(source, label):
    reading, words = choose_reading(replace(source, label=label))
    assert reading == ReadingConfig()
    assert "never abstains" in words


def test_flags_go_before_the_file_and_the_file_before_the_name(source):
    assert _threshold(source, can_abstain=True) == 0.0
    assert _threshold(source, null_threshold=-1.5) == -1.5
    source = replace(source, label="x-squad2")
    source.reading_file.write_text('{"null_threshold": null, "window_tokens": 256}')
    assert choose_reading(source)[0] == ReadingConfig(window_tokens=256)
    assert _threshold(source, can_abstain=True) == 0.0
    source.reading_file.write_text('{"null_threshold": 2.5}')
    assert _threshold(source) == 2.5
    assert _threshold(source, can_abstain=True) == 2.5
    assert _threshold(source, can_abstain=True, null_threshold=0.0) == 0.0
    assert _threshold(source, can_abstain=False) is None


def test_a_threshold_of_the_flags_is_that_of_collections_too(source):
    source.reading_file.write_text('{"null_threshold": 2.5, "collection_threshold": 4.0}')
    own, _ = choose_reading(source)
    assert own.collection_null_log_score == 4.0
    chosen, _ = choose_reading(source, null_threshold=1.0)
    assert chosen.collection_null_log_score == 1.0


def test_contradicting_flags_are_refused(source):
    with pytest.raises(SetupError, match="makes no sense"):
        _threshold(source, can_abstain=False, null_threshold=0.0)


@pytest.mark.parametrize("content", ["", "[]", '{"window_tokens": "many"}'])
def test_broken_reading_file_is_refused(source, content):
    source.reading_file.write_text(content)
    with pytest.raises(SetupError, match=r"cannot read .*reading\.json"):
        _threshold(source)
