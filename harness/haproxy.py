"""HAProxy as deploy/haproxy.cfg has it, before servers of ours."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Sequence

from harness.process import LoggingProcess
from harness.server import ROOT

HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin") or ""
"""Debian's; empty where it is not installed."""

CONFIG = ROOT / "deploy" / "haproxy.cfg"


def config_for_http() -> str:
    """The configuration with the checks that it has for servers with tokens."""
    lines = [line for line in CONFIG.read_text().splitlines() if "tcp-check" not in line]
    return "".join(
        re.sub("^    #     (option|http-check) ", r"    \1 ", f"{line}\n") for line in lines
    )


class Balancer(LoggingProcess):
    """HAProxy on a separate port, before three servers on these ports.

    Args:
        config: Another configuration than deploy/haproxy.cfg.
    """

    def __init__(self, ports: Sequence[int], config: str = "") -> None:
        self._config = tempfile.NamedTemporaryFile("w", suffix=".cfg")  # noqa: SIM115 - closed with the process
        self._config.write(config or CONFIG.read_text())
        self._config.flush()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            descriptor = listening.fileno()
            self.port = listening.getsockname()[1]
            where = {f"QA_SERVER_{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports, 1)}
            super().__init__(
                [HAPROXY, "-f", self._config.name],
                ("stdout", "stderr"),
                env={**os.environ, **where, "QA_LISTEN": f"fd@{descriptor}"},
                pass_fds=[descriptor],
            )

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        super().close()
        self._config.close()
