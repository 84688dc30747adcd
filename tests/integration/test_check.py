"""`server.py --check`: in this process, or as a user runs it in another environment."""

import json
import os
import random
import re
from pathlib import Path

import msgspec
import pytest

from harness.collections import damage, index, write_documents
from harness.models import make_manifest
from harness.process import reserve_port
from harness.server import INSTANT, ONE_INSTANCE, ROOT, running_server
from qa_service.engine_catalogue import ONNX_FILE, ONNX_INT8_FILE
from qa_service.instance.model_folder.manifest import load_manifest, save_manifest
from qa_service.server.main import main
from tests.programs import fail_to_start, run_here, run_python, token_flags
from tests.support import needs_torch

ONLY_INSTANT = ("--inference_engine_type", "instant", "--precision", "fp32")
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
SECRET = "a-token-that-nobody-may-see"


def check(model, *flags, code=0, **options):
    given = ("--check", "--port", "0", "--model", model, *flags)
    if options:
        done = run_python("server.py", *given, **options)
    else:
        done = run_here(main, *map(str, given))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


def found(text, level):
    return [line[11:] for line in text.splitlines() if line[2:].startswith(level)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of no files, for all checks but the model's."""
    folder = tmp_path_factory.mktemp("model")
    save_manifest(folder, make_manifest("m"))
    return folder


@pytest.mark.slow
def test_a_damaged_file_is_an_error_and_a_model_without_known_answers_too(own_model):
    path = own_model / "known_answers.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert "is not what its manifest says" in found(check(own_model, code=2), "error")[0]
    manifest = json.loads((own_model / "manifest.json").read_text())
    del manifest["files"]["known_answers.json"]
    manifest["files"].pop(ONNX_INT8_FILE)
    (own_model / "manifest.json").write_text(json.dumps(manifest))
    assert "there is no known_answers.json in" in found(check(own_model, code=2), "error")[0]


def test_check_json_has_the_verdict_parts_and_remedies(folder, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    flags = ("--collections_dir", tmp_path, "--log_format", "json")
    report = json.loads(check(folder, *ONLY_INSTANT, *flags, code=1))
    assert (report["exit_code"], report["verdict"]) == (1, "the server would start: 2 warnings")
    assert list(report["parts"]) == [
        "program", "configuration", "machine", "GPUs", "models", "collections", "clients",
    ]  # fmt: skip
    warnings = [one for one in report["parts"]["collections"] if one["level"] == "warning"]
    assert warnings[-1]["text"].startswith("damaged: ")
    assert warnings[-1]["remedy"] == "qa-index makes it again"


def test_certificates_have_dates_and_tokens_stay_secret(folder, certificates, tmp_path):
    tokens = token_flags(tmp_path, SECRET, f"{SECRET}-2 2020-01-01T00:00:00Z")
    text = check(folder, *ONLY_INSTANT, *certificates.server_flags, *tokens, code=1)
    assert re.search(r"server\.pem is valid from \d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d", text)
    assert "2 tokens in " in text
    assert "of which 1 have expired" in text
    assert SECRET not in text


def test_a_key_of_another_certificate_is_an_error_and_the_other_parts_are_looked_at(
    folder, certificates
):
    flags = ("--tls_cert", certificates.cert, "--tls_key", certificates.client_key)
    text = check(folder, *ONLY_INSTANT, *flags, code=2)
    assert "the key is not that of the certificate" in text
    assert "fit into the limit of descriptors" in text


def test_check_names_an_unprepared_model_and_does_not_prepare_it(tmp_path):
    flags = ("--check", "--port", "0", "--model", "builtin")
    models = tmp_path / "saved_models"
    done = run_python(ROOT / "server.py", *flags, "--saved_models", models, cwd=tmp_path)
    assert done.returncode == 1
    assert f"builtin is not prepared; a start prepares it first, in {models}/b" in done.stdout
    done = run_python(ROOT / "server.py", *flags, "--no-prepare", cwd=tmp_path)
    assert done.returncode == 2
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_no_collection_is_a_warning(folder, tmp_path):
    config = tmp_path / "server.toml"
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    config.write_text(f'[collections.docs]\npath = "{tmp_path / "damaged"}"\n')
    text = check(folder, *ONLY_INSTANT, "--config", config, code=1)
    assert [line for line in found(text, "warning") if line.startswith("docs: ")]


def test_a_folder_without_a_collection_is_a_warning(folder, tmp_path):
    empty = tmp_path / "collections"
    empty.mkdir()
    text = check(folder, *ONLY_INSTANT, "--collections_dir", empty, code=1)
    assert found(text, "warning")[-1:] == [
        f"there is no collection in {empty}: qa-index makes them"
    ]


def test_a_damaged_index_is_a_warning(folder, tmp_path):
    collection = index(write_documents(tmp_path / "documents"), tmp_path / "collections" / "docs")
    flags = (*ONLY_INSTANT, "--collections_dir", collection.parent)
    assert "docs: READY" in found(check(folder, *flags), "ok")
    [store] = collection.glob("*/*.store")
    damage(collection, random.Random(1), (".store",))
    faults = [f"docs: {store} is damaged"]
    text = check(folder, *flags, code=1)
    assert [line for line in found(text, "warning") if line.startswith("docs: ")] == faults


REFUSED = (
    {
        "hooks' module": ("--hooks", "nosuch:Class"),
        "socket's folder": ("--unix_socket", "/nonexistent/socket"),
        "memory": ("--max_memory_bytes", "1000"),
        "no certificate's key": ("--tls_cert", __file__),
        "tokens": ("--auth_token_file", "/nonexistent"),
    },
    {
        "hooks of another kind": ("--hooks", "json:JSONDecoder"),
        "socket is a file": ("--unix_socket", __file__),
        "clients' authority alone": ("--tls_client_ca", __file__),
        "both ports": ("--port", "{port}", "--grpc_port", "{port}"),
    },
    {
        "no model": ("--model", "/nonexistent/model"),
        "no certificate": ("--tls_cert", __file__, "--tls_key", __file__),
    },
    {"instances": ("--num_inference_sessions", "0")},
    {"no cost table": ("--model", "{of_onnx}", *ONE_INSTANCE, "--cost_table", __file__)},
)
"""What is refused, a check's at a time: a start stops at the first."""


@pytest.fixture(scope="module")
def of_onnx(quick_model, tmp_path_factory):
    """The built-in model with its plain ONNX file alone, so that few engines are checked."""
    folder, manifest = tmp_path_factory.mktemp("of_onnx"), load_manifest(quick_model)
    of_others = {name for name in manifest.files if ".onnx" in name or "safetensors" in name}
    files = {n: h for n, h in manifest.files.items() if n not in of_others - {ONNX_FILE}}
    for name in files:
        (folder / name).symlink_to(quick_model / name)
    save_manifest(folder, msgspec.structs.replace(manifest, files=files))
    return folder


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: next(iter(refused)))
def test_what_a_start_refuses_check_refuses_in_the_same_words(folder, of_onnx, refused):
    port = reserve_port()
    refused = {
        name: [flag.format(port=port, of_onnx=of_onnx) for flag in flags]
        for name, flags in refused.items()
    }
    flags = [flag for flags in refused.values() for flag in flags]
    errors = found(check(folder, *INSTANT, *flags, code=2), "error")
    for name, flags in refused.items():
        ended = fail_to_start("--model", folder, *INSTANT, *flags)
        words = ended.stderr.splitlines()[-1].removeprefix("server.py: ")
        assert words in errors, name


@pytest.mark.parametrize(
    ("package", "flags"),
    [
        ("grpc_health", ("--grpc_port", "1")),
        ("opentelemetry", ("--otlp_endpoint", "http://localhost:4318")),
        ("ray", ("--ray_instances", "1", "--num_inference_sessions", "1")),
    ],
)
def test_a_package_that_is_missing_is_missed_by_both(folder, tmp_path, package, flags):
    (tmp_path / "sitecustomize.py").write_text(HIDES.format(package=package))
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = fail_to_start("--model", folder, *ONLY_INSTANT, *flags, env=env)
    words = ended.stderr.splitlines()[-1].removeprefix("server.py: ")
    assert "pip install" in words
    assert words in found(check(folder, *ONLY_INSTANT, *flags, code=2, env=env), "error")


HIDES = """
import importlib.machinery
import sys

class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] == "{package}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "has_pytorch", [False, pytest.param(True, marks=[pytest.mark.long, needs_torch])]
)
def test_every_engine_that_is_installed_passes_and_nothing_is_changed(
    own_model, tmp_path, has_pytorch
):
    if not has_pytorch:
        manifest = load_manifest(own_model)
        manifest.files.pop("model.safetensors")
        save_manifest(own_model, manifest)
    hooks, temporary = tmp_path / "hooks", tmp_path / "tmp"
    for folder in (hooks, temporary):
        folder.mkdir()
    (hooks / "my_hooks.py").write_text(
        "from qa_service.instance.hooks import Hooks\nclass MyHooks(Hooks): pass\n"
    )
    for number in range(6):  # more than are kept, were any used
        (own_model / "costs" / "openvino" / f"key{number}").mkdir(parents=True)
    env = {**NO_GPU, "TMPDIR": str(temporary), "PYTHONPATH": f"{hooks}:{ROOT}"}
    collections = index(write_documents(tmp_path / "documents"), tmp_path / "c" / "docs").parent
    before = files_below(own_model, tmp_path)
    flags = ["--hooks", "my_hooks:MyHooks", "--grpc_port", "1", "--unix_socket", tmp_path / "s"]
    flags += ["--collections_dir", collections]
    text = check(own_model, *flags, code=2 if os.geteuid() else 0, env=env)
    passed = [line for line in found(text, "ok") if "gives its known answers in" in line]
    engines = {" ".join(line.split()[2:4]) for line in passed}
    assert {"onnx fp32", "openvino int8"} <= engines
    assert ("pytorch fp32" in engines) == has_pytorch
    assert all(re.search(r"\d+ ms, with differences up to [\d.e-]+$", line) for line in passed)
    assert "docs: READY" in text
    assert files_below(own_model, tmp_path) == before


def files_below(*folders):
    """The time of each file and folder: a folder's changes with a file that comes and goes, too."""
    paths = [path for folder in folders for path in (folder, *Path(folder).rglob("*"))]
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_fifo_in_a_models_place_is_an_error(own_model, name):
    (own_model / name).unlink()
    os.mkfifo(own_model / name)
    assert "it is not a file" in found(check(own_model, *ONLY_INSTANT, code=2), "error")[0]


@pytest.mark.parametrize(
    "flag", ["--auth_token_file", "--tls_cert", "--tls_key", "--tls_client_ca"]
)
def test_a_fifo_in_place_of_a_token_or_a_certificate_is_an_error(
    folder, certificates, tmp_path, flag
):
    os.mkfifo(tmp_path / "fifo")
    flags = (*certificates.server_flags, flag, tmp_path / "fifo")
    text = check(folder, *ONLY_INSTANT, *flags, code=2)
    assert f"cannot read {flag} {tmp_path / 'fifo'}: it is not a file" in found(text, "error")


def test_beside_its_own_server_the_port_is_a_warning_that_names_it(builtin_model, tmp_path):
    flags = (*INSTANT, "--unix_socket", str(tmp_path / "socket"))
    with running_server(builtin_model, *flags) as running:
        text = check(builtin_model, *flags, "--port", running.port, code=1)
        pid = running.process.pid
    warnings = found(text, "warning")
    (program,) = {line.partition(f": process {pid} ")[2] for line in warnings}
    assert re.fullmatch(r"\(\S*python\S* \S*server.py\) listens there", program)
    starts = [f"cannot listen on localhost:{running.port}: ", f"cannot listen on {flags[-1]}: "]
    assert [line.startswith(start) for line, start in zip(warnings, starts, strict=True)]


@pytest.mark.parametrize(
    "flags",
    [
        ("--otlp_endpoint", "nohttp://user:hunter2@host"),
        ("--otlp_endpoint=nohttp://user:hunter2@host",),
        ("http://user:hunter2@host",),
        ("--otlp_endpont", "http://user:hunter2@host"),
    ],
)
def test_a_usage_error_keeps_a_urls_password(folder, flags):
    ended = fail_to_start("--model", folder, *flags)
    assert "error: " in ended.stderr
    assert "hunter2" not in ended.stderr
