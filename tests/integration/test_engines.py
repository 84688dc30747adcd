"""Both engines on the built-in model, and the reading of long and of odd texts."""

from functools import cache

import msgspec
import numpy as np
import pytest

from qa_service.engine_catalogue import ONNX_FILE, ONNX_INT8_FILE, PYTORCH_FILE
from qa_service.errors import SetupError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.wire.messages import Question
from tests.programs import run_python

pytestmark = pytest.mark.slow

MAX_LOGIT_DIFFERENCE = 1e-3
CPU_ENGINES = ("onnx", "pytorch")

ISLAND = (
    "Skerrow is an island of 14 square kilometres off the west coast. It was settled in 1622 by "
    "eleven families of weavers, and has had a school since 1790. The lighthouse at its north end "
    "was designed by Harriet Colquhoun and lit for the first time on 3 March 1871. Most islanders "
    "work in the kelp factory, which was founded by two brothers, Owen and Idris Pugh. The ferry "
    "from Portnahaven takes 90 minutes and runs twice a day, but not when the wind is over 60 "
    "knots. About 40 % of the electricity comes from a tidal turbine; the rest comes by cable."
)
QUESTIONS = (
    Question("Who designed the lighthouse?", ISLAND),
    Question("How long does the ferry take?", ISLAND, 3),
    Question("When was the island settled?", ISLAND),
    Question("Since when has there been a school?", ISLAND),
    Question("Who founded the kelp factory?", ISLAND, 5),
    Question("Where does the ferry leave from?", ISLAND),
    Question("How much of the electricity comes from the turbine?", ISLAND),
    Question("How large is Skerrow?", ISLAND),
    Question("What colour is the ferry?", ISLAND),
    Question("What did the first families on the island do for a living?", ISLAND * 5, 2),
    Question("What is it?", "Tea."),
    Question("?", "."),
    Question("Who came second?", "Anna came first,\r\nBen second\r\nand Chidi third.\r\n"),
    Question("Wo steht der Turm?", "Der schöne Turm steht in Zürich, gleich am See."),
    Question("Where is the tower?", "東京タワーは東京都港区にあります。"),
    Question("Who won?", "🏆 The cup went to Zoë 👩\u200d🚀 of Århus, not to [SEP] Bob."),
)


@pytest.fixture(scope="module")
def engine(builtin_model):
    """The engine of a kind; PyTorch is imported only if it is asked for."""
    manifest = load_manifest(builtin_model)
    return cache(lambda kind: make_engine(kind, builtin_model, manifest, EngineConfig()))


@pytest.fixture(scope="module")
def make_reader(builtin_model, engine):
    manifest = load_manifest(builtin_model)

    def make(kind="onnx", limits=BatchRule(), logits=None):  # noqa: B008
        return Reader(builtin_model, manifest, logits or engine(kind).logits, limits)

    return make


@pytest.fixture(scope="module")
def reader(make_reader):
    return make_reader()


def spans(outcomes):
    return [[(answer.start, answer.end) for answer in answers] for answers in outcomes]


def test_both_engines_give_the_same_logits_in_padded_batches(make_reader, engine):
    lengths = set()

    def both(ids, mask, types):
        ours, theirs = (engine(kind).logits(ids, mask, types) for kind in CPU_ENGINES)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == other.shape == ids.shape
            assert mine.dtype == other.dtype == np.float32
            assert np.abs(mine - other)[mask == 1].max() < MAX_LOGIT_DIFFERENCE
        lengths.add(tuple(mask.sum(axis=1)))
        return ours

    make_reader(limits=BatchRule(6, 4096), logits=both).read(QUESTIONS)
    assert any(len(set(batch)) > 3 for batch in lengths), "no batch was padded"


@pytest.mark.parametrize("kind", CPU_ENGINES)
def test_padding_and_batch_members_change_no_answer(make_reader, kind):
    together = make_reader(kind).read(QUESTIONS)
    alone = make_reader(kind, BatchRule(max_batch_size=1)).read(QUESTIONS)
    assert spans(together) == spans(alone)


def test_plain_questions_get_their_answers(reader):
    outcomes = reader.read([QUESTIONS[0], *QUESTIONS[2:9]])
    assert [answers[0].answer for answers in outcomes] == [
        "Harriet Colquhoun",
        "1622",
        "1790",
        "two brothers, Owen and Idris Pugh",
        "Portnahaven",
        "40 %",
        "14 square kilometres",
        "",
    ]


