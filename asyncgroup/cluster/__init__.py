"""Client side of one Kafka cluster: connections, metadata, partition leaders, coordinators.

- `cluster`: the public `Cluster`, over `client`.
- `client`: tracked topics, metadata refreshes and lookups (`metadata`: an immutable view and pure functions that
  change it), over the next two.
- `network_client`: sends a request to a given node, or to the least-loaded node (`hedged_requests`).
- `coordinators`: looks up, caches and sends requests to group and transaction coordinators.
- `requests`: requests for many keys to coordinators, the controller, leaders and named nodes, with a value or an error for each.
- `connection_pool`: one connection per (broker, purpose). `connecting` makes one: `net` opens the socket and TLS,
  `authentication` does SASL, `connect_errors` says in Kafka's words what to change. `connection` matches responses to requests.
- `bootstrap`: the addresses to start from; `features`: what the cluster has finalized (KIP-584).
- `throttling` (KIP-219): throttle times. Sockets, frames and retry delays are in `asyncgroup.net`.

Where to find what sarama's Client (`client.go`) offers:

| sarama | asyncgroup |
|---|---|
| Config, Close, Closed | `cluster.config`, `aclose()`, `is_open` |
| Brokers, Broker, Controller | `view.brokers`, `view.controller_id` |
| Topics | `await all_topics()`; those in use in `view.topics` |
| Partitions, WritablePartitions | `await partitions(topic)`; `view.topics[topic].numbers`, `.writable` |
| Leader, LeaderAndEpoch | `await leader(tp)`; `view.partition(topic, partition).leader`, `.leader_epoch` |
| Replicas, InSyncReplicas, OfflineReplicas | `.replicas`, `.isr`, `.offline_replicas` of the same |
| RefreshMetadata, RefreshController, RefreshBrokers | `await refresh()`; falls back to the bootstrap addresses by itself |
| GetOffset | `Consumer.partition(…, offset)`: a number, a time, earliest or latest |
| Coordinator, RefreshCoordinator | `await coordinators.find(group)`, `coordinators.mark_unknown(group)` |
| TransactionCoordinator, RefreshTransactionCoordinator | the same with `kind=TRANSACTION` |
| LeastLoadedBroker | `await request_any(…)` asks it, and the next one after 1 s without an answer |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.cluster.client import ClusterClient
    from asyncgroup.cluster.cluster import Cluster, as_cluster, start_tasks

__all__ = ["Cluster", "ClusterClient", "as_cluster", "start_tasks"]

_NAMES = {
    "client": ["ClusterClient"],
    "cluster": ["Cluster", "as_cluster", "start_tasks"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
