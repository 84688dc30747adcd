"""What the tests of a connection share: what stands around one, and a stream without a socket."""

from qa_service.errors import ERROR_KINDS
from qa_service.server.front.connection import Connection
from qa_service.server.front.connection_options import AuthOptions, ConnectionOptions
from qa_service.server.front.tokens import Authenticator
from qa_service.server.telemetry.metrics import Metrics
from qa_service.wire.messages import QUERY_TYPES, Answer, Timings


class Surroundings:
    """A connection, and what it needs; as the service, it remembers what is submitted."""

    def __init__(self, stream, codec_for, clock, auth, **limits):
        self.calls, self.cancelled, self.ended = [], [], []
        self.metrics = Metrics(ERROR_KINDS, QUERY_TYPES)
        self.connection = Connection(
            stream,
            codec_for,
            self,
            ConnectionOptions(**limits),
            clock=clock,
            authenticator=Authenticator(AuthOptions(**auth)),
            report=self.report,
            metrics=self.metrics,
            on_end=self.ended.append,
            name="the client",
        )

    def report(self, query, client):
        raise NotImplementedError

    def submit(self, call):
        self.calls.append(call)
        call.on_end(self.note)

    def note(self, call):
        if call.is_cancelled:
            self.cancelled.append(call)

    def resolve(self, call, text):
        call.resolve([Answer(text, 0.5, 0, len(text))], Timings(1.0, 2.0))


class ScriptedStream:
    """A stream whose client's part is played by the test, who reads everything at once."""

    output_bytes, waiting_since_s = 0, None

    def __init__(self):
        self.is_open, self.is_dropped, self.written = True, False, b""

    def start(self, on_data, on_end, on_flushed):
        self.deliver = on_data

    def write(self, data):
        if self.is_open:
            self.written += data

    write_soon = write

    def set_reading(self, reading):
        pass

    def close(self):
        self.is_open, self.is_dropped = False, True

    def close_gently(self):
        self.is_open = False