def filler(chars):
    """Sentences of about this many characters in all, no two of them the same."""
    return [
        f"In {1000 + i} the observatory counted {i * 7 % 93} comets and {i * 5 % 71} eclipses. "
        for i in range(chars // 58)
    ]


def bakery(founder):
    return f"The bakery on Crooked Lane was opened by {founder} in 1931. "


@pytest.mark.soak
def test_finds_answers_at_both_ends_and_in_the_middle_of_100_kb(reader):
    founders = ["Rosalind Achterberg", "Tobias Wren", "Margaret Hale"]
    half = "".join(filler(50_000))
    text = half.join(map(bakery, founders)).rstrip()
    assert len(text) > 100_000
    assert text.startswith(bakery(founders[0]))
    assert text.endswith(bakery(founders[2]).rstrip())
    (answers,) = reader.read([Question("Who opened the bakery on Crooked Lane?", text, top_k=3)])
    assert {answer.answer for answer in answers} == set(founders)
    for answer in answers:
        assert text[answer.start : answer.end] == answer.answer
        assert text.index(answer.answer) == answer.start


@pytest.mark.parametrize("place", [0.0, 0.6, 1.0])
def test_finds_the_answer_wherever_a_long_text_has_it(reader, place):
    sentences = filler(4_000)
    sentences.insert(round(place * len(sentences)), bakery("Rosalind Achterberg"))
    text = "".join(sentences)
    (answers,) = reader.read([Question("Who opened the bakery on Crooked Lane?", text)])
    assert answers[0].answer == "Rosalind Achterberg"
    assert answers[0].start == text.index("Rosalind")


def test_finds_the_answer_whole_wherever_a_window_ends(reader):
    """The text is shifted word by word, so that each border falls on every part of the answer."""
    before, after = "".join(filler(1750)), "".join(filler(300))
    words = before.split(" ")
    for skipped in range(0, 120, 10):
        text = " ".join(words[skipped:]) + bakery("Rosalind Achterberg") + after
        (answers,) = reader.read([Question("Who opened the bakery on Crooked Lane?", text)])
        assert answers[0].answer == "Rosalind Achterberg", skipped


@pytest.mark.parametrize(
    ("answer", "question", "text"),
    [
        ("Jose\u0301 Nu\u0301n\u0303ez", "Who baked the bread?", "The bread was baked by {}."),
        ("Eva", "Who baked the bread?", "\u0301{} baked the bread."),
        ("Zoë 👩\u200d🚀", "Who baked the bread?", "The bread was baked by {} on Monday."),
        ("שרה", "Who baked the bread?", "The bread was baked by {} on Monday."),
        ("Ann\r\nLee", "Who baked the bread?", "The bread\r\nwas baked by {} on Monday.\r\n"),
    ],
    ids=["combining marks", "mark at the start", "joined emoji", "right to left", "line break"],
)
def test_odd_characters_are_returned_unchanged(reader, answer, question, text):
    text = text.format(answer)
    (answers,) = reader.read([Question(question, text)])
    assert answers[0].answer == answer
    assert answers[0].start == text.index(answer)
    assert text[answers[0].start : answers[0].end] == answer


def test_an_instance_with_the_onnx_engine_loads_neither_torch_nor_transformers(builtin_model):
    program = f"""
import sys
from pathlib import Path
import qa_service.instance.loading
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.wire.messages import Question
from qa_service.instance.reader.reader import Reader

folder = Path({str(builtin_model)!r})
manifest = load_manifest(folder)
engine = make_engine("onnx", folder, manifest, EngineConfig())
reader = Reader(folder, manifest, engine.logits, BatchRule())
((answer,),) = reader.read([Question("Who made the tea?", "The tea was made by Ada.")])
print(answer.answer, sorted({{"torch", "transformers"}} & set(sys.modules)))
"""
    done = run_python("-c", program)
    assert (done.stdout, done.returncode) == ("Ada []\n", 0), done.stderr


@pytest.mark.parametrize("kind", CPU_ENGINES)
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_damaged_model_is_reported_in_one_line(builtin_model, tmp_path, kind, damage):
    for name in ("config.json", "tokenizer.json", ONNX_FILE, PYTORCH_FILE):
        content = (builtin_model / name).read_bytes()
        if name not in (ONNX_FILE, PYTORCH_FILE):
            (tmp_path / name).write_bytes(content)
        elif damage == "cut short":
            (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(SetupError) as caught:
        make_engine(kind, tmp_path, load_manifest(builtin_model), EngineConfig())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("onnx", "prepare_model.py --model builtin --precision int8"), ("pytorch", "has no int8")],
)
def test_an_unavailable_precision_is_reported_in_one_line(builtin_model, kind, words):
    manifest = load_manifest(builtin_model)
    only_fp32 = {name: file for name, file in manifest.files.items() if name != ONNX_INT8_FILE}
    manifest = msgspec.structs.replace(manifest, files=only_fp32)
    with pytest.raises(SetupError, match=words) as caught:
        make_engine(kind, builtin_model, manifest, EngineConfig(precision="int8"))
    assert "\n" not in str(caught.value)


def test_costs_of_one_precision_are_not_taken_for_anothers(builtin_model):
    manifest = load_manifest(builtin_model)
    runtimes = {
        make_engine("onnx", builtin_model, manifest, EngineConfig(precision=name)).runtime
        for name in ("fp32", "int8")
    }
    assert len(runtimes) == 2


def test_an_unknown_engine_is_a_fault_of_ours(builtin_model):
    with pytest.raises(ValueError, match="onnx, openvino, pytorch"):
        make_engine("abacus", builtin_model, load_manifest(builtin_model), EngineConfig())
