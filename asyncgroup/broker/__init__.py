"""The embedded Kafka cluster: any Kafka client can talk to it, in this process or from another one."""

from asyncgroup.broker.cluster import EmbeddedCluster
from asyncgroup.broker.coordinator.calls import CommittedOffset
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.faults import Fault, Faults
from asyncgroup.broker.history import Exchange, History
from asyncgroup.broker.views import GroupView, MemberView

__all__ = [
    "CommittedOffset",
    "EmbeddedCluster",
    "Exchange",
    "Fault",
    "Faults",
    "GroupView",
    "History",
    "MemberView",
    "Refused",
]
