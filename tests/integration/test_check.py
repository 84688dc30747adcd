"""`server.py --check`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import socket

import pytest

from harness.models import make_manifest
from harness.server import ROOT
from qa_service.engine_catalogue import ONNX_INT8_FILE
from qa_service.instance.model_folder.manifest import save_manifest
from tests.programs import run_python, token_flags
from tests.support import present

ONLY_INSTANT = ("--inference_engine_type", "instant", "--precision", "fp32")
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
SECRET = "a-token-that-nobody-may-see"


def check(model, *flags, code=0, **options):
    done = run_python("server.py", "--check", "--port", "0", "--model", model, *flags, **options)
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
def test_the_built_in_model_passes_on_every_engine_that_is_installed(builtin_model):
    text = check(builtin_model)
    passed = [line for line in found(text, "ok") if "gives its known answers in" in line]
    assert {"onnx fp32", "openvino int8"} <= {" ".join(line.split()[2:4]) for line in passed}
    assert all(re.search(r"\d+ ms, with differences up to [\d.e-]+$", line) for line in passed)
    assert text.splitlines()[-1] == "the server would start"


@pytest.mark.slow
def test_a_damaged_file_is_an_error_and_one_without_known_answers_a_warning(own_model):
    path = own_model / "known_answers.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert "is not what its manifest says" in found(check(own_model, code=2), "error")[0]
    manifest = json.loads((own_model / "manifest.json").read_text())
    del manifest["files"]["known_answers.json"]
    manifest["files"].pop(ONNX_INT8_FILE)
    (own_model / "manifest.json").write_text(json.dumps(manifest))
    text = check(own_model, *ONLY_INSTANT, code=1)
    assert "has no known answers" in found(text, "warning")[0]


def test_a_gpu_that_is_not_there_is_explained_step_by_step(folder):
    text = check(folder, *ONLY_INSTANT, "--devices", "cuda:0", code=2, env=NO_GPU)
    steps = [line for line in found(text, "error") if line.startswith("step ")]
    numbers = [present(re.match(r"step (\d+) of (\d+): ", line)).groups() for line in steps]
    assert numbers == [(str(n), str(len(steps))) for n in range(1, len(steps) + 1)]
    assert "NVIDIA" in steps[0]
    assert "docker run --gpus all" in text


def test_check_json_has_the_verdict_parts_and_remedies(folder):
    report = json.loads(check(folder, *ONLY_INSTANT, "--json", code=1))
    assert (report["exit_code"], report["verdict"]) == (1, "the server would start: 1 warning")
    assert list(report["parts"]) == [
        "program", "configuration", "machine", "GPUs", "models", "collections", "clients",
    ]  # fmt: skip
    (warning,) = [one for one in report["parts"]["models"] if one["level"] == "warning"]
    assert "known answers" in warning["text"]
    assert warning["remedy"]


def test_a_port_that_is_taken_is_an_error_that_names_it(folder):
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        text = check(folder, *ONLY_INSTANT, "--port", port, code=2)
    assert f"cannot listen on localhost:{port}" in found(text, "error")[0]


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
    done = run_python(ROOT / "server.py", *flags, cwd=tmp_path)
    assert done.returncode == 1
    assert "builtin is not prepared; a start prepares it first" in done.stdout
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
    assert f"there is no collection in {empty}" in found(text, "warning")
