"""A server in an asyncio program's own loop, that does with each request what a test says."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

from harness.frames import PREFIX, frame

ANSWER = {"answer": "a", "score": 1.0}
SILENCE = object()
FULL: dict[str, Any] = {
    "code": "queue_full",
    "message": "m",
    "retryable": True,
    "retry_after_ms": 1,
}


class ScriptedServer:
    """Answers each request with what `script` makes of it; None closes the connection.

    `SILENCE` answers nothing. Unless it `refuses`, it answers for its health by itself.
    """

    refuses = False
    listener: asyncio.Server

    def __init__(self, script):
        self.script, self.requests, self.connections = script, [], 0
        self.writers, self.ended = [], 0

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                (length,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                request = json.loads(await reader.readexactly(length))
                if request.get("type") == "health" and not self.refuses:
                    writer.write(frame({"id": request["id"], "health": {}}))
                    continue
                self.requests.append(request)
                reply = self.script(request, len(self.requests))
                if reply is None:
                    return
                if reply is SILENCE:
                    continue
                writer.write(frame(reply))
                if isinstance(reply, dict) and "error" in reply and reply["id"] is None:
                    return  # a server closes too
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()

    def send(self, reply):
        """Sends a reply on the last connection, whatever the script says."""
        self.writers[-1].write(frame(reply))

    def stop_listening(self):
        self.listener.close()

    def close_connections(self):
        for writer in self.writers:
            writer.close()


def answered(request, _count):
    return {"id": request["id"], **ANSWER}


def full_for_the_first(request, _count):
    """Answers all but the question `q0`, for which there is no room."""
    return {"id": request["id"], **({"error": FULL} if request["question"] == "q0" else ANSWER)}


def refused_for_ever(request, _count):
    return {"id": request["id"], "error": FULL}


@asynccontextmanager
async def listening(server):
    """Yields the port of a scripted server."""
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.listener = listener
    async with listener:
        yield listener.sockets[0].getsockname()[1]
