"""Models of several architectures: prepared, and asked.

Of all that transformers loads, `test_all_architectures.py`. What the engines are given and what
they say is compared with transformers' own tokenizer and model.
"""

import functools
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
import pytest

from qa_service.errors import SetupError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.instance.worker_main import load_reader
from qa_service.instance.worker_messages import Setup
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.source_model import quiet_libraries
from qa_service.wire.messages import Question
from tests.integration.architectures import (
    make_small_model,
    torch,
    transformers,
    typeless_tokenizer,
    wordpiece_tokenizer,
)
from tests.support import all_of, needs_torch, present

pytestmark = needs_torch
QUICK = ("convbert", "xlnet")
"""One whose windows may not be padded, and one whose CLS is last."""

QUESTIONS = (
    Question("Who built the lighthouse?", "The lighthouse was built in 1849 by an engineer."),
    Question("When?", "It was built in 1849 and burned whale oil. " * 2),
)
TOLERANCE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}

REFUSED = {
    "lxmert": "`visual_feats` cannot be `None`",
    "reformer": "gives different logits for the same",
}
"""What is said of those that cannot be served."""

NOT_BUILT = {"layoutlmv2": "detectron2"}
"""Those that need a package which is not on PyPI."""

ONLY_PYTORCH = {
    "canine", "diffllama", "fnet", "funnel", "led", "longformer", "minimax", "mixtral",
    "qwen2_moe", "qwen3_moe", "qwen3_next",
}  # fmt: skip
"""Those that torch cannot export to ONNX, or whose graph ONNX Runtime cannot run."""

NOT_IN_OPENVINO = {"mbart"}
"""Those whose graph OpenVINO cannot load, which it says."""

NEVER_PADDED = {"canine", "convbert", "fnet", "funnel", "nystromformer", "yoso"}


class Recorder:
    """An engine's `logits` that keeps what it said of each row, by the row's ids."""

    def __init__(self, engine):
        self._engine = engine
        self.seen = {}

    def __call__(self, ids, mask, types):
        start, end = self._engine.logits(ids, mask, types)
        for number, row in enumerate(mask == 1):
            self.seen[tuple(ids[number, row])] = np.stack((start[number, row], end[number, row]))
        return start, end


def transformers_logits(source, model, question):
    """The ids and the logits of a question, float32 [2, seq], as transformers has them."""
    encoded = transformers.AutoTokenizer.from_pretrained(source)(
        question.question, question.text, return_tensors="pt"
    )
    with torch.inference_mode():
        output = model(**encoded)
    logits = torch.stack((output.start_logits, output.end_logits))[:, 0]
    return tuple(encoded["input_ids"][0].tolist()), logits.numpy()


def prepared(folder, kind, make_tokenizer=None, *, can_abstain=False, capfd=None, **changes):
    """A small model of a kind, as transformers has it, and its prepared folder."""
    with quiet_libraries():
        model = make_small_model(kind, folder / kind, make_tokenizer, **changes)
    if capfd:
        capfd.readouterr()  # only what preparing prints is the test's
    out = folder / "out"
    args = PrepareArgs(model=str(folder / kind), output_dir=out, can_abstain=can_abstain)
    return model, prepare(args)


