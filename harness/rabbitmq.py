"""A RabbitMQ of a test's own: Debian's `rabbitmq-server` on loopback, in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.process import reserve_port, wait_until

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
MISSING = "no RabbitMQ: apt-get install rabbitmq-server"


def is_installed() -> bool:
    return SERVER.exists() and shutil.which("epmd") is not None


class RunningRabbitMq:
    """A broker of one node, which can be killed and started again with what it held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, dist_port, epmd_port = (reserve_port() for _ in range(3))
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        (folder / "rabbitmq.conf").write_text("")
        self._environment = _environment(folder, self.port, dist_port, epmd_port)
        self._epmd = subprocess.Popen(
            ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], env=self._environment
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the node, and waits until it can be used."""
        log = (self.folder / "log").open("ab")
        began = log.tell()
        self._process = process = subprocess.Popen(
            [str(SERVER)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

        def text() -> bytes:
            said = (self.folder / "log").read_bytes()[began:]
            assert process.poll() is None, said.decode()
            return said

        wait_until(text, lambda said: b"Server startup complete" in said)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kills the node as a power failure does; what was confirmed is on its disk."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._epmd.kill()
        self._epmd.wait()


def _environment(folder: Path, port: int, dist_port: int, epmd_port: int) -> dict[str, str]:
    interface = "-kernel inet_dist_use_interface {127,0,0,1}"
    return {
        **os.environ,
        "HOME": str(folder),  # for the cookie
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"qa-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        # No schedulers that spin while idle: the machine is shared with what is tested.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"{interface} +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
    }


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[RunningRabbitMq]:
    with tempfile.TemporaryDirectory(prefix="qa-rabbitmq-") as folder:
        broker = RunningRabbitMq(Path(folder))
        try:
            broker.start()
            yield broker
        finally:
            broker.close()
