"""Passages are found by their meaning, not only by their words; with the real encoder."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.collections import run_index, write_documents
from qa_service.errors import DamagedError, SetupError
from qa_service.preparation.sentence_encoder import is_complete
from qa_service.retrieval import embeddings, writing
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.embeddings import (
    BATCH_PASSAGES,
    Embeddings,
    EmbeddingWriter,
    best_rows,
)
from qa_service.retrieval.encoder import Encoder
from qa_service.retrieval.encoder_folder import (
    ENCODER_FILE,
    KNOWN_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    SharedEncoder,
    encoder_folder,
    load_encoder_manifest,
    load_known_embeddings,
)
from qa_service.retrieval.manifest import EMBEDDINGS_FILE, PROGRESS_FILE, load_manifest

pytestmark = pytest.mark.usefixtures("reads_here")

TEXTS = {
    "leave.txt": "Employees are given twenty-five days of vacation each year.",
    "parking.txt": "Cars stand in the garage behind the building.",
    "rain.txt": "It rained during the whole of Tuesday.",
}
MEANT = {
    "How much holiday do staff get?": "leave.txt",
    "Where can I leave my vehicle?": "parking.txt",
    "What was the weather like?": "rain.txt",
}


@pytest.fixture
def docs(tmp_path):
    return write_documents(tmp_path / "docs", TEXTS)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "collection"


@pytest.fixture(scope="module")
def loaded(encoder):
    """The encoder, for collections that find nothing wrong with it."""
    return SharedEncoder(encoder)


@pytest.fixture(scope="module")
def once_indexed(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("indexed")
    run_index(write_documents(folder / "docs", TEXTS), folder / "made", encoder=encoder)
    return folder / "made"


@pytest.fixture
def indexed(once_indexed, output):
    """A collection of the texts that a test may change, and cannot update."""
    return shutil.copytree(once_indexed, output)


@pytest.fixture
def index(docs, output, encoder):
    def run(**choices):
        return run_index(docs, output, **{"encoder": encoder, "num_threads": 2, **choices})

    return run


def best(collection, question):
    return collection.search(question, 5)[0].passage.document


def rows_of(output):
    return (output / load_manifest(output).index / EMBEDDINGS_FILE).read_bytes()


def test_a_passage_is_found_by_its_meaning(indexed, loaded):
    collection = Collection(indexed, loaded)
    assert {question: best(collection, question) for question in MEANT} == MEANT
    assert collection.fault == ""


def test_a_passage_with_the_words_is_found_too(indexed, loaded):
    found = Collection(indexed, loaded).search("garage", 2)
    assert found[0].passage.document == "parking.txt"
    assert found[0].score > found[1].score


def test_a_question_of_stop_words_is_answered_by_meaning_without_a_fault(indexed, loaded):
    assert len(Collection(indexed, loaded).search("?", 5)) == len(TEXTS)


@pytest.mark.parametrize("what", ["none given", "none there", "another"])
def test_without_the_encoder_passages_are_found_by_words(indexed, encoder, tmp_path, what):
    folder = tmp_path / "encoder"
    if what == "another":
        shutil.copytree(encoder, folder)
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace('"identity": "', '"identity": "0'))
    collection = Collection(indexed, SharedEncoder(None if what == "none given" else folder))
    assert collection.search("How much holiday do staff get?", 5) == []
    assert best(collection, "vacation") == "leave.txt"
    assert "words alone" in collection.fault


def test_a_found_passage_has_its_cosine_if_models_know_the_encoders(
    indexed, encoder, monkeypatch, loaded
):
    question = "Where can I leave my vehicle?"
    (found, *_) = Collection(indexed, loaded).search(question, 3)
    asked, read = Encoder(encoder).embed([question, TEXTS["parking.txt"]])
    assert found.cosine == pytest.approx(float(asked @ read), abs=0.02)
    monkeypatch.setattr(embeddings, "CALIBRATED_ENCODER", "another")
    (found, *_) = Collection(indexed, loaded).search(question, 3)
    assert found.cosine is None


def test_a_collection_without_embeddings_needs_no_encoder(index, output):
    index(embeddings=False)
    collection = Collection(output)
    assert collection.fault == ""
    assert load_manifest(output).settings.encoder == ""
    assert best(collection, "vacation") == "leave.txt"


def test_an_encoder_whose_outputs_have_another_shape_fails(encoder, monkeypatch):
    loaded = Encoder(encoder)
    run = loaded._session.run
    one_row = SimpleNamespace(run=lambda *given: [found[:1] for found in run(*given)])
    monkeypatch.setattr(loaded, "_session", one_row)
    with pytest.raises(SetupError, match="in place of 2 embeddings"):
        loaded.embed(["one text", "another text"])


@pytest.mark.parametrize("embeddings", [None, True])
def test_without_the_encoder_there_is_no_collection_unless_words_are_enough(
    index, output, tmp_path, monkeypatch, embeddings
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved_models").mkdir()
    why = f"there is no encoder in {tmp_path}/nowhere: --encoder names its folder.*--no-embeddings"
    with pytest.raises(SetupError, match=why):
        index(encoder=Path("nowhere"), embeddings=embeddings)
    with pytest.raises(SetupError, match=f"there is no encoder in {tmp_path}/saved_models/encoder"):
        index(encoder=None, embeddings=embeddings)
    assert not (output / "manifest.json").exists()
    index(encoder=Path("nowhere"), embeddings=False)


def test_the_encoder_is_looked_for_beside_models_then_in_saved_models_then_in_the_users_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", "/" + "y" * 300)  # which may not be looked at
    assert encoder_folder(None) == Path("/" + "y" * 300, "qa-server/encoder")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert encoder_folder(None) == tmp_path / "data/qa-server/encoder"
    Path("saved_models").mkdir()
    models = [Path("a/models/one"), Path("b/models/two")]
    assert encoder_folder(None, models) == tmp_path / "a/models/encoder", "where it may be made"
    assert encoder_folder(None) == tmp_path / "saved_models/encoder"
    folders = ("data/qa-server", "saved_models", "b/models", "a/models")
    for place in (f"{folder}/encoder" for folder in folders):
        Path(place).mkdir(parents=True)
        Path(place, "manifest.json").write_text("{}")
        assert encoder_folder(None, models) == tmp_path / place
    assert encoder_folder(Path("mine"), models) == tmp_path / "mine"


def test_another_language_is_embedded_only_if_asked_for(index, output):
    index(language="french")
    assert load_manifest(output).settings.encoder == ""
    index(language="french", embeddings=True)
    assert load_manifest(output).settings.encoder


def test_an_update_embeds_new_passages_and_keeps_the_rest(
    index, docs, output, encoder, loaded, monkeypatch
):
    index()
    before = rows_of(output)
    (docs / "new.txt").write_text("The canteen is closed on Sunday.")
    (docs / "rain.txt").unlink()
    known = {its.text for its in load_known_embeddings(encoder, load_encoder_manifest(encoder))}
    embedded = []
    embed = Encoder.embed
    monkeypatch.setattr(
        Encoder, "embed", lambda self, texts: embedded.extend(texts) or embed(self, texts)
    )
    index(update=True)
    assert [text.split()[-1] for text in embedded if text not in known] == ["Sunday."]
    collection = Collection(output, loaded)
    assert best(collection, "On which day is there no lunch?") == "new.txt"
    assert "rain.txt" not in [
        its.passage.document for its in collection.search("What was the weather like?", 5)
    ]
    width = Encoder(encoder).manifest.dimensions
    kept = {before[at : at + width] for at in range(0, len(before), width)}
    after = rows_of(output)
    rows = [after[at : at + width] for at in range(0, len(after), width)]
    assert len(kept.intersection(rows)) == 2
    assert rows.count(bytes(width)) == 1  # the row of what is gone
    (docs / "newer.txt").write_text("Bicycles are repaired in the yard.")
    index(update=True)
    after = rows_of(output)
    rows = [after[at : at + width] for at in range(0, len(after), width)]
    assert bytes(width) not in rows, "a free row is filled first"


def test_an_update_whose_embeddings_are_cut_is_refused(index, docs, output):
    index()
    path = output / load_manifest(output).index / EMBEDDINGS_FILE
    os.truncate(path, path.stat().st_size // 2)
    (docs / "rain.txt").unlink()
    with pytest.raises(SetupError, match=r"is damaged: .*: index without --update"):
        index(update=True)
    index()


def test_an_update_without_the_encoder_is_refused(index, output, tmp_path):
    index()
    with pytest.raises(SetupError, match="--no-embeddings"):
        index(update=True, encoder=tmp_path / "nowhere")


@pytest.mark.parametrize("commit_passages", [1, 1000])
def test_a_killed_run_is_continued_by_the_next(
    index, docs, output, loaded, monkeypatch, commit_passages
):
    monkeypatch.setattr(writing, "COMMIT_PASSAGES", commit_passages)
    take = writing.NextIndex.finish_file

    def dying(self, entry):
        take(self, entry)
        if entry.name == "parking.txt":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing.NextIndex, "finish_file", dying)
        with pytest.raises(KeyboardInterrupt):
            index()
    assert (output / PROGRESS_FILE).exists()
    index()
    collection = Collection(output, loaded)
    assert {question: best(collection, question) for question in MEANT} == MEANT


def test_a_damaged_file_of_embeddings_is_named(indexed, loaded):
    path = indexed / load_manifest(indexed).index / EMBEDDINGS_FILE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=EMBEDDINGS_FILE):
        Collection(indexed, loaded)


def test_cosines_are_those_of_the_vectors(tmp_path):
    random = np.random.default_rng(7)
    vectors = random.standard_normal((3000, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    steps = np.clip(np.rint(vectors * embeddings.SCALE), -127, 127).astype(np.int8)
    (tmp_path / EMBEDDINGS_FILE).write_bytes(steps.tobytes())
    found = Embeddings(tmp_path, 64).cosines(vectors[5])
    assert np.abs(found - vectors @ vectors[5]).max() < 0.05
    assert found.argmax() == 5


def test_the_best_rows_have_the_largest_cosines():
    cosines = np.random.default_rng(7).random(1000, dtype=np.float32)
    wanted = np.argsort(cosines)[::-1]
    assert set(best_rows(cosines, 10)) == set(wanted[:10])
    among = wanted[100:200]
    assert set(best_rows(cosines, 10, among)) == set(among[:10])
    assert set(best_rows(cosines[:5], 10)) == set(range(5))


def test_passages_of_several_batches_have_the_rows_of_their_own_embeddings(tmp_path, encoder):
    texts = [f"Room {number} is on floor {number % 7}." for number in range(2 * BATCH_PASSAGES + 3)]
    its = Encoder(encoder)
    writer = EmbeddingWriter(tmp_path, (), its, 2)
    rows = [writer.add(text) for text in texts]
    writer.flush()
    assert rows == list(range(len(texts)))
    (question,) = its.embed(texts[BATCH_PASSAGES + 1 : BATCH_PASSAGES + 2])
    cosines = Embeddings(tmp_path, its.manifest.dimensions).cosines(question)
    assert cosines.argmax() == BATCH_PASSAGES + 1


def test_an_embedding_does_not_depend_on_its_batch(encoder):
    its = Encoder(encoder)
    texts = [*TEXTS.values(), "", "word " * 1000]
    alone = np.concatenate([its.embed([text]) for text in texts])
    assert np.allclose((its.embed(texts) * alone).sum(axis=1), 1, atol=0.03)


def test_an_encoder_is_prepared_again_only_if_damaged_or_changed(encoder, tmp_path):
    folder = shutil.copytree(encoder, tmp_path / "encoder")
    identity = load_encoder_manifest(folder).identity
    assert is_complete(folder, identity)
    assert not is_complete(folder, "another")
    with (folder / ENCODER_FILE).open("ab") as file:
        file.write(b"more")
    assert not is_complete(folder, identity)
    assert not is_complete(tmp_path / "nowhere", identity)


# An encoder that is damaged, wrong, or another by now.


@pytest.fixture
def own_encoder(encoder, tmp_path):
    return _copy(encoder, tmp_path / "encoder")


def _copy(encoder, to):
    """A copy whose large graph is a link."""
    shutil.copytree(encoder, to, ignore=shutil.ignore_patterns(ENCODER_FILE))
    (to / ENCODER_FILE).symlink_to((encoder / ENCODER_FILE).resolve())
    return to


def prepare_again(folder, **fields):
    """Puts another encoder in a folder, as `prepare_encoder` does: all at once."""
    new = _copy(folder, folder.parent / "new")
    manifest = json.loads((new / MANIFEST_FILE).read_bytes())
    files = {name: hashlib.sha256((new / name).read_bytes()).hexdigest()
             for name in manifest["files"]}  # fmt: skip
    (new / MANIFEST_FILE).write_text(json.dumps({**manifest, "files": files, **fields}))
    folder.rename(folder.parent / f"old{len(list(folder.parent.iterdir()))}")
    new.rename(folder)


@pytest.mark.parametrize("name", [ENCODER_FILE, TOKENIZER_FILE, KNOWN_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("damage", ["other bytes", "one byte", "a FIFO", "nothing"])
def test_a_damaged_encoder_is_not_used_and_its_file_is_named(
    index, indexed, own_encoder, name, damage
):
    path = own_encoder / name
    data = path.read_bytes()
    path.unlink()
    if damage == "a FIFO":
        os.mkfifo(path)
    elif damage != "nothing":
        path.write_bytes(b"not this" if damage == "other bytes" else data[:-2] + b"x" + data[-1:])
    collection = Collection(indexed, SharedEncoder(own_encoder))
    assert best(collection, "vacation") == "leave.txt"
    what = "there is no encoder in" if (name, damage) == (MANIFEST_FILE, "nothing") else name
    assert what in collection.fault
    with pytest.raises(SetupError, match=what):
        index(encoder=own_encoder)


def shuffle_vocabulary(folder):
    path = folder / TOKENIZER_FILE
    found = json.loads(path.read_bytes())
    words = list(found["model"]["vocab"])
    turned = [*words[:2000], *words[:1999:-1]]  # the first are special tokens and single letters
    found["model"]["vocab"] = {word: number for number, word in enumerate(turned)}
    path.write_text(json.dumps(found))


def turn_embeddings(folder):
    path = folder / KNOWN_FILE
    found = json.loads(path.read_bytes())
    for its in found:
        its["embedding"].reverse()
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("change", "fields", "why"),
    [
        (shuffle_vocabulary, {}, "cuts texts otherwise"),
        (turn_embeddings, {}, "computes other embeddings"),
        (lambda folder: None, {"dimensions": 383}, "embeddings of 383 values"),
        (lambda folder: (folder / KNOWN_FILE).write_text("[]"), {}, "computes other embeddings"),
    ],
)
def test_an_encoder_that_computes_wrongly_is_not_used(indexed, own_encoder, change, fields, why):
    change(own_encoder)
    prepare_again(own_encoder, **fields)
    collection = Collection(indexed, SharedEncoder(own_encoder))
    assert best(collection, "vacation") == "leave.txt"
    assert why in collection.fault


def test_an_encoder_that_is_prepared_again_is_loaded(index, indexed, own_encoder):
    collection = Collection(indexed, SharedEncoder(own_encoder))
    prepare_again(own_encoder, identity="another")
    index(encoder=own_encoder)
    collection = collection.refreshed()
    assert collection.fault == ""
    assert {question: best(collection, question) for question in MEANT} == MEANT
    assert collection.refreshed() is collection


def test_an_encoder_that_comes_later_is_loaded(indexed, own_encoder):
    own_encoder.rename(own_encoder.parent / "away")
    collection = Collection(indexed, SharedEncoder(own_encoder))
    assert "words alone" in collection.fault
    assert collection.refreshed().identity == collection.identity
    (own_encoder.parent / "away").rename(own_encoder)
    before, collection = collection, collection.refreshed()
    assert before.identity != collection.identity, "a search may find something else"
    assert collection.fault == ""
    assert {question: best(collection, question) for question in MEANT} == MEANT


def test_the_encoder_before_is_used_while_the_one_prepared_again_is_no_good(indexed, own_encoder):
    collection = Collection(indexed, SharedEncoder(own_encoder))
    prepare_again(own_encoder, identity="another")
    collection = collection.refreshed()
    assert {question: best(collection, question) for question in MEANT} == MEANT
    assert "the encoder that was loaded before is used: another encoder than" in collection.fault
    prepare_again(own_encoder, files={})
    collection = collection.refreshed()
    assert {question: best(collection, question) for question in MEANT} == MEANT
    assert "is not what its manifest says" in collection.fault
