"""The golden frames of docs/PROTOCOL.md."""

from __future__ import annotations

import json

from harness.server import ROOT

GOLDEN = json.loads((ROOT / "docs" / "golden_frames.json").read_text())


def body_of(case: dict) -> bytes:
    return bytes.fromhex(case["body_hex"]) if "body_hex" in case else case["body"].encode()
