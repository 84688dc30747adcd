"""The OpenVINO engine, on the built-in model."""

import errno
import hashlib
import os
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from harness.models import copy_model, link_model
from harness.process import MIB
from qa_service.autotune.engine_race import MAX_ROUNDS
from qa_service.autotune.engine_trial import bundled_rounds
from qa_service.errors import DeviceError, SetupError
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, kept_shapes, make_engine, static_shapes
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.costs_dir import SeenLengths
from qa_service.instance.model_folder.known_answers import row_lengths
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.instance.stages import Stopwatch
from qa_service.instance.worker_main import load_reader
from qa_service.instance.worker_messages import Answers, Setup
from qa_service.preparation import graphs
from tests.programs import run_python
from tests.support import Lazy, all_of

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="no OpenVINO")
ENGINE = "qa_service.instance.engines.openvino"
engine_module = Lazy(ENGINE)

MAX_LOGIT_DIFFERENCE = 1e-3
MAX_DIFFERENCES = {"fp32": MAX_LOGIT_DIFFERENCE, "int8": 0.2, "bf16": 0.2, "int8_bf16": 0.4}
"""Of logits with static shapes from those with dynamic ones, which round elsewhere in bf16."""

NUM_WORDS = 2000
"""Of the small model's vocabulary."""

PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
from qa_service.instance.engines import EngineConfig, make_engine, openvino, static_shapes
from qa_service.instance.model_folder.costs_dir import SeenLengths
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.machine import resident_bytes, return_free_memory

static_shapes.LOWEST_PRIORITY = 0  # with other tests running it takes minutes
static_shapes.OFTEN = 2
model = Path(sys.argv[1])

def make(**config):
    return make_engine("openvino", model, load_manifest(model), EngineConfig(**config))

def run(engine, tokens, times=1):
    ids = np.full((1, tokens), 200)
    for _ in range(times):
        engine.logits(ids, np.ones_like(ids), np.zeros_like(ids))
    engine.static_shapes.wait()
"""
"""How each program begins that makes engines in a process of its own."""

ONE_AFTER_ANOTHER = """
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
for _ in range(2):
    engine = make()
del engine
os.kill(os.getpid(), signal.SIGUSR1)
"""
GROWTH = """
engine = make(precision=sys.argv[2], static_shapes_bytes=int(sys.argv[3]))
lengths = range(16, 112, 16)
for tokens in lengths:
    run(engine, tokens)
return_free_memory()
before = resident_bytes()
for tokens in lengths:
    run(engine, tokens, static_shapes.OFTEN)
return_free_memory()
print(sum(bool(engine.static_shapes.find(tokens)) for tokens in lengths), resident_bytes() - before)
"""
ALLOCATORS_BYTES = 8 * MIB
"""What a process takes more or less from one look to the next."""


def logits(engine, *lengths):
    """The logits of rows of these lengths, those of their padding left out."""
    ids = np.random.default_rng(0).integers(100, NUM_WORDS, (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    outputs = engine.logits(ids, mask, np.zeros_like(ids))
    assert all(output.shape == ids.shape for output in outputs)
    return np.stack([output[mask == 1] for output in outputs])


@pytest.mark.parametrize("lengths", [(16,), (17,), (3, 40), (384, 20)])
def test_it_gives_the_logits_of_onnx_runtime(builtin_model, engines, lengths):
    ours, theirs = (logits(engine, *lengths) for engine in engines)
    assert np.abs(ours - theirs).max() < MAX_LOGIT_DIFFERENCE


def make(model, kind="openvino", **config):
    return make_engine(kind, model, load_manifest(model), EngineConfig(**config))


@pytest.fixture(scope="module")
def engines(builtin_model):
    return [make(builtin_model, kind) for kind in ("openvino", "onnx")]


def test_logits_of_a_run_are_not_overwritten_by_the_next(engines):
    first = logits(engines[0], 20)
    ids = np.full((1, 20), 200)
    start, _ = engines[0].logits(ids, np.ones_like(ids), np.zeros_like(ids))
    kept = start.copy()
    assert (logits(engines[0], 20) == first).all()
    assert (start == kept).all()


@pytest.mark.parametrize("precision", MAX_DIFFERENCES)
def test_a_length_that_is_compiled_gives_the_same_logits(one_layer, precision, monkeypatch):
    skip_without_bf16(precision)
    # Beside other tests, a thread of the lowest priority takes minutes.
    monkeypatch.setattr(static_shapes, "LOWEST_PRIORITY", 0)
    monkeypatch.setattr(static_shapes, "OFTEN", 2)
    engine = make(one_layer, precision=precision, static_shapes_bytes=2**30)
    lengths = (17, 176, 384)
    dynamic = [logits(engine, length) for length in lengths]
    for length in lengths:
        for _ in range(static_shapes.OFTEN):
            logits(engine, length)
        engine.static_shapes.wait()
    for length, before in zip(lengths, dynamic, strict=True):
        assert engine.static_shapes.find(engine_module.padded_tokens(length, 384))
        assert np.abs(logits(engine, length) - before).max() < MAX_DIFFERENCES[precision]


@pytest.mark.parametrize(("precision", "room"), [("fp32", 64), ("int8", 96)])
def test_static_shapes_stay_within_their_memory_bound(builtin_model, precision, room):
    done = run_python("-c", PROGRAM + GROWTH, builtin_model, precision, room * MIB)
    num_compiled, grown_bytes = map(int, done.stdout.split())
    print(f"{precision}, {room} MiB: {num_compiled} lengths, {grown_bytes / MIB:.0f} MiB")
    assert grown_bytes <= room * MIB + ALLOCATORS_BYTES


THREADS = """
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # compiling has a thread a CPU
engine = make(static_shapes_bytes=2**30)
counted = []
for tokens in (16, 32, 48, 64):
    run(engine, tokens, static_shapes.OFTEN)
    assert engine.static_shapes.find(tokens)
    counted.append(len(os.listdir("/proc/self/task")))
