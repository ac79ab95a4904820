"""The embedded Kafka cluster: any Kafka client can connect to it, from this process or another one.

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 6)
        cluster.faults.on("Fetch", topic="orders").error("NOT_LEADER_OR_FOLLOWER")
        ...  # clients at cluster.bootstrap_servers
        print(cluster.history.story())

How the package is built:

A request passes through these modules: `server` reads frames from a connection; `call` records the request (`history`),
applies `faults` and calls the API's handler (`handlers/`, one module per API). Handlers use the node (`node`) with its
logs (`log`, `fetch_sessions`, `producer_state`), group coordinator (`coordinator/`) and transaction coordinator
(`transactions/`). Requests that must wait are parked in the `purgatory`. Only the `controller` changes topics and
leaders; `cluster` is the object that users hold. A log consists of `segments`, in memory or in the files of `storage/`;
`retention` and `log_cleaner` delete and compact old segments.
"""

from asyncgroup.broker.cluster import EmbeddedCluster
from asyncgroup.broker.control.faults import Fault, Faults
from asyncgroup.broker.control.history import Exchange, History
from asyncgroup.broker.control.views import GroupView, MemberView
from asyncgroup.broker.errors import Refused, UnusedFaults
from asyncgroup.broker.groups.requests import OffsetAndMetadata
from asyncgroup.broker.net.security import ListenerSecurity

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
