"""The parts of `--check` that a test can hand another machine."""

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from qa_service.errors import SetupError
from qa_service.instance.devices import assign_devices
from qa_service.instance.gpus import Gpu, Gpus
from qa_service.instance.instance_options import InstanceOptions
from qa_service.net.listen_options import TlsOptions
from qa_service.server.check import front
from qa_service.server.check import machine as checked
from qa_service.server.check.report import CheckReport, Level, error, ok, warning
from qa_service.server.config import OTHER_DESCRIPTORS, ServerConfig
from qa_service.server.models.model_options import ModelOptions
from tests.support import Lazy, present

NO_LIBRARY = Gpus((), "libcuda.so.1: cannot open shared object file")


def report(*findings):
    lines = []
    made = CheckReport(lines.append)
    made.add("part", findings)
    return made, lines


@pytest.mark.parametrize(
    ("findings", "code", "verdict"),
    [
        ([], 0, "the server would start"),
        ([ok("a")], 0, "the server would start"),
        ([ok("a"), warning("b"), warning("c")], 1, "the server would start: 2 warnings"),
        ([warning("b"), error("c")], 2, "the server would not start: 1 error, 1 warning"),
    ],
)
def test_the_gravest_finding_is_the_exit_code(findings, code, verdict):
    made, _ = report(*findings)
    assert (made.exit_code, made.verdict) == (code, verdict)


def test_each_finding_is_a_line_with_its_remedy_below():
    _, lines = report(ok("it is well"), error("it is not", "mend it"))
    assert lines == ["part", "  ok       it is well", "  error    it is not", " " * 11 + "mend it"]


@pytest.mark.parametrize("raised", [SetupError("no such model"), ZeroDivisionError("by zero")])
def test_a_part_that_fails_is_an_error_and_not_the_end(raised):
    def findings():
        yield ok("so far")
        logging.getLogger("x").warning("it is late")
        raise raised

    made = CheckReport(lambda _: None)
    made.add("first", findings())
    made.add("second", [ok("fine")])
    levels = [finding.level for finding in made.parts["first"]]
    assert sorted(levels) == [Level.ERROR, Level.OK, Level.WARNING]
    assert str(raised) in "".join(finding.text for finding in made.parts["first"])
    assert made.parts["second"] == [ok("fine")]


class Machine:
    """A machine's files, as far as GPUs show there."""

    def __init__(self, root):
        self.root = root

    def add_gpu(self, vendor="0x10de", kind="0x030200"):
        device = self.root / "sys/bus/pci/devices/0000:00:1e.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")

    def add_driver(self):
        path = self.root / "proc/driver/nvidia/version"
        path.parent.mkdir(parents=True)
        path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86\nGCC\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def look(monkeypatch, machine):
    """Looks at the machine, where CUDA and packages say what the test has them say."""

    def look(seen, *, onnx="12.8", torch="12.8", **options):
        monkeypatch.setattr(checked, "find_gpus", lambda: seen)
        wanted = [
            (f"onnxruntime wants CUDA {onnx}", onnx),
            (f"torch wants CUDA {torch}", torch),
        ]
        monkeypatch.setattr(checked, "_wanted", lambda: wanted)
        config = ServerConfig.of(**{"devices": "cuda:0", **options})
        return list(checked.check_gpus(config, machine.root))

    return look


def errors(findings):
    return [finding.text for finding in findings if finding.level is Level.ERROR]


def test_without_a_gpu_the_steps_go_from_the_machine_to_the_package(look):
    found = errors(look(NO_LIBRARY, onnx="", torch=""))
    assert [text.partition(": ")[2].split()[0] for text in found] == [
        "no", "NVIDIA's", "the", "onnxruntime", "torch",
    ]  # fmt: skip
    assert found[0].startswith("step 1 of 5: ")


def test_in_a_container_without_the_toolkit_the_finding_names_it(look, machine):
    machine.add_gpu()
    machine.add_driver()
    (found,) = [one for one in look(NO_LIBRARY) if one.level is Level.ERROR]
    assert "libcuda.so.1 is not found here" in found.text
    assert "docker run --gpus all" in found.remedy


def test_a_hidden_gpus_finding_names_the_variable(look, machine):
    machine.add_gpu()
    machine.add_driver()
    (found,) = [one for one in look(Gpus((), "no device")) if one.level is Level.ERROR]
    assert "CUDA_VISIBLE_DEVICES" in found.remedy


def test_a_visible_gpu_and_packages_with_cuda_give_no_error(look, machine):
    machine.add_driver()
    found = look(Gpus((Gpu(0, "0", 80 << 30),)))
    assert errors(found) == []
    texts = [finding.text for finding in found]
    assert "cuda:0 has 80.0 GiB of memory" in texts
    assert "onnxruntime wants CUDA 12.8" in texts