print(counted[-1] - counted[0])
"""


def test_a_static_shape_adds_no_thread_where_a_run_has_one(one_layer):
    done = run_python("-c", PROGRAM + THREADS, one_layer)
    assert int(done.stdout) < 3  # of three further lengths; those who compile may start late


@pytest.fixture(scope="module")
def one_layer(builtin_model, tmp_path_factory):
    """The built-in model with one layer and few words: all others are compiled and kept alike."""
    folder = tmp_path_factory.mktemp("one_layer") / "model"
    copy_model(builtin_model, folder, "costs", "*.safetensors", "model.int8.onnx")
    for path in folder.glob("*.onnx"):
        model = onnx.load(path)
        (head,) = (
            one for one in model.graph.node if one.output[0].endswith("qa_outputs/MatMul_output_0")
        )
        head.input[0] = head.input[0].replace("layer.5", "layer.0")
        for weight in model.graph.initializer:
            if weight.name.endswith("word_embeddings.weight"):
                words = numpy_helper.to_array(weight)[:NUM_WORDS]
                weight.CopyFrom(numpy_helper.from_array(words, weight.name))
        ends = [[one.name for one in side] for side in (model.graph.input, model.graph.output)]
        onnx.save(onnx.utils.Extractor(model).extract_model(*ends), path)
    return folder


@pytest.fixture
def kept_model(one_layer, tmp_path, monkeypatch):
    """A model in a folder of its own, of which nothing is compiled yet."""
    # Beside other tests, a thread of the lowest priority takes minutes.
    monkeypatch.setattr(static_shapes, "LOWEST_PRIORITY", 0)
    monkeypatch.setattr(f"{ENGINE}.WARMING_S", 0.0)
    return link_model(one_layer, tmp_path / "model", "costs")


def blobs(model):
    return sorted((model / "costs" / engine_module.CACHE_DIR).glob("*/tokens-*.blob"))


def start(model, *usual, room=2**30, check=None):
    """An engine that has made what it can before it serves, and all else."""
    engine = make(model, precision="int8", static_shapes_bytes=room)
    if check:
        engine.check_shapes_with(check)
    engine.prepare_lengths(SeenLengths(model), usual)
    engine.static_shapes.wait()
    return engine


def test_a_start_has_the_static_shapes_that_the_last_one_compiled(kept_model, monkeypatch):
    usual = (90, 90, 60, 40)
    first = start(kept_model, *usual)
    found = [logits(first, length) for length in usual]
    assert [path.name for path in blobs(kept_model)] == [
        "tokens-112.blob",  # longer by up to a quarter
        *("tokens-48.blob", "tokens-64.blob"),
        *("tokens-80.blob", "tokens-96.blob"),  # 80 is between the usual ones
    ]
    assert not list(blobs(kept_model)[0].parent.glob(".*"))

    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(engine_module.OpenVinoEngine, "_compiled_for", refuse)
    second = start(kept_model, *usual)
    for length, before in zip(usual, found, strict=True):
        assert second.static_shapes.find(engine_module.padded_tokens(length, 384))
        assert (logits(second, length) == before).all()


def test_another_process_has_the_static_shapes_that_the_last_one_compiled(kept_model):
    code = f"""{PROGRAM}
