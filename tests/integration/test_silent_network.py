"""Nothing leaves the machine: what programs ask DNS for, and what they write into HOME."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.frames import ASK, TEXT
from harness.process import GIVE_UP_S
from qa_service.retrieval.build import IndexArgs, Reporter, build
from qa_service.retrieval.index_main import main
from tests.programs import run

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or run("unshare", "--net", "--mount", "true").returncode != 0,
    reason="a network namespace needs root",
)

SERVED = """
set -e
python=$1; shift
exec 3< <(exec "$python" server.py "$@")
server=$!
while read -r line <&3; do
    case $line in "QA server ready"*) break ;; esac
done
"$python" client.py --question "$QUESTION" --text "$TEXT"
if [ -d "$FOLDER/collections" ]; then
    "$python" client.py --question "$QUESTION" --collection letters
    "$python" stress_test.py --num_total_clients 2 --num_request_per_client 2
fi
"$python" jobs.py run "$FOLDER/questions.jsonl" --output "$FOLDER/answers.jsonl"
kill $server
cat <&3
"""
"""A server on the port that programs take by default, and each kind of client, in turn: all of
them only where there is a collection."""


def run_silently(folder: Path, *commands: list[str], files: Sequence[str] = ()) -> None:
    """Runs commands, and expects neither a query nor a file, but for these."""
    done = run(
        *("unshare", "--net", "--mount"),
        *(sys.executable, "-m", "tests.integration.silent_network", folder),
        input=json.dumps(commands),
        timeout=4 * GIVE_UP_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [code for code, _ in found["ends"]] == [0] * len(commands), found["ends"]
    assert (found["names"], found["files"]) == ([], [*files])


def test_the_test_listener_records_names_and_files(tmp_path):
    ask = "import socket\ntry: socket.getaddrinfo('qa.example.org', 80)\nexcept OSError: pass"
    with pytest.raises(AssertionError) as caught:
        run_silently(tmp_path, [sys.executable, "-c", ask], ["sh", "-c", 'touch "$HOME/file"'])
    assert "qa.example.org" in str(caught.value)
    assert "'file'" in str(caught.value)


def served(folder: Path, script: str, *flags: str) -> list[str]:
    """The command that runs a server with these flags, and asks it as the script does."""
    (folder / "questions.jsonl").write_text(json.dumps({"id": 1, **ASK}) + "\n")
    words = {"FOLDER": str(folder), "QUESTION": ASK["question"], "TEXT": TEXT}
    settings = [f"{name}={value}" for name, value in words.items()]
    flags = (*flags, "--precision", "fp32", "--cost_table", "off", "--num_inference_sessions", "1")
    return ["env", *settings, "bash", "-c", script, "served", sys.executable, *flags]


@pytest.mark.parametrize(
    "engine", ["openvino", "onnx", pytest.param("pytorch", marks=pytest.mark.long)]
)
def test_serving_and_asking_send_nothing_to_the_network(builtin_model, tmp_path, engine):
    flags: tuple[str, ...] = ("--inference_engine_type", engine)
    if engine == "onnx":
        (tmp_path / "letter.txt").write_text(TEXT)
        output = tmp_path / "collections" / "letters"
        build(IndexArgs(sources=(tmp_path / "letter.txt",), output=output), Reporter())
        flags = (*flags, "--collections_dir", str(output.parent))
    run_silently(tmp_path, served(tmp_path, SERVED, "--model", str(builtin_model), *flags))
    assert (tmp_path / "answers.jsonl").exists()


def test_indexing_sends_nothing_to_the_network(tmp_path):
    (tmp_path / "letter.html").write_text(f"<h1>A letter</h1><p>{TEXT}")
    index = f"from {main.__module__} import main; raise SystemExit(main())"
    words = [str(tmp_path / "letter.html"), "--output", str(tmp_path / "letters")]
    run_silently(tmp_path, [sys.executable, "-c", index, *words])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["builtin", pytest.param("small", marks=pytest.mark.long)])
def test_preparing_sends_nothing_to_the_network(tmp_path, model):
    """The built-in one, with the encoder, by NumPy; another by the libraries of models."""
    flags = ["--model", model, "--precision", "fp32"]
    if model == "small":
        from tests.integration.architectures import make_tiny_model

        make_tiny_model("roberta", tmp_path / model)
        flags = ["--model", str(tmp_path / model), "--precision", "int8", "--no-encoder"]
    words = ["prepare_model.py", *flags, "--output_dir", str(tmp_path / "made")]
    run_silently(tmp_path, [sys.executable, *words])


RAY_SETTINGS = """
export RAY_USAGE_STATS_ENABLED=0 RAY_USAGE_STATS_REPORT_URL=http://127.0.0.1:9/
echo '{}' > ~/ray_bootstrap_config.yaml
"$0" start --head --node-ip-address 127.0.0.1 --num-cpus 1 --temp-dir "$1"
"""
"""As docs/SECURITY.md has them, for a head in this network."""


@pytest.mark.long
def test_an_instance_on_ray_is_silent(builtin_model, tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    ray = str(Path(sys.executable).parent / "ray")
    flags = ("--model", str(builtin_model), "--inference_engine_type", "onnx")
    on_ray = ("--num_inference_sessions", "0", "--ray_instances", "1")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # Ray's sockets have short paths
        run_silently(
            tmp_path,
            ["sh", "-ec", RAY_SETTINGS, ray, short],
            served(tmp_path, SERVED, *flags, *on_ray),
            [ray, "stop"],
            files=["ray_bootstrap_config.yaml"],
        )
