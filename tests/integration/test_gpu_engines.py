"""What a GPU would run: its buckets run here on the CPU, its options and errors for real."""

import os
import re

import msgspec
import numpy as np
import onnxruntime
import pytest

from harness.models import copy_model
from qa_service.engine_catalogue import ONNX_FILE, PLAIN_ONNX_FILE
from qa_service.errors import DeviceError, EngineFaultError, SetupError
from qa_service.instance import loading
from qa_service.instance.arrays import SPAN_VALUES
from qa_service.instance.devices import DeviceAssignment
from qa_service.instance.engines import EngineConfig, make_engine, onnx_gpu
from qa_service.instance.engines.buckets import Bucket, BucketGrid
from qa_service.instance.engines.onnx import open_session
from qa_service.instance.gpus import find_gpus
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.worker_main import load_reader
from qa_service.instance.worker_messages import Setup
from qa_service.preparation import known
from qa_service.preparation.prepare import PrepareArgs, prepare
from tests.integration.engine_comparison import (
    MAX_DIFFERENCE,
    SHAPES,
    batches,
    check_chosen_spans,
    difference,
)
from tests.programs import run_python
from tests.support import Lazy, needs_torch

pytestmark = [pytest.mark.slow, needs_torch]
torch, pytorch = Lazy("torch"), Lazy("qa_service.instance.engines.pytorch")

SMALL = EngineConfig(max_batch_size=3, max_batch_tokens=160)
needs_no_gpu = pytest.mark.skipif(bool(find_gpus().found), reason="there is a GPU")


@pytest.fixture(scope="module")
def gpu_model(builtin_model, tmp_path_factory):
    """A copy of the built-in model with all that a GPU's engines need: others serve that one."""
    folder = tmp_path_factory.mktemp("saved_models")
    copy_model(builtin_model, folder / builtin_model.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "NUM_COMPARED", 2)  # a CPU takes long in fp16
        return prepare(PrepareArgs(output_dir=folder, precision="fp16", tensorrt=True))


@pytest.fixture(scope="module")
def manifest(gpu_model):
    return load_manifest(gpu_model)


@pytest.fixture(scope="module")
def reference(gpu_model, manifest):
    return make_engine("onnx", gpu_model, manifest, EngineConfig())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pytorch_buckets_give_the_logits(gpu_model, manifest, reference, precision):
    config = msgspec.structs.replace(SMALL, precision=precision)
    engine = pytorch.bucketed_engine(gpu_model, manifest, config, "cpu")
    num_batches = len(SHAPES) if precision == "fp32" else 3
    assert difference(engine, reference, num_batches) < MAX_DIFFERENCE[precision]


def test_pytorch_buckets_choose_the_spans_that_the_reader_would(gpu_model, manifest, reference):
    engine = pytorch.bucketed_engine(gpu_model, manifest, SMALL, "cpu")
    check_chosen_spans(engine, reference, gpu_model, SMALL)


@pytest.mark.parametrize("kind", ["pytorch", "onnx"])
def test_half_precision_gives_the_logits_on_a_cpu_too(gpu_model, manifest, reference, kind):
    engine = make_engine(kind, gpu_model, manifest, EngineConfig(precision="fp16"))
    assert 0 < difference(engine, reference, 3) < MAX_DIFFERENCE["fp16"]


@pytest.mark.parametrize(
    ("name", "graphs", "bound"),
    [(ONNX_FILE, True, True), (ONNX_FILE, False, True), (ONNX_FILE, False, False),
     (PLAIN_ONNX_FILE, True, True)],
)  # fmt: skip
def test_onnx_buckets_give_the_logits(gpu_model, manifest, reference, name, graphs, bound):
    config = msgspec.structs.replace(SMALL, cuda_graphs=graphs, bound_buffers=bound)
    session = open_session(gpu_model / name, config, [("CPUExecutionProvider", {})])
    engine = onnx_gpu.bucketed_engine(session, manifest, config, "cpu")
    assert difference(engine, reference) < MAX_DIFFERENCE["fp32"]


def test_attention_is_torchs_own_kernel(gpu_model):
    assert pytorch.load_model(gpu_model, "fp32").config._attn_implementation == "sdpa"


def test_cuda_options_have_the_device_memory_limit_and_graphs():
    config = EngineConfig(
        device="cuda", cuda_index=3, gpu_memory_bytes=80 << 30, gpu_memory_fraction=0.25
    )
    assert onnx_gpu.cuda_options(config) == {
        "device_id": "3",
        "arena_extend_strategy": "kSameAsRequested",
        "enable_cuda_graph": "1",
        "use_tf32": "0",
        "gpu_mem_limit": str(20 << 30),
    }
    whole = msgspec.structs.replace(config, gpu_memory_fraction=1.0, cuda_graphs=False)
    assert "gpu_mem_limit" not in onnx_gpu.cuda_options(whole)
    assert onnx_gpu.cuda_options(whole)["enable_cuda_graph"] == "0"