openvino.WARMING_S = 0.0
engine = make(precision="int8", static_shapes_bytes={2**30})
compiled = []
made = engine._compiled_for
engine._compiled_for = lambda tokens, kept: compiled.append(tokens) or made(tokens, kept)
engine.prepare_lengths(SeenLengths(model), (90, 60))
engine.static_shapes.wait()
print(sorted(compiled), sorted(engine.static_shapes._compiled))
"""
    assert run_python("-c", code, kept_model).stdout == "[64, 80, 96, 112] [64, 80, 96, 112]\n"
    assert run_python("-c", code, kept_model).stdout == "[] [64, 80, 96, 112]\n"


def test_a_length_being_compiled_is_visible_to_other_instances(tmp_path):
    ours, theirs = (kept_shapes.KeptShapes(tmp_path, "key", MIB) for _ in range(2))

    def compile_into(options):
        found = [theirs.is_in_the_making(f"tokens-{tokens}") for tokens in (64, 6, 96)]
        assert found == [True, False, False]

    ours.keeping("tokens-64", compile_into)
    assert not theirs.is_in_the_making("tokens-64")


def test_a_file_that_openvino_does_not_write_as_the_disk_is_full_is_named(tmp_path, caplog):
    kept = kept_shapes.KeptShapes(tmp_path, "key", MIB)
    with caplog.at_level("INFO"):
        assert kept.keeping("tokens-64", lambda options: "compiled") == "compiled"
    assert "what is compiled is not kept: OpenVINO could not write it" in caplog.text


def test_static_shapes_are_kept_within_the_same_bound(kept_model):
    room = 15 * MIB
    start(kept_model, 90, 60, 40, 20, room=room)
    assert 0 < sum(path.stat().st_size for path in blobs(kept_model)) <= room


def test_kept_files_that_vanish_while_they_are_written_fail_no_start(kept_model, monkeypatch):
    """As where two instances start at once, or a server with another key removes the oldest."""
    core = engine_module.shared_core()

    class Core:
        def __getattr__(self, name):
            return getattr(core, name)

        def compile_model(self, model, device, options):
            if "CACHE_DIR" in options:
                raise RuntimeError("cannot set permissions: No such file or directory")
            return core.compile_model(model, device, options)

    monkeypatch.setattr(f"{ENGINE}.shared_core", Core)
    engine = start(kept_model, 60)
    assert engine.static_shapes.find(64)
    assert logits(engine, 60).shape[-1] == 60


def test_static_shapes_that_are_damaged_are_compiled_again(kept_model, caplog):
    before = logits(start(kept_model, 60), 60)
    (path,) = blobs(kept_model)
    path.write_bytes(b"damaged" * 1000)
    assert (logits(start(kept_model, 60), 60) == before).all()
    assert "is damaged" in caplog.text
    caplog.clear()
    assert (logits(start(kept_model, 60), 60) == before).all()
    assert "is damaged" not in caplog.text


def test_static_shapes_that_compute_wrongly_are_not_kept(kept_model, caplog):
    def refuse(*_):
        raise ValueError("wrong")

    start(kept_model, 60)
    engine = start(kept_model, 60, check=refuse)
    assert engine.static_shapes.find(64) is None
    assert not blobs(kept_model)
    assert "computes wrongly, and is removed" in caplog.text


ZEROS = bytes(64 << 10)


def zeros(path):
    """64 KiB of zeros in the middle, as a disk leaves them."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(ZEROS)


