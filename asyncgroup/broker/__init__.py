"""The embedded Kafka cluster: any Kafka client can talk to it, in this process or from another one.

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 6)
        cluster.faults.on("Fetch", topic="orders").error("NOT_LEADER_OR_FOLLOWER")
        ...  # clients at cluster.bootstrap_servers
        print(cluster.history.story())

How it is built, for who works on it:

The way of a request: `server` cuts frames off a connection, `call` records it (`history`), lets `faults` hit it, and gives
it to its module in `handlers/`, one an API. Those ask the node (`node`): the logs (`log`, `fetch_sessions`,
`producer_state`), the group coordinator (`coordinator/`), the transaction coordinator (`transactions/`); what has to wait
is parked in the `purgatory`. The `controller` alone decides on topics and leaders; `cluster` is what users hold.
A log is made of `segments`, in memory or in the files of `storage/`; `retention` makes logs shorter by the clock.
"""

from asyncgroup.broker.cluster import EmbeddedCluster
from asyncgroup.broker.coordinator.requests import OffsetAndMetadata
from asyncgroup.broker.errors import Refused, UnusedFaults
from asyncgroup.broker.faults import Fault, Faults
from asyncgroup.broker.history import Exchange, History
from asyncgroup.broker.security import ListenerSecurity
from asyncgroup.broker.views import GroupView, MemberView

__all__ = [
    "EmbeddedCluster",
    "Exchange",
    "Fault",
    "Faults",
    "GroupView",
    "History",
    "ListenerSecurity",
    "MemberView",
    "OffsetAndMetadata",
    "Refused",
    "UnusedFaults",
]
