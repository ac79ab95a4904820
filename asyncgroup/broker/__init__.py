"""The embedded Kafka cluster: any Kafka client can connect to it, from this process or another one.

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 6)
        cluster.faults.on("Fetch", topic="orders").error("NOT_LEADER_OR_FOLLOWER")
        ...  # clients at cluster.bootstrap_servers
        print(cluster.history.story())

How the package is built, each room importing only from those below it:

- `cluster`: the object that users hold; `control`: what it is made of and what tests do from outside (options, runtime,
  faults, history, seeded topics), and the calls of requests to handlers;
- `handlers`: one module per API; `node`: one node with its logs, coordinators and parked requests (`purgatory`);
- `net`: listener, connections, framing, TLS and SASL; it knows no API;
- `storage`: all logs of the cluster: retention, the log cleaner, the data directory;
- `groups`, `transactions`: the coordinators;
- `metadata`: topics, configs, placement; only its `controller` changes topics and leaders;
- `log`: the log of a partition, in memory or in files, and the validation of batches;
- `traffic`: faults and history of requests, without a protocol, as are `purgatory` and `clock`: another broker imports them;
- `clock` (and timers), `errors`, `arguments` (of tests: options, seeded records), `loggers` (their levels), `re2_pattern`
  (regular expressions from clients, with `re2_syntax` and `re2_characters`).

A request passes through `net.connection`, `control.call` (which records it and applies faults) and its handler.
"""

from asyncgroup.broker.cluster import EmbeddedCluster
from asyncgroup.broker.control.faults import Fault, Faults
from asyncgroup.broker.control.history import History
from asyncgroup.broker.control.options import ClusterOptions
from asyncgroup.broker.control.recorder import Exchange
from asyncgroup.broker.control.views import (
    GroupView,
    MemberView,
    NodeView,
    PartitionView,
    TopicView,
    TransactionView,
)
from asyncgroup.broker.errors import Refused, UnusedFaults
from asyncgroup.broker.groups.shared.requests import OffsetAndMetadata
from asyncgroup.broker.net.security import ListenerSecurity

__all__ = [
    "ClusterOptions",
    "EmbeddedCluster",
    "Exchange",
    "Fault",
    "Faults",
    "GroupView",
    "History",
    "ListenerSecurity",
    "MemberView",
    "NodeView",
    "OffsetAndMetadata",
    "PartitionView",
    "Refused",
    "TopicView",
    "TransactionView",
    "UnusedFaults",
]
