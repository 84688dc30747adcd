"""OpenVINO without its telemetry; whoever needs `openvino` imports it from here.

At its import OpenVINO sends an event to an analytics host by name: it asks DNS for the host, writes
a client id below HOME, and forks the process, and the fork keeps the worker's channel. Without
`openvino_telemetry` it takes its own stub, which does nothing.
"""

from __future__ import annotations

import sys

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

import openvino as openvino  # noqa: E402, PLC0414 - exported; not before the line above
