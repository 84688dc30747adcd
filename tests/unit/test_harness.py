"""What tests stand on: a process whose log is read while it writes."""

from __future__ import annotations

import sys

from harness.process import LoggingProcess

LINES = 5000
WRITE = f"import sys\nfor n in range({LINES}): print(n, file=sys.stderr, flush=True)"


def test_a_log_that_is_read_while_it_is_written_loses_nothing():
    process = LoggingProcess([sys.executable, "-c", WRITE])
    try:
        while process.process.poll() is None:
            assert process.log is not None
        assert process.log.splitlines() == [str(number) for number in range(LINES)]
    finally:
        process.close()
