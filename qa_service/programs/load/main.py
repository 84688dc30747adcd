"""Puts a QA server under load from many clients and measures how it answers.

    python stress_test.py
    python stress_test.py --num_simultaneous_clients 20 --questions_file examples/dev.json
    python stress_test.py --rate 50 --duration_s 30
    python stress_test.py --collection handbook --questions_file questions.json
    python stress_test.py --sweep --sessions 1,2,4,8 --csv sweep.csv --plot sweep.png

Each client has one connection and asks one question after another (a closed loop). A
latency is from just before a request is written to its reply's arrival; making the connection
is not in it. With --rate, requests come at random moments whatever the server does (an open
loop), and a latency is from the moment that a request was due.

With --sweep, a table: each number of clients, or each rate, against each number of inference
instances (--sessions). For each of the latter a server is started, and stopped, on a free port;
flags that are not known here are passed to it. Without --sessions, the server that runs is used.

The exit code is 0 if every request was answered, 1 if any failed, 2 if there was nothing to
measure.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from qa_service.client import QaClientError
from qa_service.command_line import (
    INTERRUPTED,
    count,
    hosts,
    list_of,
    make_parser,
    port,
    rate,
    seconds,
)
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.errors import SetupError
from qa_service.installation import check_plot
from qa_service.programs.access import Access, with_hint
from qa_service.programs.load.plan import LoadPlan
from qa_service.programs.load.plot import draw
from qa_service.programs.load.sweep import COLUMNS, Cell, Sweep, csv_row, find_engine, markdown
from qa_service.programs.load.wire import CollectionWire

CLOSED_LOOP_CLIENTS, OPEN_LOOP_CLIENTS = 5, 50
"""The prototype's five; fifty, so that a rate comes from as many as the users of a server are."""
SWEEP_CLIENTS = [1, 5, 20, 50]
CLIENTS_HELP = (
    f"clients at a time (default: {CLOSED_LOOP_CLIENTS}); with --rate, connections that the "
    f"requests take in turn (default: {OPEN_LOOP_CLIENTS})"
)


def make_flags() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    where = "the server's name or address; of several, as a,b:9998, clients take one in turn"
    add("--host", type=hosts, default="localhost", help=where)
    add("--port", type=port, default=9999, help="the TCP port of those that name none")
    Access.add_flags(parser)
    add("--num_simultaneous_clients", type=count, help=CLIENTS_HELP)
    add("--num_total_clients", type=count, default=100, help="clients altogether")
    add("--num_request_per_client", type=count, default=10, help="requests of each client")
    add("--duration_s", type=seconds, help="seconds to send for, in place of the two counts above")
    add("--rate", type=list_of(rate), help="open loop: requests per second; a list with --sweep")
    add("--timeout_s", type=seconds, default=60.0, help="longest wait for an answer, in seconds")
    file = "what to ask: JSON in SQuAD's format, or that gzipped as .gz"
    add("--questions_file", type=Path, default=OWN_QUESTIONS, help=file)
    add("--collection", help="the collection that is to answer, in place of the file's texts")
    add("--max_passages", type=count, help="how many passages of the collection to read")
    add("--shuffle", action="store_true", help="ask from all over the file, in random order")
    add("--seed", type=int, default=0, help="decides the order of --shuffle, the moments of --rate")
    add("--sweep", action="store_true", help="measure a table, of the next two flags or --rate")
    at_a_time = f"clients at a time (default: {','.join(map(str, SWEEP_CLIENTS))})"
    add("--clients", type=list_of(count), default=[], help=at_a_time)
    instances = "instances of servers that it starts itself"
    add("--sessions", type=list_of(count), default=[], help=instances)
    add("--csv", type=Path, help="file for the figures, in full, a row for each load")
    add("--plot", type=Path, help="file for --sweep's plots, .png, .svg or .pdf")
    return parser


def parse_arguments(arguments: list[str] | None = None) -> dict[str, Any]:
    """Reads the flags; leaves the program with code 2 where they make no sense."""
    parser = make_flags()
    known, unknown = parser.parse_known_args(arguments)
    flags = vars(known)
    if unknown and not flags["sessions"]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if not flags["sweep"] and (flags["clients"] or flags["sessions"] or flags["plot"]):
        parser.error("--clients, --sessions and --plot are for --sweep")
    if flags["max_passages"] and flags["collection"] is None:
        parser.error("--max_passages needs --collection")
    if not flags["sweep"] and len(flags["rate"] or []) > 1:
        parser.error("--rate takes more than one rate only with --sweep")
    default = OPEN_LOOP_CLIENTS if flags["rate"] else CLOSED_LOOP_CLIENTS
    flags["num_simultaneous_clients"] = flags["num_simultaneous_clients"] or default
    return {**flags, "server_flags": unknown}


def make_sweep(flags: dict[str, Any]) -> Sweep:
    """The sweep that the flags describe; without --sweep, of one load.

    Raises:
        OSError: The file of questions cannot be read.
        ValueError: The file holds no questions in SQuAD's format.
    """
    access, path = Access.from_flags(flags), flags["questions_file"]
    questions = read_squad(path)
    if not questions:
        raise ValueError(f"{path} holds no questions")
    if flags["shuffle"]:
        random.Random(flags["seed"]).shuffle(questions)
    names = [
        *("host", "port", "num_simultaneous_clients", "num_total_clients", "seed"),
        *("num_request_per_client", "duration_s", "timeout_s"),
    ]
    plan = LoadPlan(questions=questions, access=access, **{name: flags[name] for name in names})
    if flags["collection"] is not None:
        wire = partial(CollectionWire, flags["collection"], flags["max_passages"])
        plan = dataclasses.replace(plan, wire=wire)
    one = [plan.num_simultaneous_clients]
    clients = (flags["clients"] or SWEEP_CLIENTS) if flags["sweep"] else one
    return Sweep(plan, clients, flags["rate"] or [], flags["sessions"], flags["server_flags"])


def measure(flags: dict[str, Any]) -> int:
    """Makes the loads, prints the report, and returns the exit code.

    An exception, `KeyboardInterrupt` between two loads included, passes after the finished loads
    are printed.
    """
    if flags["plot"]:
        check_plot(flags["plot"])
    sweep = make_sweep(flags)
    if not sweep.instances:  # before anything is written
        sweep = dataclasses.replace(sweep, engine=find_engine(sweep.plan))
    cells: list[Cell] = []
    try:
        with flags["csv"].open("w", encoding="utf-8") if flags["csv"] else io.StringIO() as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(COLUMNS)
            for cell in sweep.run():
                report = cell.report
                if not (report.num_answered or report.num_failed or report.interrupted):
                    raise ValueError("nothing was asked: --duration_s is too short for this load")
                rows.writerow(csv_row(cell))
                file.flush()
                cells.append(cell)
    finally:
        if cells:
            print(markdown(cells) if flags["sweep"] else describe(cells[0]), flush=True)
            if flags["plot"]:
                draw(cells, flags["plot"])
    if cells[-1].report.interrupted:
        return INTERRUPTED
    return int(any(cell.report.num_failed for cell in cells))


def describe(cell: Cell) -> str:
    """The report of one load, with what bounds the server in the last line."""
    if not cell.spent:
        return str(cell.report)
    bound = cell.bound[0].upper() + cell.bound[1:]
    return f"{cell.report}\nServer:      {cell.spent}\n{bound}."


def main() -> int:
    flags = parse_arguments()
    try:
        return measure(flags)
    except (OSError, ValueError, QaClientError, SetupError) as error:
        print(f"Error: {with_hint(error)}", file=sys.stderr)
        return 2
