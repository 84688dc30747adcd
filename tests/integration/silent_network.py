"""Runs programs where nothing can be reached, and reports what they asked DNS for and wrote.

    unshare --net --mount python -m tests.integration.silent_network FOLDER < COMMANDS

The only address is the loopback's, and the only name server is a listener on it, which knows no
name. HOME is an empty folder. Standard input has a JSON list of commands, each a list of words,
run one after another in an environment without this machine's own; standard output gets one JSON
object: names, files, and each command's exit code and errors.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

DNS_PORT = 53
NO_SUCH_NAME = b"\x81\x83"
"""A response's flags, RFC 1035, 4.1.1: an error in answer to a recursive query."""


def listen_to_names(names: list[str]) -> None:
    """Answers each query with an error, and keeps its name."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", DNS_PORT))

    def serve() -> None:
        while True:
            query, peer = sock.recvfrom(512)
            names.append(name_in(query[12:]))
            sock.sendto(query[:2] + NO_SUCH_NAME + query[4:], peer)

    threading.Thread(target=serve, daemon=True).start()


def name_in(question: bytes) -> str:
    """The name that a question begins with: labels, each after its length."""
    labels = []
    while length := question[0]:
        labels.append(question[1 : 1 + length].decode(errors="replace"))
        question = question[1 + length :]
    return ".".join(labels)


def main(folder: Path) -> None:
    """Sets the network and HOME up, and runs the commands."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf"], check=True)
    names: list[str] = []
    listen_to_names(names)
    home = folder / "home"
    home.mkdir()
    kept = ("PATH", "PYTHONPATH", "LANG")
    env = {name: os.environ[name] for name in kept if name in os.environ} | {"HOME": str(home)}
    ran = [
        subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        for command in json.load(sys.stdin)
    ]
    files = [str(path.relative_to(home)) for path in sorted(home.rglob("*"))]
    ends = [(one.returncode, one.stdout[-2000:] + one.stderr[-2000:]) for one in ran]
    json.dump({"names": names, "files": files, "ends": ends}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
