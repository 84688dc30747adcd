"""The flags of `jobs.py`: a struct for each command, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from qa_service.command_line import make_parser
from qa_service.logs import LogFormat, LogLevel
from qa_service.options import Count, add_flags, from_flags
from qa_service.programs.access import Access

URL_VARIABLE = "QA_BROKER_URL"
DEFAULT_URL = "amqp://localhost/"
URL_FORM = "amqp://user:password@host:port/vhost"

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Seconds = Annotated[float, Meta(gt=0, le=10**9)]
_Positional = Meta(extra={"is_positional": True})


class RetryOptions(Struct, frozen=True, kw_only=True):
    """When a question is asked again."""

    retry_delays_s: Annotated[
        str,
        Meta(
            pattern=r"^[1-9][0-9]{0,6}(,[1-9][0-9]{0,6})*\Z",
            title="a list of seconds as in 1,5,30",
            description="seconds that a question waits before it is tried again, the first time "
            "and so on",
        ),
    ] = "1,5,30"

    @property
    def delays_s(self) -> tuple[int, ...]:
        return tuple(map(int, self.retry_delays_s.split(",")))


class BrokerOptions(Struct, frozen=True, kw_only=True):
    """The broker and its queues."""

    retry: RetryOptions = RetryOptions()
    broker_url: Annotated[
        str,
        Meta(
            description=f"{URL_FORM}; if not given, ${URL_VARIABLE} of the environment, else "
            f"{DEFAULT_URL}"
        ),
    ] = ""
    jobs_queue: Annotated[str, Meta(description="where jobs wait")] = "qa.jobs"
    dead_queue: Annotated[str, Meta(description="jobs that cannot succeed")] = "qa.dead"
    results_queue: Annotated[str, Meta(description="answers to jobs without reply_to")] = (
        "qa.results"
    )
    retry_queue: Annotated[str, Meta(description="first part of the retry queues' names")] = (
        "qa.retry"
    )
    delivery_limit: Annotated[
        Count, Meta(description="deliveries of one job before the broker takes it for dead")
    ] = 20

    def retry_queue_of(self, attempts: int) -> tuple[str, int]:
        """The queue in which a job waits after a number of attempts, and the wait in seconds."""
        delays_s = self.retry.delays_s
        delay_s = delays_s[min(attempts, len(delays_s)) - 1]
        return f"{self.retry_queue}.{delay_s}s", delay_s

    def retry_queues(self) -> list[tuple[str, int]]:
        return [self.retry_queue_of(number + 1) for number in range(len(self.retry.delays_s))]


class AskingOptions(Struct, frozen=True, kw_only=True):
    """The server, and how much it is asked at a time."""

    host: Annotated[str, Meta(description="the server's name or address")] = "localhost"
    port: Annotated[_Port, Meta(description="the server's TCP port")] = 9999
    timeout_s: Annotated[_Seconds, Meta(description="longest silence while a reply is awaited")] = (
        60.0
    )
    max_frame_bytes: Annotated[
        int, Meta(ge=1, le=2**30, description="the server's flag of this name")
    ] = 1 << 18
    prefetch: Annotated[Count, Meta(description="most questions in flight")] = 64
    num_connections: Annotated[Count, Meta(description="connections that share them")] = 1
    max_attempts: Annotated[Count, Meta(description="how often a question is tried")] = 5
    access: Access = Access()


class GatewayOptions(Struct, frozen=True, kw_only=True):
    """Takes jobs from a broker, asks the server, publishes the answers."""

    asking: AskingOptions
    broker: BrokerOptions
    drain_timeout_s: Annotated[
        _Seconds, Meta(description="seconds that jobs in flight are given when it is stopped")
    ] = 30.0
    metrics_port: Annotated[
        _Port | None, Meta(description="serve GET /metrics for Prometheus on this port")
    ] = None
    metrics_host: Annotated[str, Meta(description="address to serve them on")] = "localhost"
    log_level: Annotated[LogLevel, Meta(description="lowest level that is logged")] = "info"
    log_format: Annotated[LogFormat, Meta(description="text, or JSON a line")] = "text"


class RunOptions(Struct, frozen=True, kw_only=True):
    """Asks a file of questions, without a broker."""

    asking: AskingOptions
    retry: RetryOptions
    questions: Annotated[
        Path, Meta(description="questions: .jsonl, .csv or SQuAD's .json"), _Positional
    ]
    output: Annotated[Path, Meta(description="file of answers, JSON lines; what it holds is kept")]
    collection: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="the collection that is to answer all questions, in place of their texts"),
    ] = None
    max_outage_s: Annotated[
        _Seconds,
        Meta(
            description="seconds without a connection to the server after which it ends with an "
            "error"
        ),
    ] = 600.0


class SubmitOptions(Struct, frozen=True, kw_only=True):
    """Puts the questions of files into the jobs queue."""

    broker: BrokerOptions
    files: Annotated[
        tuple[Path, ...], Meta(description="questions: .jsonl, .csv, .json"), _Positional
    ]
    answers: Annotated[
        Path | None, Meta(description="a file of collect's: what it answers is not asked again")
    ] = None
    reply_to: Annotated[
        str | None, Meta(description="the queue for the answers, in place of the results queue")
    ] = None
    expiration_s: Annotated[
        _Seconds | None, Meta(description="seconds after which an answer is of no use")
    ] = None


class CollectOptions(Struct, frozen=True, kw_only=True):
    """Takes the answers out of the results queue into a file."""

    broker: BrokerOptions
    output: Annotated[Path, Meta(description="file of answers, JSON lines; what it holds is kept")]
    count: Annotated[
        Count | None, Meta(description="wait until the file has this many answers")
    ] = None
    follow: Annotated[bool, Meta(description="wait for further answers until interrupted")] = False


class DeadOptions(Struct, frozen=True, kw_only=True):
    """Lists, retries or drops the jobs that failed."""

    broker: BrokerOptions
    action: Annotated[
        Literal["list", "retry", "drop"], Meta(description="what to do with them"), _Positional
    ]
    message_id: Annotated[tuple[str, ...], Meta(description="only this job; may be repeated")] = ()


class StatusOptions(Struct, frozen=True, kw_only=True):
    """Says how many jobs wait where, and how fast they go."""

    broker: BrokerOptions
    interval_s: Annotated[
        _Seconds, Meta(description="seconds over which the rates are measured")
    ] = 2.0


JobsOptions = (
    GatewayOptions | RunOptions | SubmitOptions | CollectOptions | DeadOptions | StatusOptions
)
COMMANDS: dict[str, type[JobsOptions]] = {
    "gateway": GatewayOptions,
    "run": RunOptions,
    "submit": SubmitOptions,
    "collect": CollectOptions,
    "dead": DeadOptions,
    "status": StatusOptions,
}


def parse(docstring: str | None, arguments: list[str] | None = None) -> tuple[str, JobsOptions]:
    """Reads the command line: the command and its options.

    Raises:
        SystemExit: The flags are wrong, or ask for help.
        OSError: The token's file cannot be read.
        QaClientError: The token's file is not a text, or holds no token.
    """
    parser = make_parser(docstring)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, kind in COMMANDS.items():
        text, form = kind.__doc__, parser.formatter_class
        its = commands.add_parser(name, help=text, description=text, formatter_class=form)
        add_flags(its, kind)
        if "asking" in kind.__struct_fields__:
            Access.add_flags(its)
    flags: dict[str, Any] = vars(parser.parse_args(arguments))
    command = flags.pop("command")
    kind = COMMANDS[command]
    if "asking" in kind.__struct_fields__:
        flags["access"] = Access.from_flags(flags)
    return command, from_flags(kind, flags)
