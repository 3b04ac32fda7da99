"""A Ray cluster of several nodes on this host, and what its object stores hold."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psutil

STORE = "object_store_memory"
STORE_BYTES = 100_000_000


class Ray:
    """A cluster that runs: a head with one CPU, and nodes that come and go."""

    def __init__(self, cluster: Any, num_nodes: int) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self.most_stored_bytes = 0.0
        self._nodes = [self._add() for _ in range(num_nodes)]

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, **{STORE: STORE_BYTES})

    def remove_node(self, number: int) -> None:
        """Kill all processes of a node, and add another in its place."""
        self._cluster.remove_node(self._nodes[number], allow_graceful=False)
        self._nodes[number] = self._add()

    def workers(self) -> list[psutil.Process]:
        """The processes that do batches at this moment."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] == ["ray::do_batch"]:
                    found.append(process)
        return found

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note how much the object stores of all nodes hold at most."""
        from ray._private.internal_api import get_state_from_address

        state = get_state_from_address(self.address)
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.05):
                free, whole = state.available_resources_per_node(), state.total_resources_per_node()
                held = [whole[node][STORE] - free[node][STORE] for node in whole.keys() & free.keys()]
                self.most_stored_bytes = max(self.most_stored_bytes, sum(held))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def check_own(address: str) -> None:
    """Ray looks for a free port before its head opens it: see that no other cluster took the port meanwhile."""
    port = int(address.rpartition(":")[2])
    listening = [
        process.name()
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert listening, f"{address} belongs to a cluster that this test has not started"


@contextlib.contextmanager
def cluster(*, num_nodes: int) -> Iterator[Ray]:
    """Start a cluster with this number of nodes beside the head."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, STORE: STORE_BYTES})
    try:
        check_own(started.address)
        ray = Ray(started, num_nodes)
        with ray.watched():
            yield ray
    finally:
        started.shutdown()
