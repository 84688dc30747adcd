"""A Ray cluster on this machine, and a node of it to be lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.process import wait_until
from harness.server import RunningServer

OBJECT_STORE_BYTES = 80 << 20  # little more than the minimum
SETTINGS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "gcs_rpc_server_reconnect_timeout_s": 5,
    "local_fs_capacity_threshold": 1.0,
}
"""A loss is found within seconds, since a test waits for it. What the object store has no room for
is written to the disk, even to one that is nearly full: by default only up to 95 %."""


class RayCluster:
    """A head without room for instances, and nodes with room for one each, or for more.

    Args:
        settings: Of Ray, before those of tests.
    """

    def __init__(self, num_nodes: int = 2, cpus_each: int = 1, **settings: float) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - of an extra

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_system_config": SETTINGS | settings,
            },
        )
        self._cpus_each = cpus_each
        self.nodes = [self.add_node() for _ in range(num_nodes)]
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self) -> Any:
        return self._cluster.add_node(
            num_cpus=self._cpus_each, object_store_memory=OBJECT_STORE_BYTES
        )

    def remove(self, node: Any) -> None:
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_gcs(self) -> None:
        """Kills what the cluster cannot do without."""
        self._cluster.head_node.kill_gcs_server()

    def close(self) -> None:
        self._cluster.shutdown()


def wait_for_alive(server: RunningServer, wanted: int) -> None:
    """Waits until this number of instances is alive."""
    wait_until(server.health, lambda h: h["sessions_alive"] == wanted)


def raylet_pid(node: Any) -> int:
    """The process of a node that starts and watches its workers."""
    [info] = node.all_processes["raylet"]
    return info.process.pid


def actor_pids(node: Any) -> list[int]:
    children = Path(f"/proc/{raylet_pid(node)}/task/{raylet_pid(node)}/children").read_text()
    names = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children.split()}
    return [pid for pid, name in names.items() if b"RayInstance" in name]


@contextmanager
def another_version(cluster: RayCluster) -> Iterator[None]:
    """Has the cluster say that it is of another version, for a while."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # noqa: PLC0415

    key, namespace = b"CLUSTER_METADATA", b"cluster"
    client = GcsClient(address=cluster.address)
    metadata = client.internal_kv_get(key, namespace=namespace)
    other = json.dumps(json.loads(metadata) | {"ray_version": "0.0.1"}).encode()
    client.internal_kv_put(key, other, overwrite=True, namespace=namespace)
    try:
        yield
    finally:
        client.internal_kv_put(key, metadata, overwrite=True, namespace=namespace)
