"""The flags of `jobs.py`, by command, and what is made of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from qa_service.aio.link import ServerAddress
from qa_service.command_line import count, list_of, make_parser, port, seconds
from qa_service.logs import LogFormat, LogLevel
from qa_service.programs.access import Access
from qa_service.programs.jobs.base import Queues

URL_VARIABLE = "QA_BROKER_URL"
DEFAULT_URL = "amqp://localhost/"
URL_FORM = "amqp://user:password@host:port/vhost"
_DEFAULTS = Queues()


class FlagError(Exception):
    """A flag or an environment variable cannot be used; one line for people."""


def make_flags(docstring: str | None) -> argparse.ArgumentParser:
    """The parser of all commands; `command` names the one that was given."""
    parser = make_parser(docstring)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=text, description=text, formatter_class=parser.formatter_class
        )

    _add_gateway(command("gateway", "take jobs from a broker, ask the server, publish the answers"))
    _add_run(command("run", "ask a file of questions, without a broker"))
    _add_submit(command("submit", "put the questions of files into the jobs queue"))
    _add_collect(command("collect", "take the answers out of the results queue into a file"))
    _add_dead(command("dead", "see, retry or drop the jobs that failed"))
    _add_status(command("status", "how many jobs wait where, and how fast they go"))
    return parser


def queues_from(flags: dict[str, Any]) -> Queues:
    """The queues."""
    return Queues(
        jobs=flags["jobs_queue"],
        dead=flags["dead_queue"],
        results=flags["results_queue"],
        retry=flags["retry_queue"],
        retry_delays_s=tuple(flags["retry_delays_s"]),
        delivery_limit=flags["delivery_limit"],
    )


def address_from(flags: dict[str, Any]) -> ServerAddress:
    """Where the server is.

    Raises:
        OSError: The token's file cannot be read.
        UnicodeDecodeError: The token's file is not UTF-8.
        QaClientError: A TLS file, or the token's, cannot be used.
    """
    access = Access.from_flags(flags)
    return ServerAddress(
        host=flags["host"],
        port=flags["port"],
        tls=access.tls_context(),
        token=access.token,
        max_frame_bytes=flags["max_frame_bytes"],
        timeout_s=flags["timeout_s"],
    )


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    _add_broker(parser)
    _add_asking(parser)
    add = parser.add_argument
    drain = "seconds that jobs in flight are given when it is stopped"
    add("--drain_timeout_s", type=seconds, default=30.0, help=drain)
    add("--metrics_port", type=port, help="serve GET /metrics for Prometheus on this port")
    add("--metrics_host", default="localhost", help="address to serve them on")
    add(
        "--log_level",
        choices=get_args(LogLevel),
        default="info",
        help="lowest level that is logged",
    )
    add("--log_format", choices=get_args(LogFormat), default="text", help="text, or JSON a line")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("questions", type=Path, help="questions: .jsonl, .csv or SQuAD's .json")
    _add_output(parser)
    _add_server(parser)
    _add_asking(parser)
    _add_retry_delays(parser)
    collection = "the collection that is to answer all questions, in place of their texts"
    parser.add_argument("--collection", help=collection)
    outage = "seconds without a connection to the server after which it ends with an error"
    parser.add_argument("--max_outage_s", type=seconds, default=600.0, help=outage)


def _add_submit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", type=Path, nargs="+", metavar="FILE", help="questions: .jsonl, .csv, .json")
    add("--answers", type=Path, help="a file of collect's: what it answers is not asked again")
    add("--reply_to", help="the queue for the answers (default: the results queue)")
    add("--expiration_s", type=seconds, help="seconds after which an answer is of no use")
    _add_broker(parser)


def _add_collect(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    add = parser.add_argument
    add("--count", type=count, help="wait until the file has this many answers")
    add("--follow", action="store_true", help="wait for further answers until interrupted")
    _add_broker(parser)


def _add_dead(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "retry", "drop"), help="what to do with them")
    add("--message_id", action="append", default=[], help="only this job; may be repeated")
    _add_broker(parser)


def _add_status(parser: argparse.ArgumentParser) -> None:
    interval = "seconds over which the rates are measured"
    parser.add_argument("--interval_s", type=seconds, default=2.0, help=interval)
    _add_broker(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    text = "file of answers, JSON lines; what it holds is kept"
    parser.add_argument("--output", type=Path, required=True, help=text)


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="localhost", help="the server's name or address")
    add("--port", type=port, default=9999, help="the server's TCP port")
    Access.add_flags(parser)
    add("--timeout_s", type=seconds, default=60.0, help="longest silence while a reply is awaited")
    add("--max_frame_bytes", type=count, default=1 << 18, help="the server's flag of this name")


def _add_asking(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prefetch", type=count, default=64, help="most questions in flight")
    add("--num_connections", type=count, default=1, help="connections that share them")
    add("--max_attempts", type=count, default=5, help="how often a question is tried")


def _add_broker(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    url = f"{URL_FORM} (default: ${URL_VARIABLE}, else {DEFAULT_URL})"
    add("--broker_url", help=url)
    add("--jobs_queue", default=_DEFAULTS.jobs, help="where jobs wait")
    add("--dead_queue", default=_DEFAULTS.dead, help="jobs that cannot succeed")
    add("--results_queue", default=_DEFAULTS.results, help="answers to jobs without reply_to")
    add("--retry_queue", default=_DEFAULTS.retry, help="first part of the retry queues' names")
    add("--delivery_limit", type=count, default=_DEFAULTS.delivery_limit, help=_LIMIT_HELP)
    _add_retry_delays(parser)


_LIMIT_HELP = "deliveries of one job before the broker takes it for dead"


def _add_retry_delays(parser: argparse.ArgumentParser) -> None:
    delays = "seconds that a question waits before it is tried again, the first time and so on"
    default = ",".join(map(str, _DEFAULTS.retry_delays_s))
    parser.add_argument("--retry_delays_s", type=list_of(count), default=default, help=delays)
