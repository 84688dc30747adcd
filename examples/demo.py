"""The whole path in one run: start the server, ask three questions over TCP, stop it.

Then a collection is made of the documents in qa_service/data/handbook/, and a question is asked of
that.
Exits with 0 only if every answer is the expected one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qa_service.client import Answer, QaClient  # noqa: E402
from qa_service.data import HANDBOOK_DIR  # noqa: E402

TEXT = (
    "According to PolitiFact the top 400 richest Americans "
    '"have more wealth than half of all Americans combined." '
    "According to the New York Times on July 22, 2014, the "
    '"richest 1 percent in the United States now own more wealth than the bottom 90 percent". '
    "Inherited wealth may help explain why many Americans who have become rich may have had a "
    '"substantial head start". In September 2012, according to the Institute for Policy Studies, '
    '"over 60 percent" of the Forbes richest 400 Americans "grew up in substantial privilege".'
)
QUESTIONS = {
    "What publication printed that the wealthiest 1% have more money than those in the "
    "bottom 90%?": "New York Times",
    "When did the New York Times print it?": "July 22, 2014",
    "How many of the Forbes richest 400 Americans grew up in substantial privilege?": (
        "over 60 percent"
    ),
}
HANDBOOK_QUESTION = "How much may a hotel cost?"
HANDBOOK_ANSWER = "140 euros"


def make_collection(folder: Path) -> Path:
    """Makes a collection; returns the configuration of a server that serves it."""
    output = folder / "handbook"
    program = [sys.executable, "-m", "qa_service.retrieval.index_main", str(HANDBOOK_DIR)]
    subprocess.run([*program, "--output", str(output)], cwd=ROOT, check=True)
    config = folder / "server.toml"
    config.write_text(f'[collections.handbook]\npath = "{output}"\n')
    return config


@contextmanager
def running_server(config: Path) -> Iterator[int]:
    """Runs server.py on a free port; yields the port once it is ready."""
    server = subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "server.py"), "--port", "0", "--log_level", "warning"),
            *("--inference_engine_type", "onnx", "--precision", "fp32", "--config", str(config)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    try:
        ready = next((line for line in server.stdout if line.startswith("QA server ready")), "")
        if not ready:
            sys.exit(server.wait())
        print(ready, end="")
        yield int(ready.split(": ")[0].rpartition(":")[2])
    finally:
        server.send_signal(signal.SIGTERM)
        print(server.stdout.read(), end="")
        server.wait()


def show(question: str, answer: Answer) -> None:
    """Prints a question and its answer, and the document that it is from."""
    source = f", in {answer.passage.document}" if answer.passage else ""
    words = f"{answer.answer or 'Unknown'}   ({answer.latency_ms:.1f} ms{source})"
    print(f"\n  {question}\n  > {words}")


def main() -> int:
    """Asks the questions; returns 0 if all answers are the expected ones."""
    print(f"\n{TEXT}\n")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        config = make_collection(Path(folder))
        with running_server(config) as port, QaClient("localhost", port) as client:
            for question, expected in QUESTIONS.items():
                answer = client.ask(question, TEXT)
                wrong += answer.answer != expected
                show(question, answer)
            answer = client.ask(HANDBOOK_QUESTION, collection="handbook")
            wrong += answer.answer != HANDBOOK_ANSWER
            show(HANDBOOK_QUESTION, answer)
            print()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
