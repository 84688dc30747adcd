"""What tests and benchmarks stand on: processes whose output is read while they write."""

import sys

from harness.models import copy_model
from harness.process import LoggingProcess
from harness.server import RunningServer

LINES = 5000
WRITE = f"import sys\nfor n in range({LINES}): print(n, file=sys.stderr, flush=True)"
READY_LINE = "QA server ready on localhost:1234: a model\n"
OLDER_SERVER = f"import signal\nprint({READY_LINE!r}, end='', flush=True)\nsignal.pause()"


def test_a_log_read_while_written_loses_no_line():
    process = LoggingProcess([sys.executable, "-c", WRITE])
    try:
        while process.process.poll() is None:
            assert process.log is not None
        assert process.log.splitlines() == [str(number) for number in range(LINES)]
    finally:
        process.close()


def test_an_older_checkouts_server_is_started_by_its_ready_line(tmp_path):
    (tmp_path / "server.py").write_text(OLDER_SERVER)
    server = RunningServer(tmp_path, root=tmp_path)
    try:
        assert (server.port, server.ready_line) == (1234, READY_LINE.rstrip())
    finally:
        server.close()


def test_a_models_copy_leaves_out_what_servers_are_writing_into_its_costs(tmp_path):
    model = tmp_path / "model"
    partial = model / "costs" / "openvino" / "key" / ".partial"
    partial.mkdir(parents=True)
    (partial / "1.copy").symlink_to("gone")  # as a file that was removed after it was listed
    for name in ("model.onnx", "costs/table.json", "costs/table.123"):
        (model / name).write_text("{}")
    copy = copy_model(model, tmp_path / "copy", "*.txt")
    assert sorted(path.name for path in copy.rglob("*")) == ["costs", "model.onnx", "table.json"]