def test_tensorrt_options_have_precision_caches_and_shapes(manifest, tmp_path):
    config = EngineConfig(precision="fp16", max_batch_size=16, gpu_memory_fraction=0.5,
                          gpu_memory_bytes=8 << 30)  # fmt: skip
    grid = BucketGrid.of(manifest, config)
    inputs = ("input_ids", "attention_mask")
    kept = onnx_gpu.opened_engines(tmp_path, config, grid, "hash")
    options = onnx_gpu.tensorrt_options(config, inputs, grid, kept)
    folder = str(tmp_path / "tensorrt" / "fp16-16x384")
    assert options == {
        "device_id": "0",
        "trt_fp16_enable": "1",
        "trt_bf16_enable": "0",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": folder,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": folder,
        "trt_profile_min_shapes": "input_ids:1x1,attention_mask:1x1",
        "trt_profile_opt_shapes": "input_ids:1x384,attention_mask:1x384",
        "trt_profile_max_shapes": "input_ids:16x384,attention_mask:16x384",
        "trt_max_workspace_size": str(4 << 30),
    }
    nothing = {name: value for name, value in options.items() if "cache" not in name}
    assert onnx_gpu.tensorrt_options(config, inputs, grid, None) == nothing


def test_no_bucket_is_outside_the_tensorrt_profile(manifest):
    grid = BucketGrid.of(manifest, EngineConfig(max_batch_size=16, max_batch_tokens=2048))
    assert all(b.rows <= 16 and b.tokens <= 384 for b in grid.buckets())


def test_the_plain_graph_has_standard_operators_only(gpu_model):
    import onnx

    def domains(name):
        return {node.domain for node in onnx.load(str(gpu_model / name)).graph.node}

    assert domains(PLAIN_ONNX_FILE) == {""}
    assert "com.microsoft" in domains(ONNX_FILE)


def test_the_benchmark_without_a_gpu_says_what_is_missing_and_ends_with_one_clear_line():
    ran = run_python("-m", "benchmarks.gpu", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert ran.returncode == 2
    assert "step 1 of " in ran.stdout
    assert "the server would not start" in ran.stdout.splitlines()[-1]
    assert re.fullmatch(r"benchmarks\.gpu: CUDA sees no GPU here.*\n", ran.stderr)


GPU = EngineConfig(device="cuda")
GPU_INT8 = EngineConfig(device="cuda", precision="int8")
HAS_PROVIDER = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@needs_no_gpu
@pytest.mark.parametrize(
    ("kind", "words"),
    [("onnx", "cannot start its CUDA" if HAS_PROVIDER else "no CUDAExecutionProvider"),
     ("tensorrt", "cannot start its Tensorrt" if HAS_PROVIDER else "no TensorrtExecutionProvider"),
     ("pytorch", "PyTorch")],
)  # fmt: skip
def test_without_a_gpu_there_is_one_clear_line_and_no_fall_back(gpu_model, manifest, kind, words):
    with pytest.raises(DeviceError, match=words) as caught:
        make_engine(kind, gpu_model, manifest, GPU)
    assert "\n" not in str(caught.value)


def test_without_the_plain_graph_the_command_that_makes_it_is_named(
    gpu_model, manifest, monkeypatch
):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_gpu.TENSORRT])
    files = {name: digest for name, digest in manifest.files.items() if name != PLAIN_ONNX_FILE}
    bare = msgspec.structs.replace(manifest, files=files)
    with pytest.raises(SetupError, match=r"prepare_model\.py --model builtin --tensorrt"):
        make_engine("tensorrt", gpu_model, bare, GPU)


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [("tensorrt", EngineConfig(), "needs a GPU"),
     ("onnx", GPU_INT8, "int8 is for the CPU"),
     ("onnx", EngineConfig(precision="bf16"), "the onnx engine has no bf16"),
     ("tensorrt", GPU_INT8, "the tensorrt engine has no int8")],
)  # fmt: skip
def test_an_engine_refuses_a_device_or_precision_it_lacks(gpu_model, manifest, kind, config, words):
    with pytest.raises(SetupError, match=words):
        make_engine(kind, gpu_model, manifest, config)


@pytest.mark.parametrize(("device", "lines"), [("cpu", "E:onnxruntime:"), ("cuda", "")])
def test_a_gpus_session_raises_its_errors_and_writes_no_lines(gpu_model, device, lines, capfd):
    config = msgspec.structs.replace(SMALL, device=device)
    session = open_session(gpu_model / ONNX_FILE, config, [("CPUExecutionProvider", {})])
    no_token = np.full((1, 4), 10**6)
    with pytest.raises(Exception, match="input index out of range"):
        session.run(None, {item.name: no_token for item in session.get_inputs()})
    written = capfd.readouterr().err
    assert lines in written if lines else not written


