"""deploy/systemd: the unit, as systemd itself reads it."""

import configparser
import shutil

import pytest

from harness.server import ROOT
from qa_service.server.config import ServerConfig
from tests.programs import run

UNIT = ROOT / "deploy" / "systemd" / "qa-server.service"
PROGRAM = "/opt/qa-server/bin/qa-server"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    text = UNIT.read_text()
    assert PROGRAM in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace(PROGRAM, "/bin/true"))  # it looks whether the program is there
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_drain_ends_before_systemd_kills():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNIT)
    stop_s = int(unit["Service"]["TimeoutStopSec"])
    assert stop_s > ServerConfig().server.drain_timeout_ms / 1000
