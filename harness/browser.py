"""A headless Chromium, driven by the DevTools protocol over a pair of pipes; needs no driver.

fd 3: commands, fd 4: replies and events; each is JSON that a NUL byte ends
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile

from harness.process import GIVE_UP_S, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--force-color-profile=srgb",
)
FAULTS = {"Runtime.exceptionThrown", "Log.entryAdded"}


class Browser:
    """One page in a browser of its own.

    Attributes:
        faults: What the page has left in the console: exceptions, errors, violated policies.
    """

    def __init__(self) -> None:
        assert CHROMIUM, "there is no chromium"
        # What is killed may write to its profile for a moment still.
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._commands = os.pipe()
        self._events, theirs_out = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = [*FLAGS, *sandbox, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *flags],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.faults: list[str] = []
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        attached = self.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: object) -> dict:
        """Sends a command and waits for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return reply["result"]

    def open(self, url: str) -> None:
        """Opens a page and waits until it has loaded."""
        self.command("Page.navigate", url=url)
        self.wait_for(
            f"location.href.startsWith({json.dumps(url)}) && document.readyState == 'complete'"
        )

    def evaluate(self, expression: str) -> object:
        """The value of an expression in the page."""
        result = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str) -> object:
        """Waits until an expression is true in the page; returns its value."""
        return wait_until(lambda: self.evaluate(expression))

    def type_key(self, key: str, *, control: bool = False) -> None:
        """Presses and releases a key."""
        code = {"Enter": 13, "Tab": 9}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, modifiers=2 if control else 0,
            )  # fmt: skip

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Gives the page a size and a colour scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def close(self) -> None:
        """Ends the browser, with all of its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._events)
        self._profile.cleanup()

    def _receive(self) -> dict:
        """The next message; of events, keeps those that tell of faults."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._events], [], [], GIVE_UP_S)
            assert ready, "the browser does not answer"
            data = os.read(self._events, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        event = json.loads(message)
        is_error = event.get("params", {}).get("type") == "error"
        if event.get("method") in FAULTS or (
            event.get("method") == "Runtime.consoleAPICalled" and is_error
        ):
            self.faults.append(json.dumps(event["params"]))
        return event
