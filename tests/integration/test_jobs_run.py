"""`jobs.py run` stopped and killed on its way through a file, against a real server."""

from __future__ import annotations

import signal

import pytest

from harness.file_run import Run, asked_of, run_with_stops
from harness.server import INSTANT, running_server

pytestmark = pytest.mark.slow

COUNT, LANES = 5_000, 64


@pytest.mark.parametrize(
    ("signum", "most_again"), [(signal.SIGTERM, 0), (signal.SIGKILL, 2 * LANES)]
)
def test_stopped_twice_it_goes_on_in_order(builtin_model, tmp_path, signum, most_again):
    with running_server(builtin_model, *INSTANT) as server:
        run = Run(tmp_path, COUNT, (f"--port={server.port}", f"--prefetch={LANES}"))
        run.write_questions()
        run_with_stops(run, 2, signum)
        assert run.wrong_lines() == 0
        assert COUNT <= asked_of(server) <= COUNT + most_again
        assert not run.answers.with_name("answers.jsonl.ahead").exists()