def a_bit(path):
    """One bit, of the weights of the last layers."""
    with path.open("r+b") as file:
        file.seek(-3_000_001, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-3_000_001, os.SEEK_END)
        file.write(bytes([byte ^ 1 << 6]))


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [zeros, a_bit, cut])
def test_a_damaged_file_is_compiled_again_whatever_it_is_for(kept_model, damage, caplog):
    before = logits(start(kept_model, 60), 60), logits(make(kept_model, precision="int8"), 60)
    damaged = [*blobs(kept_model), *kept_model.rglob("any-length.blob")]
    assert len(damaged) == 2
    for path in damaged:
        damage(path)
    engine = start(kept_model, 60)
    assert (logits(engine, 60) == before[0]).all()
    assert (logits(make(kept_model, precision="int8"), 60) == before[1]).all()
    assert caplog.text.count("is damaged") == 2
    caplog.clear()
    start(kept_model, 60)
    assert "is damaged" not in caplog.text
    assert all(path.is_file() for path in damaged)


def test_a_file_that_changes_under_a_running_instance_changes_no_answer(kept_model):
    start(kept_model, 60, 90)
    engine = start(kept_model, 60, 90)
    before = [logits(engine, *lengths) for lengths in ((60,), (90,), (60, 90))]
    for path in kept_model.rglob("*.blob"):
        path.write_bytes(bytes(path.stat().st_size))
    after = [logits(engine, *lengths) for lengths in ((60,), (90,), (60, 90))]
    assert all((one == other).all() for one, other in zip(before, after, strict=True))


def test_what_is_kept_is_loaded_where_nothing_can_be_written(kept_model, monkeypatch):
    before = logits(start(kept_model, 60), 60)

    def refuse(*_, **__):
        raise PermissionError(errno.EROFS, "read-only")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr(engine_module.OpenVinoEngine, "_compiled", refuse)
    assert (logits(start(kept_model, 60), 60) == before).all()


def int8_setup(model):
    options = InstanceOptions(
        inference_engine_type="openvino",
        precision="int8",
        intra_op_num_threads=1,
        devices="cpu",
        cost_table="off",
        static_shapes_bytes=0,
    )
    return Setup(str(model), options)


def replace_by_another_models(path, model):
    """A file as this program writes them, with a right hash, that computes wrongly."""
    onnx_model = onnx.load(model / "model.openvino_int8.onnx")
    weights = [one for one in onnx_model.graph.initializer if len(one.dims) == 2]
    scaled = max(weights, key=lambda one: one.dims[0] * one.dims[1])
    array = numpy_helper.to_array(scaled)
    scaled.CopyFrom(numpy_helper.from_array((array * 3).astype(array.dtype), scaled.name))
    other = model / "other.onnx"
    onnx.save(onnx_model, other)
    options = engine_module.options(EngineConfig(precision="int8"))
    compiled = engine_module.shared_core().compile_model(str(other), "CPU", options)
    exported = compiled.export_model().getvalue()
    path.write_bytes(exported + hashlib.sha256(exported).digest())


