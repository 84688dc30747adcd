"""Puts a QA server under load from many clients and measures how it answers.

    python stress_test.py
    python stress_test.py --num_simultaneous_clients 20 --questions_file dev.json

Each client has its own connection and asks one question after another. As many processes
play the clients as there are clients at a time; they start before the first request and
play one client after another, so that no start of a process is measured. A latency is
from just before a request is written to its reply's arrival; making the connection is not
in it. The exit code is 0 if every request was answered, 1 if any failed, 2 if there was
nothing to measure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

import qa_service
from qa_service.cli.access import Access
from qa_service.cli.flags import INTERRUPTED, count, make_parser, port, seconds
from qa_service.client import QaClient, QaClientError
from qa_service.load.generator import LoadError, LoadPlan, Sample, run_load
from qa_service.load.report import Report
from qa_service.squad import SquadQuestion, read_squad

QUESTIONS_FILE = Path(qa_service.__file__).parent / "data" / "questions.json"
QUESTIONS_HELP = "what to ask: JSON in SQuAD's format, or that gzipped as .gz"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the flags; leaves the program with code 2 where they make no sense."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--host", default="localhost", help="the server's name or address")
    add("--port", type=port, default=9999, help="the server's TCP port")
    Access.add_flags(parser)
    add("--num_simultaneous_clients", type=count, default=5, help="clients at a time")
    add("--num_total_clients", type=count, default=100, help="clients altogether")
    add("--num_request_per_client", type=count, default=10, help="requests of each client")
    add("--timeout_s", type=seconds, default=60.0, help="longest wait for an answer, in seconds")
    add("--questions_file", type=Path, default=QUESTIONS_FILE, help=QUESTIONS_HELP)
    return parser.parse_args(arguments)


def load_questions(path: Path, most: int) -> list[SquadQuestion]:
    """The first questions of a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no questions in SQuAD's format.
    """
    questions = read_squad(path)[:most]
    if not questions:
        raise ValueError(f"{path} holds no questions")
    return questions


def check_server(host: str, port: int, access: Access) -> None:
    """Makes sure that somebody is there, and lets us in, before the clients are.

    Raises:
        QaClientError: Nobody is, or does.
    """
    with QaClient(host, port, tls=access.tls_context(), token=access.token) as client:
        client.connect()


def measure(plan: LoadPlan) -> int:
    """Makes the load, prints the report, and returns the exit code."""
    samples: list[Sample] = []
    interrupted = False
    with tqdm(total=plan.num_requests, unit="request") as bar:
        try:
            for batch in run_load(plan):
                samples += batch
                bar.update(len(batch))
        except KeyboardInterrupt:
            interrupted = True
    report = Report.of(samples)
    print(report)
    return INTERRUPTED if interrupted else int(report.num_failed > 0)


def main() -> int:
    """Runs the program; returns its exit code."""
    flags = vars(parse_arguments())
    num_requests = flags["num_total_clients"] * flags["num_request_per_client"]
    try:
        questions = load_questions(flags.pop("questions_file"), num_requests)
        access = Access.from_flags(flags)
        check_server(flags["host"], flags["port"], access)
        return measure(LoadPlan(questions=questions, access=access, **flags))
    except (OSError, ValueError, QaClientError, LoadError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
