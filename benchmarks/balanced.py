"""What a second server behind the balancer adds, where the accelerators are simulated.

    python -m benchmarks.balanced --questions_file dev.json

Each server has an instance whose engine sleeps as `benchmarks.feed` says, at a pace that this
machine's cores can feed twice. One server is asked directly, and behind HAProxy as
deploy/haproxy.cfg has it; then two behind HAProxy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.feed import FIXED_US, SERVER_FLAGS, Accelerator, accelerators, sleeping
from benchmarks.load import Figures, measure
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown, median, spread
from benchmarks.targets import Running, ours
from benchmarks.texts import Item, uniform
from harness.haproxy import Balancer
from harness.ports import reserve_port
from harness.process import cpu_s, tree
from harness.server import RunningServer, running_server
from qa_service.data.squad import read_squad

NAME = "T4, bert-base"
CLIENTS_A_SERVER = 192
WARMUP_S, DURATION_S = 4.0, 6.0
SETTINGS = {
    "one server": (1, False),
    "one behind HAProxy": (1, True),
    "two behind HAProxy": (2, True),
}


def balanced(
    accelerator: Accelerator, num_servers: int, flags: argparse.Namespace, items: Sequence[Item],
    *, behind: bool,
) -> Figures:  # fmt: skip
    """Loads some servers; the figures, and what an answer takes of the cores."""
    target = ours(accelerator.name, "--num_inference_sessions", "1", *SERVER_FLAGS)
    wrapper = sleeping(FIXED_US=FIXED_US, ROW_US=accelerator.row_us)
    share = 0.3 if flags.quick else 1.0
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running_server(flags.model, *target.flags, wrapper=wrapper))
            for _ in range(num_servers)
        ]
        port, balancers = servers[0].port, []
        if behind:
            ports = [server.port for server in servers]
            absent = [reserve_port() for _ in range(3 - num_servers)]
            balancer = Balancer([*ports, *absent])
            stack.callback(balancer.close)
            for number in range(len(absent)):
                balancer.wait_for_log(f"qa/qa{num_servers + number + 1} is DOWN")
            port, balancers = balancer.port, [balancer.process.pid]
        running = Running(target, port, servers[0].process.pid)
        clients = CLIENTS_A_SERVER * num_servers
        measure(running, items, clients, 0.0, WARMUP_S * share)
        pids = [pid for server in servers for pid in tree(server.process.pid)]
        before_s, balancer_before_s = sum(map(cpu_s, pids)), sum(map(cpu_s, balancers))
        answered_before = [_answered(server) for server in servers]
        found = measure(running, items, clients, 0.0, DURATION_S * share)
        used_s = sum(map(cpu_s, pids)) - before_s
        balancer_s = sum(map(cpu_s, balancers)) - balancer_before_s
        counts = [
            _answered(server) - before
            for server, before in zip(servers, answered_before, strict=True)
        ]
    answers = max(1.0, found["throughput"] * DURATION_S * share)
    return found | {
        "reached": found["throughput"] / (accelerator.pace_per_s * num_servers),
        "servers_us": used_s * 1e6 / answers,
        "balancer_us": balancer_s * 1e6 / answers,
        "least_share": min(counts) * num_servers / max(1, sum(counts)),
    }


def _answered(server: RunningServer) -> int:
    return int(server.stats()["counters"]["requests_total"]["answered"])


def report(section: Section, accelerator: Accelerator, found: dict[str, list[Figures]]) -> None:
    """Says what was reached."""
    rows = []
    for name, repeats in found.items():
        figures = {key: [one[key] for one in repeats] for key in repeats[0]}
        rows.append(
            [
                name,
                f"{accelerator.pace_per_s * SETTINGS[name][0]:,.0f}",
                spread(figures["throughput"], 0),
                spread(figures["reached"], 2),
                spread(figures["p50"], 0),
                spread(figures["p99"], 0),
                f"{median(figures['least_share']):.2f}",
                f"{median(figures['servers_us']):.0f}",
                f"{median(figures['balancer_us']):.0f}",
                f"{max(figures['failed']):.0f}",
            ]
        )
    head = ["", "pace of its accelerators, answers/s", "answers/s", "share", "p50 ms", "p99 ms"]
    head += ["the lesser server's share of its half", "servers, us an answer"]
    head += ["HAProxy, us an answer", "failed"]
    section.say(markdown(head, rows))
    section.raw["cells"] = found


def main() -> int:
    """Measures each setting in turn."""
    flags = make_parser(__doc__ or "").parse_args()
    section = Section("balanced", "Two servers behind the balancer, simulated accelerators", flags)
    items = uniform(read_squad(flags.questions_file))
    [accelerator] = [one for one in accelerators() if one.name == NAME]
    found: dict[str, list[Figures]] = {name: [] for name in SETTINGS}
    for _ in range(1 if flags.quick else flags.repeats):
        for name, (num_servers, behind) in SETTINGS.items():
            found[name].append(balanced(accelerator, num_servers, flags, items, behind=behind))
    report(section, accelerator, found)
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