def test_a_kept_model_that_computes_wrongly_is_removed_and_compiled_again(
    quick_model, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(f"{ENGINE}.WARMING_S", 0.0)
    model = link_model(quick_model, tmp_path / "model", "costs")
    setup = int8_setup(model)
    load_reader(setup)
    (path,) = model.rglob("any-length.blob")
    replace_by_another_models(path, model)
    loaded = load_reader(setup)
    assert "computes wrongly" in caplog.text
    assert "it is compiled again" in caplog.text
    assert not path.exists()
    assert loaded.self_test
    for _ in range(3):
        loaded.self_test.check_next()
    load_reader(setup)
    assert path.exists()


def test_only_the_file_of_what_ran_last_is_forgotten(kept_model):
    start(kept_model, 60, 90)
    engine = start(kept_model, 60, 90)
    before = {path.name for path in kept_model.rglob("*.blob")}
    logits(engine, 90, 60)
    logits(engine, 60)
    assert engine.forget_kept()
    assert before - {path.name for path in kept_model.rglob("*.blob")} == {"tokens-64.blob"}
    logits(engine, 60, 60)
    assert engine.forget_kept()
    left = {"tokens-64.blob", "any-length.blob"}
    assert before - {path.name for path in kept_model.rglob("*.blob")} == left


def test_a_folder_that_cannot_be_written_costs_only_what_is_kept(kept_model, monkeypatch):
    (kept_model / "costs").write_text("not a folder")
    engine = start(kept_model, 60)
    assert engine.static_shapes.find(64)


def test_the_least_recently_used_compiled_caches_of_other_versions_are_removed(
    kept_model,
):
    root = kept_model / "costs" / engine_module.CACHE_DIR
    for number in range(6):
        (root / str(number)).mkdir(parents=True)
        os.utime(root / str(number), (number, number))
    make(kept_model, precision="int8")
    assert len(list(root.iterdir())) == kept_shapes.MAX_FOLDERS
    assert not (root / "0").exists()
    assert (root / "5").exists()


def test_rows_are_padded_to_a_few_lengths_up_to_the_longest():
    assert row_lengths(100) == [16, 32, 48, 64, 80, 96, 100]
    assert {engine_module.padded_tokens(n, 100) for n in range(1, 101)} == set(row_lengths(100))
    assert [engine_module.padded_tokens(n, 100) for n in (1, 16, 17, 97, 100, 120)] == [
        16, 16, 32, 100, 100, 120,
    ]  # fmt: skip


def test_compiled_kernels_are_cached_in_the_models_folder(builtin_model, engines):
    assert any((builtin_model / "costs" / engine_module.CACHE_DIR).iterdir())


def has_bf16():
    return "BF16" in engine_module.shared_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def skip_without_bf16(precision):
    if "bf16" in precision and not has_bf16():
        pytest.skip("this processor has no bf16")


@pytest.mark.parametrize(("precision", "without"), [("bf16", "fp32"), ("int8_bf16", "int8")])
def test_bf16_on_a_processor_without_it_is_an_error(builtin_model, precision, without):
    if has_bf16():
        pytest.skip("this processor has bf16")
    with pytest.raises(DeviceError, match=f"does not compute in bf16: use --precision {without}$"):
        make(builtin_model, precision=precision)


def test_a_signal_is_handled_after_one_engine_took_the_place_of_another(one_layer):
    done = run_python("-c", PROGRAM + ONE_AFTER_ANOTHER, one_layer)
    assert (done.stdout, done.returncode) == ("handled\n", 0)


def test_a_gpu_is_refused(builtin_model):
    with pytest.raises(DeviceError, match="for a CPU"):
        make(builtin_model, device="cuda")


def test_a_file_that_is_broken_is_one_line(builtin_model, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not an ONNX file")
    with pytest.raises(SetupError, match=r"OpenVINO cannot load model\.onnx") as caught:
        make_engine("openvino", tmp_path, load_manifest(builtin_model), EngineConfig())
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def answers_of_fp32(builtin_model, engines):
    return bundled_answers(builtin_model, engines[0])


@pytest.mark.parametrize("precision", ["int8", "int8_bf16"])
def test_int8_gives_the_answers_of_fp32(builtin_model, engines, answers_of_fp32, precision):
    """Logits differ by up to 0.2 on this model; 94 % is what `auto` wants of an engine."""
    skip_without_bf16(precision)
    engine = make(builtin_model, precision=precision)
    difference = np.abs(logits(engine, 176, 90) - logits(engines[0], 176, 90)).max()
    assert MAX_LOGIT_DIFFERENCE < difference < 0.4
    ours = bundled_answers(builtin_model, engine)
    same = np.mean([one == other for one, other in zip(ours, answers_of_fp32, strict=True)])
    assert same >= 0.94


def bundled_answers(model, engine):
    """The answers to some of the questions by which engines are compared, about short texts."""
    reader = Reader(model, load_manifest(model), engine.logits, BatchRule())
    tasks = [task for tasks in bundled_rounds()[MAX_ROUNDS::6] for task in tasks]
    outcomes = reader.answer(reader.encode(tasks, Stopwatch()), Stopwatch())
    return [outcome.answers[0].answer for outcome in all_of(Answers, outcomes)]


def test_a_weight_is_rounded_for_each_output_to_256_steps():
    weight = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    weight[:, 3], weight[:, 4] = 0, np.abs(weight[:, 4])
    for axis in (0, 1):
        steps, scale, zero = graphs.round_weights(weight if axis else weight.T, axis)
        columns = steps if axis else steps.T
        back = (columns.astype(np.float32) - zero) * scale
        assert np.abs(back - weight).max() <= 0.51 * scale.max()
        assert (back[:, 3] == 0).all()
        assert (columns[:, 4] >= zero[4]).all()