@quiet_libraries()
def check_engines(source, model, target):
    manifest = load_manifest(target)
    engines = ["pytorch"]
    if "model.onnx" in manifest.files:
        engines += ["onnx", "openvino"] if find_spec("openvino") else ["onnx"]
    for engine_type in engines:
        if engine_type == "openvino" and manifest.name in NOT_IN_OPENVINO:
            with pytest.raises(SetupError, match=r"^OpenVINO cannot load .*$"):
                make_engine(engine_type, target, manifest, EngineConfig())
            continue
        recorder = Recorder(make_engine(engine_type, target, manifest, EngineConfig()))
        Reader(target, manifest, recorder, BatchRule()).read(QUESTIONS)
        for question in QUESTIONS:
            ids, wanted = transformers_logits(source, model, question)
            np.testing.assert_allclose(recorder.seen[ids], wanted, err_msg=engine_type, **TOLERANCE)
    return manifest


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where tests share what they prepare: a folder for each kind."""
    return functools.cache(tmp_path_factory.mktemp)


def shared(folder, kind):
    """A prepared folder, made if no test before has made it."""
    made = folder / "out" / kind
    return made if made.exists() else prepared(folder, kind)[1]


@pytest.mark.parametrize("kind", QUICK)
def test_every_engine_gives_transformers_logits(kind, folders, capfd):
    check_architecture(kind, folders(kind), capfd)


def check_architecture(kind, tmp_path, capfd):
    """Prepares a small model of a kind and asks it, or has it refused."""
    if kind in NOT_BUILT:
        with pytest.raises(ImportError, match=NOT_BUILT[kind]):
            make_small_model(kind, tmp_path / kind)
        return
    if kind in REFUSED:
        with pytest.raises(SetupError, match=REFUSED[kind]) as refusal:
            prepared(tmp_path, kind)
        assert "\n" not in str(refusal.value)
        return
    model, target = prepared(tmp_path, kind, can_abstain=None, capfd=capfd)
    printed = capfd.readouterr()
    assert len(printed.out.splitlines()) <= 15
    assert not printed.err
    manifest = check_engines(tmp_path / kind, model, target)
    assert ("model.onnx" in manifest.without) == (kind in ONLY_PYTORCH)
    assert manifest.may_pad == (kind not in NEVER_PADDED)
    assert manifest.reading.null_position == (-1 if kind == "xlnet" else 0)


@pytest.mark.parametrize(
    "kind",
    ["mpt", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("ibert", "nystromformer"))],
)
def test_a_model_is_given_no_more_positions_than_it_has(kind, tmp_path):
    changes = {"max_seq_len": 64} if kind == "mpt" else {"max_position_embeddings": 64}
    model, target = prepared(tmp_path, kind, **changes)
    manifest = check_engines(tmp_path / kind, model, target)
    assert 60 <= manifest.window_tokens <= 64


@pytest.mark.parametrize("has_types", [True, False])
def test_token_types_are_given_where_the_tokenizer_gives_them(has_types, tmp_path):
    make_tokenizer = wordpiece_tokenizer if has_types else typeless_tokenizer
    model, target = prepared(tmp_path, "bert", make_tokenizer)
    manifest = check_engines(tmp_path / "bert", model, target)
    types = ("token_type_ids",) if has_types else ()
    assert manifest.inputs == ("input_ids", "attention_mask", *types)


def test_a_cls_token_at_the_end_holds_the_null_answer(folders):
    target = shared(folders("xlnet"), "xlnet")
    manifest = load_manifest(target)
    reading = msgspec.structs.replace(manifest.reading, null_threshold=0.0)
    manifest = msgspec.structs.replace(manifest, may_pad=True, can_abstain=True, reading=reading)

    def logits(ids, mask, types):
        scores = np.where(ids == 2, 9.0, 0.0).astype(np.float32)  # [CLS]
        scores[:, 0] = -9.0
        return scores, scores

    answers = Reader(target, manifest, logits, BatchRule()).read(QUESTIONS)
    assert [first.start for (first, *_) in all_of(list, answers)] == [None, None]


@pytest.mark.long
def test_an_engine_that_cannot_run_the_model_says_so_in_one_line(tmp_path, capfd):
    """DeBERTa's own code mixes bfloat16 and float32."""
    _, target = prepared(tmp_path, "deberta")
    options = InstanceOptions(inference_engine_type="pytorch", precision="bf16", cost_table="off")
    capfd.readouterr()
    with pytest.raises(SetupError, match=r"^pytorch bf16 cannot run this model: .+$"):
        load_reader(Setup(str(target), options))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("kind", "largest"), [("convbert", 1), pytest.param("longformer", 64, marks=pytest.mark.long)]
)
def test_costs_are_measured_of_rows_that_the_model_takes(folders, kind, largest):
    """Longformer counts the separators of a row; a model without padding runs rows alone."""
    target = shared(folders(kind), kind)
    options = InstanceOptions(
        inference_engine_type="pytorch", precision="fp32", intra_op_num_threads=1
    )
    reader = load_reader(Setup(str(target), options)).reader
    assert present(reader.rule.costs).batch_sizes[-1] == largest