def test_onnx_runtimes_warnings_are_off_and_its_errors_on_before_a_gpus_session(
    gpu_model, monkeypatch
):
    severities = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [onnx_gpu.CUDA])
    monkeypatch.setattr(onnxruntime, "set_default_logger_severity", severities.append)
    with pytest.raises(SetupError), pytest.warns(UserWarning, match="not in available provider"):
        onnx_gpu.open_gpu_session(gpu_model / ONNX_FILE, GPU, [(onnx_gpu.CUDA, {})])
    assert severities == [3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "graphs"),
     ({"gpu_memory_bytes": 5, "cuda_graphs": False}, "a GPU of 5 bytes, no graphs"),
     ({"cuda_graphs": False, "bound_buffers": False}, "no graphs, no bound buffers")],
)  # fmt: skip
def test_the_runtime_has_the_gpus_memory_if_it_is_known(gpu_model, changes, words):
    session = open_session(gpu_model / ONNX_FILE, SMALL, [("CPUExecutionProvider", {})])
    found = onnx_gpu.describe(session, msgspec.structs.replace(SMALL, **changes))
    assert found == f"onnxruntime {onnxruntime.__version__}, CPUExecutionProvider, {words}"


class SilentSession:
    """A session whose bound runs do nothing once it is silent, and report no error."""

    def __init__(self, session):
        self._session, self.is_silent = session, False

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, *given):
        if not self.is_silent:
            self._session.run_with_iobinding(*given)


def test_a_bound_run_that_writes_nothing_is_a_fault(gpu_model, manifest):
    config = msgspec.structs.replace(SMALL, cuda_graphs=False)
    path = gpu_model / ONNX_FILE
    session = SilentSession(open_session(path, config, [("CPUExecutionProvider", {})]))
    engine = onnx_gpu.bucketed_engine(session, manifest, config, device="cpu")
    (batch, *_) = batches()
    engine.logits(*batch)
    session.is_silent = True
    with pytest.raises(EngineFaultError, match="without results"):
        engine.logits(*batch)


class StaleSession:
    """A session whose bound runs leave the results of the first, as a graph that is not replayed.

    It stands in for a CUDA program; its plain runs are right.
    """

    def __init__(self, session):
        self._session, self._first = session, {}

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding, options):
        self._session.run_with_iobinding(binding, options)
        outputs = binding.get_outputs()
        first = self._first.setdefault(id(binding), [one.numpy().copy() for one in outputs])
        for output, values in zip(outputs, first, strict=True):
            output.update_inplace(values)


def test_a_program_that_returns_an_earlier_batch_goes_down_to_plain_runs(
    gpu_model, manifest, monkeypatch, caplog
):
    made = []

    def make(engine_type, model_dir, manifest, config):
        session = open_session(model_dir / ONNX_FILE, config, [("CPUExecutionProvider", {})])
        made.append((config.cuda_graphs, config.bound_buffers))
        return onnx_gpu.bucketed_engine(StaleSession(session), manifest, config, device="cpu")

    monkeypatch.setattr(loading, "make_engine", make)
    options = InstanceOptions(
        inference_engine_type="onnx", precision="fp32", max_batch_size=2, max_batch_tokens=160,
        cost_table="off",
    )  # fmt: skip
    setup = Setup(str(gpu_model), options, DeviceAssignment("cuda:0"))
    loaded = load_reader(setup)
    assert loaded.self_test
    loaded.self_test.check_next()
    assert made == [(True, True), (False, True), (False, False)]
    words = [record.getMessage() for record in caplog.records if "is left out" in record.msg]
    assert len(words) == 2
    assert "onnx fp32 with CUDA graphs is left out for no CUDA graphs: onnx fp32 comp" in words[0]
    made.clear()
    load_reader(setup)
    assert made == [(False, False)]


@pytest.mark.parametrize("is_right", [True, False])
def test_a_graph_is_compared_with_the_model_on_other_inputs_than_it_was_recorded_with(is_right):
    inputs = torch.ones((2, 3, 4), dtype=torch.int64)

    def scoring(staged):
        return staged[:1].float() * 2, torch.zeros(3, 4)

    recorded = scoring(inputs.clone())
    replay = (lambda: scoring(inputs)) if is_right else (lambda: recorded)
    if is_right:
        pytorch.check_replay(replay, scoring, inputs)
    else:
        with pytest.raises(RuntimeError, match=r"graph of \(3, 4\) differs from the model by 2"):
            pytorch.check_replay(replay, scoring, inputs)
    assert torch.all(inputs == 1)


@pytest.mark.parametrize("narrow", [0, 1], ids=["logits", "best spans"])
def test_an_output_that_would_be_broadcast_to_the_buckets_shape_is_a_fault(narrow):
    def scoring(staged):
        _, rows, tokens = staged.shape
        outputs = [torch.ones(2, rows, tokens), torch.ones(rows, SPAN_VALUES)]
        outputs[narrow] = outputs[narrow][..., :1]
        return tuple(outputs)

    program = pytorch.TorchProgram(
        scoring, Bucket(2, 8), 3, torch.device("cpu"), pytorch.run_eagerly
    )
    with pytest.raises(EngineFaultError, match=r"where .* was asked for"):
        program.run()
