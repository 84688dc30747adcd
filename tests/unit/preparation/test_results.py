"""What is shipped in place of computing it: the same as what is computed, and of these models."""

from __future__ import annotations

import lzma
from typing import Any

import msgspec
import numpy as np
import pytest

from qa_service.errors import SetupError
from qa_service.instance.model_folder.known_answers import KnownAnswers
from qa_service.preparation import sentence_graph
from qa_service.preparation.encoders import MINILM_DIR, MODELS_DIR
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.quantize import corrections, quantize, quantize_as_before
from qa_service.preparation.reading import choose_reading
from qa_service.preparation.results import RESULTS_FILE, Results, load_results, save_results
from qa_service.preparation.sources import find_source
from qa_service.retrieval.encoder_folder import KnownEmbedding
from tests.unit.preparation.graphs import write_product

SOME = Results(computed_of="these", corrections=b"\0\1", known=b"{}")


def shipped_results():
    source = find_source("builtin")
    return source.results(choose_reading(source)[0])


def shipped_embedding_results():
    return load_results(MINILM_DIR, sentence_graph.identity_of(MINILM_DIR))


def test_the_shipped_models_have_results():
    assert {"onnx int8", "openvino int8"} <= shipped_results().differences.keys()
    assert shipped_embedding_results()


def test_other_windows_have_none():
    source = find_source("builtin")
    reading, _ = choose_reading(source)
    assert source.results(msgspec.structs.replace(reading, null_threshold=3.0))
    assert not source.results(msgspec.structs.replace(reading, window_tokens=256))


def test_results_of_another_model_are_not_used(tmp_path):
    assert load_results(tmp_path, "these") is None
    save_results(tmp_path, SOME)
    assert load_results(tmp_path, "these") == SOME
    assert load_results(tmp_path, "others") is None


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda _: lzma.compress(b"\xc1")])
def test_a_damaged_file_is_named(tmp_path, damage):
    save_results(tmp_path, SOME)
    path = tmp_path / RESULTS_FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SetupError, match=rf"{RESULTS_FILE} cannot be read"):
        load_results(tmp_path, "these")


@pytest.fixture
def graph(tmp_path):
    """A graph of one product that is rounded; its file."""
    path = tmp_path / "fp32.onnx"
    write_product(path, np.random.default_rng(3).normal(size=(48, 64)))
    return path


def test_corrections_make_the_same_file(graph, tmp_path):
    draw = np.random.default_rng(4)
    texts: Any = [
        {"x": (draw.normal(size=(20, 6)) @ draw.normal(size=(6, 48))).astype(np.float32)}
        for _ in range(4)
    ]
    quantize(graph, tmp_path / "computed.onnx", texts)
    its = corrections(graph, tmp_path / "computed.onnx")
    assert len(its) == 48 * 64
    assert any(its), "nothing was rounded for its text"
    quantize_as_before(graph, tmp_path / "again.onnx", its)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "computed.onnx").read_bytes()


@pytest.mark.parametrize("its", [bytes(48 * 64 - 1), bytes(48 * 64 + 1)])
def test_corrections_of_another_graph_are_refused(graph, tmp_path, its):
    with pytest.raises(SetupError, match="cannot be quantised"):
        quantize_as_before(graph, tmp_path / "int8.onnx", its)


@pytest.mark.long
def test_they_are_what_is_computed(tmp_path):
    """The rounding of one weight in thousands differs: other processors add in another order."""
    from training.shipped_results import answers_results

    computed = answers_results(MODELS_DIR / "builtin", tmp_path)
    assert_same_rounding(shipped_results(), computed)
    ours, theirs = (
        msgspec.json.decode(one.known, type=KnownAnswers) for one in (shipped_results(), computed)
    )
    for one, other in zip(
        ours.rows + ours.vocabulary, theirs.rows + theirs.vocabulary, strict=True
    ):
        assert one.ids == other.ids
        assert one.start == pytest.approx(other.start, abs=1e-4)


@pytest.mark.long
def test_so_are_the_encoders(tmp_path):
    from training.shipped_results import embedding_results

    computed = embedding_results(tmp_path)
    assert_same_rounding(shipped_embedding_results(), computed)
    ours, theirs = (
        msgspec.json.decode(one.known, type=list[KnownEmbedding])
        for one in (shipped_embedding_results(), computed)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.ids == other.ids
        assert np.dot(one.embedding, other.embedding) == pytest.approx(1.0, abs=1e-5)


def assert_same_rounding(ours, theirs):
    assert ours.computed_of == theirs.computed_of
    mine, computed = (np.frombuffer(one.corrections, np.int8) for one in (ours, theirs))
    assert (mine == computed).mean() > 0.999


def test_preparing_with_them_says_so_and_leaves_them_proved(tmp_path, capsys):
    folder = prepare(PrepareArgs(output_dir=tmp_path, precision="auto"))
    said = capsys.readouterr().out
    assert "model.int8.onnx gives the known answers" in said
    assert "comparing its answers" not in said
    known = msgspec.json.decode((folder / "known_answers.json").read_bytes(), type=KnownAnswers)
    assert len(known.vocabulary) > 50


def test_a_wrong_result_is_found(tmp_path, monkeypatch):
    """As where the rounding is another model's, whatever its identity says."""
    right = shipped_results()
    draw = np.random.default_rng(0)
    wrong = draw.permutation(np.frombuffer(right.corrections, np.int8)) * 8
    altered = msgspec.structs.replace(right, corrections=wrong.astype(np.int8).tobytes())
    monkeypatch.setattr("qa_service.preparation.sources.load_results", lambda *_: altered)
    with pytest.raises(SetupError, match=r"model.int8.onnx is wrong: .* computes wrongly"):
        prepare(PrepareArgs(output_dir=tmp_path, precision="int8"))
