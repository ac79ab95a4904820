"""Which nodes coordinate groups and transactions.

In Kafka that is who leads the partition of `__consumer_offsets`, or of `__transaction_state`, in which the group's id, or
the transactional id, falls by its hash. The first of these topics is made when somebody needs it, the second never: who
would lead their partitions is known before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS
from asyncgroup.broker.java_hash import java_hash
from asyncgroup.broker.listener import Listener
from asyncgroup.broker.topics import NO_LEADER, OFFSETS_TOPIC, Partition, Topic

__all__ = ["TRANSACTION_PARTITIONS", "Coordinators"]

TRANSACTION_PARTITIONS: Final = 50
"""Kafka's default of `transaction.state.log.num.partitions`."""


class Coordinators:
    """The leaders of the partitions of both topics, by number; NO_LEADER where no node is alive.

    `topics` and `listeners` are the controller's, `lead` gives an existing partition a leader. Moving to a node that is
    not alive is refused before.
    """

    def __init__(
        self,
        topics: Mapping[str, Topic],
        listeners: Mapping[int, Listener],
        lead: Callable[[Partition, int], None],
    ) -> None:
        self.offsets_leaders: list[int] = [NO_LEADER] * OFFSETS_PARTITIONS
        self.transaction_leaders: list[int] = [NO_LEADER] * TRANSACTION_PARTITIONS
        self._topics, self._listeners, self._lead = topics, listeners, lead

    def __repr__(self) -> str:
        return f"<Coordinators of groups {sorted(set(self.offsets_leaders))}>"

    # -- nodes -----------------------------------------------------------------------------------------------

    def node_up(self, node_id: int) -> None:
        """The node takes what nobody could take meanwhile."""
        for number, leader in enumerate(self.offsets_leaders):
            if leader == NO_LEADER and self._holders(number, [node_id]):
                self.move_offsets(number, node_id)
        self._replace_transactions(NO_LEADER, [node_id])

    def node_down(self, node_id: int, alive: Collection[int]) -> None:
        """What the node had goes to those that are alive."""
        for number, leader in enumerate(self.offsets_leaders):
            if leader == node_id:
                self.move_offsets(number, _one_of(self._holders(number, alive), number))
        self._replace_transactions(node_id, sorted(alive))

    def spread(self, alive: Collection[int]) -> None:
        """Share everything evenly between the nodes, as a new cluster does."""
        nodes = sorted(alive)
        self.transaction_leaders = [_one_of(nodes, number) for number in range(TRANSACTION_PARTITIONS)]
        for number in range(OFFSETS_PARTITIONS):
            self.move_offsets(number, _one_of(self._holders(number, nodes), number))

    def _holders(self, number: int, nodes: Collection[int]) -> list[int]:
        """Those of the nodes that have a replica of a partition of `__consumer_offsets`; all, before it exists."""
        topic = self._topics.get(OFFSETS_TOPIC)
        return [n for n in sorted(nodes) if topic is None or n in topic.partitions[number].replicas]

    # -- groups ----------------------------------------------------------------------------------------------

    def offsets_partition(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds a group."""
        return java_hash(group_id) % OFFSETS_PARTITIONS

    def of_group(self, group_id: str) -> int:
        """The node that coordinates a group, or NO_LEADER."""
        return self.offsets_leaders[self.offsets_partition(group_id)]

    def move_offsets(self, number: int, node_id: int, *, anew: bool = False) -> None:
        """Let a node lead a partition of `__consumer_offsets` and coordinate its groups; `anew` also if it does already."""
        old = self.offsets_leaders[number]
        if old == node_id and not anew:
            return
        self.offsets_leaders[number] = node_id
        if old in self._listeners:
            self._listeners[old].coordinator_resigned(number)
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is not None:
            partition = topic.partitions[number]
            if node_id not in (NO_LEADER, *partition.replicas):
                partition.replicas.append(node_id)
            self._lead(partition, node_id)
        if node_id in self._listeners:
            self._listeners[node_id].coordinator_elected(number)

    def forget_groups(self) -> None:
        """`__consumer_offsets` was deleted: all coordinators begin anew, with nothing."""
        for number, leader in enumerate(self.offsets_leaders):
            self.move_offsets(number, leader, anew=True)

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction_partition(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that would hold a transactional id."""
        return java_hash(transactional_id) % TRANSACTION_PARTITIONS

    def of_transaction(self, transactional_id: str) -> int:
        """The node that answers for a transactional id, or NO_LEADER."""
        return self.transaction_leaders[self.transaction_partition(transactional_id)]

    def move_transaction(self, transactional_id: str, node_id: int) -> None:
        """Make a node the coordinator of a transactional id, and of all others in its partition."""
        self.transaction_leaders[self.transaction_partition(transactional_id)] = node_id

    def _replace_transactions(self, old: int, heirs: list[int]) -> None:
        for number, leader in enumerate(self.transaction_leaders):
            if leader == old:
                self.transaction_leaders[number] = _one_of(heirs, number)


def _one_of(nodes: list[int], number: int) -> int:
    return nodes[number % len(nodes)] if nodes else NO_LEADER
