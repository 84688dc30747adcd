"""Nothing leaves the machine but what a flag names: what we depend on does not call home.

Each program sets these variables before it imports a library that reads them, and has them set for
the programs that it starts. OpenVINO has no variable: see `quiet_openvino`.
"""

from __future__ import annotations

import os

NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Of whoever heeds the convention, the Hugging Face hub's client, ONNX Runtime and Ray."""


def turn_off_telemetry() -> None:
    """Turns it off in this process, before the libraries are imported."""
    os.environ.update(NO_TELEMETRY)
