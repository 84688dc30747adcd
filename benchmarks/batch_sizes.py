"""The size of batches by the queue, against always one and always eight, in an open loop.

    python -m benchmarks.batch_sizes --questions_file dev.json [--engine onnx:int8]

Requests come at random moments at half to one and a half times what the server can do, whatever it
does; the same moments and questions for each of the three servers, which take turns at each rate.
Above its capacity a server's queue grows as long as the load lasts, and latency with it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from benchmarks.load import counted, load
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown
from benchmarks.targets import Running, ours, running
from benchmarks.texts import Item, uniform
from qa_service.data.squad import read_squad
from qa_service.load.report import Report

OURS = "by the queue"
FLAGS = {
    OURS: (),
    "always 1": ("--max_batch_size", "1"),
    "always 8": ("--max_batch_size", "8", "--cost_table", "off"),
}
SHARES = (0.5, 0.75, 1.0, 1.25, 1.5)
CLIENTS = 16
CAPACITY_REQUESTS_EACH = 12


def capacity_per_s(server: Running, items: list[Item], requests_each: int) -> float:
    """What a closed loop of many clients gets out of it."""
    counted(server, items, CLIENTS, 2)
    return Report.of(counted(server, items, CLIENTS, requests_each)).throughput


def cells(reports: dict[str, Report], percent: int) -> list[str]:
    """A percentile for each server; the best of the fixed sizes is beside ours as a ratio."""
    found_ms = {name: report.percentiles_ms[percent] for name, report in reports.items()}
    best_ms = min(value for name, value in found_ms.items() if name != OURS)
    return [*(f"{value:.0f}" for value in found_ms.values()), f"{found_ms[OURS] / best_ms:.2f}"]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", default="onnx:fp32", help="engine and precision")
    parser.add_argument("--duration_s", type=float, default=12.0, help="of each load")
    flags = parser.parse_args()
    engine, precision = flags.engine.split(":")
    section = Section(f"batch_sizes_{engine}_{precision}", "Batch sizes", flags)
    items = uniform(read_squad(flags.questions_file))
    engine_flags = ("--inference_engine_type", engine, "--precision", precision)
    duration_s = 2.0 if flags.quick else flags.duration_s
    rows_of: dict[int, list[list[str]]] = {50: [], 99: []}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(running(ours(name, *engine_flags, *more), flags.model))
            for name, more in FLAGS.items()
        }
        requests_each = 3 if flags.quick else CAPACITY_REQUESTS_EACH
        rate_per_s = capacity_per_s(servers[OURS], items, requests_each)
        for number, share in enumerate(SHARES):
            fields = {"duration_s": duration_s, "rate_per_s": share * rate_per_s, "seed": number}
            loads = {
                name: load(server, items, num_simultaneous_clients=CLIENTS, **fields)
                for name, server in servers.items()
            }
            section.raw[str(share)] = {
                name: [sample.latency_ms for sample in samples if not sample.error_code]
                for name, samples in loads.items()
            }
            reports = {name: Report.of(samples) for name, samples in loads.items()}
            failed = sum(report.num_failed for report in reports.values())
            for percent, rows in rows_of.items():
                rows.append([f"{share:.2f}{f' ({failed} failed)' if failed else ''}",
                             *cells(reports, percent)])  # fmt: skip
    for percent, rows in rows_of.items():
        head = ["rate / capacity", *FLAGS, "by the queue / better of the others"]
        section.say(f"**p{percent}, ms**\n\n" + markdown(head, rows))
    section.say(
        f"{engine} {precision}, two instances of one thread; capacity {rate_per_s:.1f} "
        f"answers/s, found with {CLIENTS} clients; {duration_s:.0f} s of each load."
    )
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
