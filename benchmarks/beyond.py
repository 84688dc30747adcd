"""Beyond one machine: what a Ray instance, Ray Serve and HAProxy add to a local instance.

    python -m benchmarks.beyond

Each has one instance (HAProxy two servers of one), all on this machine, so the network adds
nothing and the cores are shared: the added time is that of the processes in between. First with
the engine that answers at once, then with the model. Then the loop with more Ray instances.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.load import counted, measure
from benchmarks.record import Section, make_parser
from benchmarks.tables import markdown
from benchmarks.targets import RAY, NotStartedError, Running, Target, ours, peer, running
from benchmarks.texts import Item, uniform
from harness.haproxy import HAPROXY, Balancer
from harness.ray_cluster import RayCluster
from qa_service.data.squad import read_squad
from qa_service.programs.load.report import Report

MODEL, GROWTH = "the model", "growth"
ENGINES = {
    "at once": ("--inference_engine_type", "instant"),
    MODEL: ("--inference_engine_type", "onnx", "--precision", "fp32"),
}
REQUESTS = {"at once": 2000, MODEL: 100}
CLIENTS, DURATION_S = 50, 8.0
NUMBERS = (1, 2, 4, 8, 16)
CLOSED_PORT = 1
EMPTY_CALL_BYTES = 1000
"""About as long as a batch of one paragraph."""


def on_ray(cluster: RayCluster, number: int, *flags: str) -> Target:
    """A server all of whose instances are on the cluster."""
    where = ("--num_inference_sessions", "0", "--ray_address", cluster.address)
    name = f"{number} Ray instance{'s' if number > 1 else ''}"
    return ours(name, *where, "--ray_instances", str(number), *flags)


@contextmanager
def behind_haproxy(model: Path, *flags: str) -> Iterator[Running]:
    """HAProxy before two servers."""
    if not HAPROXY:
        raise NotStartedError("haproxy is not installed")
    with ExitStack() as stack:
        servers = [stack.enter_context(running(ours("server", *flags), model)) for _ in range(2)]
        balancer = Balancer([servers[0].port, servers[1].port, CLOSED_PORT])
        stack.callback(balancer.close)
        balancer.wait_for_log("qa/qa3 is DOWN")
        yield Running(ours("HAProxy, two servers"), balancer.port, servers[0].pid)


def contestants(cluster: RayCluster, model: Path, engine: str) -> Iterator[tuple[str, object]]:
    """Each contestant's name, and what starts it."""
    flags = ENGINES[engine]
    local = ours("a local instance", "--num_inference_sessions", "1", *flags)
    yield local.name, running(local, model)
    yield "a Ray instance", running(on_ray(cluster, 1, *flags), model)
    yield "HAProxy, two servers", behind_haproxy(model, "--num_inference_sessions", "1", *flags)
    how = ("--batch", "8") if engine == MODEL else ("--instant", "--max_ongoing_requests", "64")
    serve = peer("Ray Serve", "ray_server", RAY, "--sessions", "1", *how)
    yield serve.name, running(serve, model)


def measure_one_and_many(server: Running, items: Sequence[Item], requests: int) -> list[float]:
    """p50 and p99 of one client, and answers a second to fifty."""
    one = Report.of(counted(server, items, 1, requests))
    many = measure(server, items, CLIENTS, 1.0, DURATION_S)
    if many["failed"]:
        raise RuntimeError(f"{many['failed']:.0f} requests failed")
    return [one.percentiles_ms[50], one.percentiles_ms[99], many["throughput"]]


class Nothing:
    """An actor that does nothing."""

    def run(self, data: bytes) -> bytes:
        """Gives back what it was given."""
        return data


def empty_call_ms(cluster: RayCluster) -> float:
    """The median of what a call of an actor that does nothing takes, there and back."""
    import ray  # noqa: PLC0415 - of an extra

    ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        actor = ray.remote(num_cpus=1)(Nothing).remote()
        took_ms = []
        for _ in range(REQUESTS["at once"]):
            started_s = time.perf_counter()
            ray.get(actor.run.remote(bytes(EMPTY_CALL_BYTES)))
            took_ms.append((time.perf_counter() - started_s) * 1e3)
        return statistics.median(took_ms)
    finally:
        ray.shutdown()


def compare(
    section: Section, engine: str, cluster: RayCluster, model: Path, items: Sequence[Item]
) -> None:
    rows, first = [], None
    for name, starting in contestants(cluster, model, engine):
        try:
            with starting as server:
                found = measure_one_and_many(server, items, REQUESTS[engine])
        except (NotStartedError, RuntimeError) as error:
            section.say(f"{name}: not measured, {error}.")
            continue
        first = first or found
        added = [found[0] - first[0], found[1] - first[1]]
        section.raw[f"{engine}, {name}"] = found
        cells = [*found[:2], *added]
        rows.append([name, *(f"{ms:.2f}" for ms in cells), f"{found[2]:.1f}"])
    head = ["", "p50, ms", "p99, ms", "added p50", "added p99", f"answers/s, {CLIENTS} clients"]
    section.say(f"**Engine: {engine}**\n\n" + markdown(head, rows))


def grow(section: Section, cluster: RayCluster, model: Path, items: Sequence[Item]) -> None:
    """More and more Ray instances on one loop."""
    rows = []
    for number in NUMBERS:
        with running(on_ray(cluster, number, *ENGINES["at once"]), model) as server:
            found = measure(server, items, CLIENTS, 1.0, DURATION_S)
            mib = server.rss_bytes() / 2**20
        row = [found["throughput"], found["cpu_ms"] * 1e3, mib]
        section.raw[f"growth {number}"] = row
        rows.append([str(number), *(f"{value:.0f}" for value in row)])
        print(*rows[-1], flush=True)
    head = ["Ray instances", "answers/s", "CPU us a request", "MiB, loop and bridges"]
    section.say(
        "**More Ray instances, the engine that answers at once**\n\n" + markdown(head, rows)
    )


def main() -> int:
    parser = make_parser(__doc__)
    parts = [*ENGINES, GROWTH]
    parser.add_argument("--part", choices=parts, action="append", help="only this; may be repeated")
    flags = parser.parse_args()
    parts = flags.part or parts
    section = Section("beyond", "Beyond one machine", flags, ("ray",))
    items = uniform(read_squad(flags.questions_file))
    cluster = RayCluster(num_nodes=1, cpus_each=max(NUMBERS) if GROWTH in parts else 1)
    try:
        for part in parts:
            if part == GROWTH:
                grow(section, cluster, flags.model, items)
            else:
                compare(section, part, cluster, flags.model, items)
        section.raw["an empty call of Ray's, ms"] = empty_ms = empty_call_ms(cluster)
        section.say(f"A call of an actor that does nothing takes {empty_ms:.2f} ms (median).")
    finally:
        cluster.close()
    section.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
