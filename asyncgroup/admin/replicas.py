"""`admin.replicas`: elects leaders of partitions, and moves their replicas to other nodes and log directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from asyncgroup.admin.arguments import INT32_MAX, check_number
from asyncgroup.admin.denied import needs
from asyncgroup.admin.results import AdminResults
from asyncgroup.checks import check_partition, check_partitions, check_topic, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import replicas as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.replicas import PREFERRED, UNCLEAN, OngoingReassignment
from asyncgroup.errors import ConfigError
from asyncgroup.topic_partition import Partitions, TopicPartition

__all__ = ["AdminReplicas", "ReassignmentDescription"]

ELECTION_TYPES: Final = {"preferred": PREFERRED, "unclean": UNCLEAN}


@dataclass(frozen=True, slots=True)
class ReassignmentDescription:
    """A reassignment of a partition that is in progress."""

    replicas: tuple[int, ...]
    """The node ids of its replicas now, those that are added or removed included; the preferred leader first."""
    adding: tuple[int, ...]
    """The nodes that are to get a replica."""
    removing: tuple[int, ...]
    """The nodes that are to lose theirs."""

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing)


class AdminReplicas:
    """Leaders and replicas of partitions: `admin.replicas`. As Kafka's `kafka-leader-election.sh` and `kafka-reassign-partitions.sh`.

    await admin.replicas.alter_reassignments({("orders", 0): [2, 3, 1]})
    while await admin.replicas.list_reassignments([("orders", 0)]):
        await asyncio.sleep(1.0)
    """

    def __init__(self, client: ClusterClient, budget: Callable[[], RequestBudget]) -> None:
        self._client = client
        self._budget = budget

    def __repr__(self) -> str:
        return f"<AdminReplicas of {self._client!r}>"

    @needs("ALTER on the cluster")
    async def elect_leaders(
        self,
        election_type: Literal["preferred", "unclean"] = "preferred",
        partitions: Partitions | None = None,
    ) -> AdminResults[TopicPartition, bool]:
        """Elect leaders of these partitions, or of all that need it (KIP-460); return whether each had an election.

        `preferred` elects the first replica (PREFERRED_LEADER_NOT_AVAILABLE if it is not in sync). `unclean` elects, for a partition
        without a leader, a replica that is not in sync: **records are lost** (ELIGIBLE_LEADERS_NOT_AVAILABLE if none is alive). False
        means that the leader was the right one already, or that a request of this call without a response elected it.

        Raises ConfigError for another type and invalid partitions; without partitions also the error of the whole request.
        """
        number = ELECTION_TYPES.get(election_type) if isinstance(election_type, str) else None
        if number is None:
            raise ConfigError("election_type", election_type, "preferred or unclean")
        wanted = None if partitions is None else check_partitions(partitions)
        retry = self._budget().retry()
        if wanted is None:
            return AdminResults(await requests.elect_all_leaders(self._client, number, retry=retry))
        return AdminResults(await requests.elect_leaders(self._client, wanted, number, retry=retry))

    @needs("DESCRIBE on the cluster")
    async def list_reassignments(
        self, partitions: Partitions | None = None
    ) -> dict[TopicPartition, ReassignmentDescription]:
        """Return the reassignments in progress of these partitions, or of all; a partition without one is left out (KIP-455).

        Raises ConfigError for invalid partitions, BrokerError, NoBrokersError.
        """
        wanted = None if partitions is None else check_partitions(partitions)
        found = await requests.list_reassignments(self._client, wanted, retry=self._budget().retry())
        return {tp: _reassignment(found[tp]) for tp in sorted(found)}

    @needs("ALTER on the cluster")
    async def alter_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> AdminResults[TopicPartition, None]:
        """Begin to move each partition to replicas at these nodes, the preferred leader first; None cancels what is in progress.

        Returns when the reassignments have begun: `list_reassignments` shows which are in progress. A new target replaces one that
        is not reached yet. INVALID_REPLICA_ASSIGNMENT for nodes that do not exist, and NO_REASSIGNMENT_IN_PROGRESS for a partition with
        nothing to cancel. Without `allow_replication_factor_change` another number of nodes than now is INVALID_REPLICATION_FACTOR (Kafka 4.1).

        Raises ConfigError for invalid partitions and node ids.
        """
        if not isinstance(wanted, Mapping):
            raise wrong_type("wanted", wanted, "a mapping from each partition to node ids, or None")
        checked = dict(_checked(place, nodes) for place, nodes in wanted.items())
        altered = await requests.alter_reassignments(
            self._client,
            checked,
            allow_replication_factor_change=allow_replication_factor_change,
            retry=self._budget().retry(),
        )
        return AdminResults(altered)

    async def cancel_reassignments(self, partitions: Partitions) -> AdminResults[TopicPartition, None]:
        """Cancel reassignments in progress: each partition goes back to the replicas that it had. As `alter_reassignments` with None."""
        return await self.alter_reassignments(dict.fromkeys(check_partitions(partitions)))

    @needs("ALTER on the cluster")
    async def alter_log_dirs(
        self, node: int, wanted: Mapping[TopicPartition, str]
    ) -> AdminResults[TopicPartition, None]:
        """Begin to move this node's replica of each partition to another of its log directories, by the paths that `admin.brokers.log_dirs` returns (KIP-113).

        Returns when the copies have begun: `admin.brokers.log_dirs(node, partitions=…)` shows a second replica with `is_future`
        until the copy has taken the place of the replica. One that is there already is a success. LOG_DIR_NOT_FOUND for a
        directory that the node does not have, REPLICA_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION if it has no replica of the partition.

        Raises ConfigError for an invalid node id, partitions and paths.
        """
        number = check_number("node", node, INT32_MAX)
        if not isinstance(wanted, Mapping):
            raise wrong_type("wanted", wanted, "a mapping from each partition to a path")
        checked = dict(_checked_path(place, path) for place, path in wanted.items())
        altered = await requests.alter_log_dirs(self._client, number, checked, retry=self._budget().retry())
        return AdminResults(altered)


def _checked_path(place: Any, path: Any) -> tuple[TopicPartition, str]:
    tp = check_partition(place)
    check_topic(tp.topic)
    if not isinstance(path, str) or not path:
        raise ConfigError(f"log directory of {tp}", path, "the path of a log directory of the node, as text")
    return tp, path


def _checked(place: Any, nodes: Any) -> tuple[TopicPartition, list[int] | None]:
    tp = check_partition(place)
    check_topic(tp.topic)
    if nodes is None:
        return tp, None
    key = f"replicas of {tp}"
    if not isinstance(nodes, list | tuple):
        raise wrong_type(key, nodes, "node ids, as [1, 2], or None")
    if not nodes or len(set(nodes)) < len(nodes):
        raise ConfigError(key, nodes, "one node id or more, each once")
    return tp, [check_number(key, node, INT32_MAX) for node in nodes]


def _reassignment(found: OngoingReassignment) -> ReassignmentDescription:
    return ReassignmentDescription(
        tuple(found.replicas), tuple(found.adding_replicas), tuple(found.removing_replicas)
    )
