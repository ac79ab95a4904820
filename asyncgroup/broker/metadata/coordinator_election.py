"""Election of the group and transaction coordinators.

As in Kafka, a group's coordinator is the leader of the partition of `__consumer_offsets` that the group id hashes to; a
transactional id's coordinator that of `__transaction_state`. `__consumer_offsets` is created on first use,
`__transaction_state` never exists here: the leaders of their partitions are kept here from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final

from asyncgroup.broker.metadata.journal import MetadataListener
from asyncgroup.broker.metadata.topics import NO_LEADER, OFFSETS_PARTITIONS, OFFSETS_TOPIC, Partition, Topic

__all__ = ["TRANSACTION_PARTITIONS", "CoordinatorElection", "java_hash"]

TRANSACTION_PARTITIONS: Final = 50
"""Kafka's default of `transaction.state.log.num.partitions`."""


class CoordinatorElection:
    """The leaders of the partitions of both topics, by partition number; NO_LEADER if no node is alive.

    `topics` and `listeners` are the controller's; `elect_leader` makes a node the leader of an existing partition.
    Callers check that a node is alive before they move anything to it.
    """

    def __init__(
        self,
        topics: Mapping[str, Topic],
        listeners: Mapping[int, MetadataListener],
        elect_leader: Callable[[Partition, int], None],
    ) -> None:
        self.offsets_leaders: list[int] = [NO_LEADER] * OFFSETS_PARTITIONS
        self.transaction_leaders: list[int] = [NO_LEADER] * TRANSACTION_PARTITIONS
        self._topics = topics
        self._listeners = listeners
        self._elect_leader = elect_leader

    def __repr__(self) -> str:
        return f"<CoordinatorElection of groups {sorted(set(self.offsets_leaders))}>"

    # -- nodes -----------------------------------------------------------------------------------------------

    def node_up(self, node_id: int) -> None:
        """Give the started node the partitions that have no leader."""
        for number, leader in enumerate(self.offsets_leaders):
            if leader == NO_LEADER and self._replica_nodes(number, [node_id]):
                self.move_offsets_leader(number, node_id)
        self._move_transaction_leaders(NO_LEADER, [node_id])

    def node_down(self, node_id: int, alive: Collection[int]) -> None:
        """Move the partitions that the stopped node led to live nodes."""
        for number, leader in enumerate(self.offsets_leaders):
            if leader == node_id:
                self.move_offsets_leader(number, _pick(self._replica_nodes(number, alive), number))
        self._move_transaction_leaders(node_id, sorted(alive))

    def assign_evenly(self, alive: Collection[int]) -> None:
        """Distribute all partitions evenly over the live nodes, as in a new cluster."""
        nodes = sorted(alive)
        self.transaction_leaders = [_pick(nodes, number) for number in range(TRANSACTION_PARTITIONS)]
        for number in range(OFFSETS_PARTITIONS):
            self.move_offsets_leader(number, _pick(self._replica_nodes(number, nodes), number))

    def _replica_nodes(self, number: int, nodes: Collection[int]) -> list[int]:
        """Return those of `nodes` with a replica of the `__consumer_offsets` partition; all before it exists."""
        topic = self._topics.get(OFFSETS_TOPIC)
        return [n for n in sorted(nodes) if topic is None or n in topic.partitions[number].replicas]

    # -- groups ----------------------------------------------------------------------------------------------

    def offsets_partition(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that holds the group."""
        return java_hash(group_id) % OFFSETS_PARTITIONS

    def group_coordinator(self, group_id: str) -> int:
        """Return the id of the group's coordinator, or NO_LEADER."""
        return self.offsets_leaders[self.offsets_partition(group_id)]

    def move_offsets_leader(self, number: int, node_id: int, *, force: bool = False) -> None:
        """Make a node the leader of a partition of `__consumer_offsets` and the coordinator of its groups.

        `force`: elect it again even if it leads already.
        """
        old = self.offsets_leaders[number]
        if old == node_id and not force:
            return
        self.offsets_leaders[number] = node_id
        if old in self._listeners:
            self._listeners[old].coordinator_resigned(number)
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is not None:
            partition = topic.partitions[number]
            if node_id not in (NO_LEADER, *partition.replicas):
                partition.replicas.append(node_id)
            self._elect_leader(partition, node_id)
        if node_id in self._listeners:
            self._listeners[node_id].coordinator_elected(number)

    def reset_groups(self) -> None:
        """Re-elect all group coordinators after `__consumer_offsets` was deleted; they load no groups."""
        for number, leader in enumerate(self.offsets_leaders):
            self.move_offsets_leader(number, leader, force=True)

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction_partition(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` that the transactional id hashes to."""
        return java_hash(transactional_id) % TRANSACTION_PARTITIONS

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the id of the transactional id's coordinator, or NO_LEADER."""
        return self.transaction_leaders[self.transaction_partition(transactional_id)]

    def move_transaction(self, transactional_id: str, node_id: int) -> None:
        """Make a node the coordinator of a transactional id, and of all others in its partition."""
        self.transaction_leaders[self.transaction_partition(transactional_id)] = node_id

    def _move_transaction_leaders(self, old: int, candidates: list[int]) -> None:
        for number, leader in enumerate(self.transaction_leaders):
            if leader == old:
                self.transaction_leaders[number] = _pick(candidates, number)


def _pick(nodes: list[int], number: int) -> int:
    return nodes[number % len(nodes)] if nodes else NO_LEADER


@lru_cache(maxsize=4096)  # computed for every heartbeat
def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, made non-negative as Kafka's `Utils.abs` does."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    if value & 0x80000000:
        value = 0 if value == 0x80000000 else 0x100000000 - value
    return value