@pytest.mark.parametrize(
    ("text", "words", "cuda"),
    [
        (None, "onnxruntime is not installed", ""),
        ("", "onnxruntime is built without CUDA", ""),
        ("cuda_version = '12.8'\n", "onnxruntime wants CUDA 12.8", "12.8"),
        (
            'cuda_version: str = "12.8"\ncudnn_version = "9"\n',
            "onnxruntime wants CUDA 12.8, cuDNN 9",
            "12.8",
        ),
    ],
)
def test_what_a_package_wants_is_read_of_its_files(monkeypatch, tmp_path, text, words, cuda):
    (tmp_path / "info.py").write_text(text or "")
    spec = None if text is None else SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    found = checked._wanted_by("onnxruntime", "info.py", "cuda_version", "cudnn_version")
    assert found == (words, cuda)


@pytest.mark.parametrize(
    ("engine", "onnx", "torch", "number"),
    [("auto", "", "12", 0), ("auto", "", "", 2), ("pytorch", "12", "", 1), ("onnx", "", "12", 1)],
)
def test_only_packages_that_the_engine_needs_are_reported_missing(
    look, engine, onnx, torch, number
):
    seen = Gpus((Gpu(0, "0", 1 << 30),))
    found = look(seen, onnx=onnx, torch=torch, inference_engine_type=engine)
    assert len(errors(found)) == number


def test_with_auto_no_gpu_is_no_fault_unless_the_machine_has_one(look, machine):
    (found,) = look(NO_LIBRARY, devices="auto")
    assert found.level is Level.OK
    machine.add_gpu()
    assert [one.level for one in look(NO_LIBRARY, devices="auto")] == [Level.OK, Level.WARNING]


def test_a_display_adapter_of_another_maker_is_no_gpu(look, machine):
    machine.add_gpu(vendor="0x8086")
    assert "no NVIDIA GPU is on this machine's PCI bus" in errors(look(NO_LIBRARY))[0]


def test_on_the_cpu_gpus_are_not_checked(look):
    (found,) = look(Gpus((), "it would fail"), devices="cpu")
    assert found == ok("instances run on the CPU, as --devices says")


# What the machine is too small for.


@pytest.fixture(autouse=True)
def _four_cpus(monkeypatch):
    monkeypatch.setattr(checked, "num_cpus", lambda: 4)


def model(sessions, threads=0, devices="cpu"):
    return ModelOptions(
        path=Path("a"), num_inference_sessions=sessions, intra_op_num_threads=threads,
        devices=devices,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("models", "threads"),
    [
        ([model(4)], 0),
        ([model(2, 2)], 0),
        ([model(5)], 5),
        ([model(2, 3)], 6),
        ([model(2), model(3)], 5),
        ([model(5, devices="cuda:99")], 0),
    ],
)
def test_the_threads_of_all_models_count(models, threads):
    found = checked.find_cpu_shortage(models)
    assert (found[0] if found else "") == (
        f"{threads} threads of instances share 4 CPUs" if threads else ""
    )


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    find = partial(assign_devices, find=lambda: NO_LIBRARY)
    monkeypatch.setattr(checked, "devices_of", find)
    found = checked.find_cpu_shortage([InstanceOptions(num_inference_sessions=5)])
    assert found is not None


@pytest.mark.parametrize("in_models", [False, True])
def test_check_warns_of_what_the_start_warns_of(in_models):
    config = ServerConfig.of(num_inference_sessions=1 if in_models else 5, devices="cpu")
    if in_models:
        config = ServerConfig(instances=config.instances, models={"a": model(2), "b": model(3)})
    texts = [one.text for one in checked.check_machine(config) if one.level is Level.WARNING]
    assert "5 threads of instances share 4 CPUs" in texts


@pytest.mark.parametrize(("limit", "fitting"), [(300, 300 - OTHER_DESCRIPTORS), (100, 50)])
def test_a_low_limit_of_descriptors_says_how_many_connections_fit(monkeypatch, limit, fitting):
    monkeypatch.setattr(checked, "allow_descriptors", lambda needed: limit)
    said = present(checked.raise_descriptor_limit(ServerConfig.of(max_connections=1000)))[0]
    assert f"at most {fitting} of --max_connections 1000 fit into the limit of {limit}" in said


def test_a_limit_of_descriptors_that_is_enough_is_not_said(monkeypatch):
    monkeypatch.setattr(checked, "allow_descriptors", lambda needed: needed)
    assert checked.raise_descriptor_limit(ServerConfig()) is None


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [(-1, Level.WARNING, "and not now: clients refuse it"), (3, Level.WARNING, "it ends soon"),
     (400, Level.OK, "is valid from ")],
)  # fmt: skip
def test_a_certificate_that_has_ended_or_soon_does_is_a_warning(tmp_path, days, level, words):
    ends = datetime.now(UTC) + timedelta(days=days)
    began = ends - timedelta(days=500)
    issued = Lazy("trustme").CA().issue_cert("localhost", not_before=began, not_after=ends)
    path = tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    [finding] = front.check_certificates(ServerConfig(tls=TlsOptions(tls_cert=path, tls_key=path)))
    assert (finding.level, words in finding.text) == (level, True)
