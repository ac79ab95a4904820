"""The cluster's metadata: topics, which nodes are alive, who leads what.

Every change is one synchronous step: the metadata is right for all nodes at once, and each node hears of what
concerns it through `Listener`. So there is no stale metadata between nodes, which real brokers have for
moments.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

from asyncgroup.broker.errors import Refused, StorageError
from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS, new_offsets_topic
from asyncgroup.broker.java_hash import java_hash
from asyncgroup.broker.journal import Journal, NoJournal
from asyncgroup.broker.topic_configs import check_configs
from asyncgroup.broker.topics import NO_LEADER, OFFSETS_TOPIC, Partition, Topic, check_topic_name
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError

__all__ = ["OFFSETS_PARTITIONS", "TRANSACTION_PARTITIONS", "Controller", "Listener", "java_hash"]

log = logging.getLogger(__name__)

TRANSACTION_PARTITIONS: Final = 50
"""Kafka's default of `transaction.state.log.num.partitions`."""

MAX_PARTITIONS: Final = 10_000
"""More are not created at once, as in Kafka (`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`): they fill the memory."""


class Listener(Protocol):
    """What a node hears of the controller."""

    def partition_changed(self, partition: Partition) -> None:
        """The partition has another leader, or is gone."""

    def coordinator_elected(self, offsets_partition: int) -> None:
        """The node now leads this partition of `__consumer_offsets` and coordinates its groups."""

    def coordinator_resigned(self, offsets_partition: int) -> None:
        """The node, still alive, no longer coordinates them."""


class Controller:
    """Holds the metadata and changes it."""

    def __init__(
        self,
        node_ids: Sequence[int],
        rng: random.Random,
        *,
        default_partitions: int,
        default_replication_factor: int,
    ) -> None:
        self.cluster_id = uuid.UUID(int=rng.getrandbits(128), version=4).hex[:22]
        self.node_ids = tuple(node_ids)
        self.alive: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        self.default_partitions = default_partitions
        self.default_replication_factor = default_replication_factor
        self.offsets_leaders: list[int] = [NO_LEADER] * OFFSETS_PARTITIONS
        self.transaction_leaders: list[int] = [NO_LEADER] * TRANSACTION_PARTITIONS
        """Which nodes would lead the partitions of `__transaction_state`: they coordinate the transactions."""
        self._rng = rng
        self._listeners: dict[int, Listener] = {}
        self.journal: Journal = NoJournal()
        self.configured: Callable[[Topic], None] = lambda _topic: None
        """Told of topics that are new or have other settings."""
        self._next_producer_id = 1000
        self._placed = 0

    def __repr__(self) -> str:
        return f"<Controller nodes={sorted(self.alive)} of {list(self.node_ids)} topics={len(self.topics)}>"

    @property
    def controller_id(self) -> int:
        """The node that clients are told to be the controller; any node takes controller requests, as with
        KRaft.
        """
        return min(self.alive, default=-1)

    # -- nodes -----------------------------------------------------------------------------------------------

    def node_up(self, node_id: int, listener: Listener) -> None:
        """A node is there: it leads what nobody could lead meanwhile, other leaders stay where they are."""
        self.alive.add(node_id)
        self._listeners[node_id] = listener
        for partition in self._partitions():
            if partition.leader == NO_LEADER and node_id in partition.replicas:
                self._lead(partition, node_id)
        for number, leader in enumerate(self.offsets_leaders):
            if leader == NO_LEADER:
                self._coordinate(number, node_id)
        leaders = [node_id if leader == NO_LEADER else leader for leader in self.transaction_leaders]
        self.transaction_leaders = leaders

    def node_down(self, node_id: int) -> None:
        """A node is gone without a word: leaders and coordinators move to nodes that are alive."""
        self.alive.discard(node_id)
        self._listeners.pop(node_id, None)
        led = [partition for partition in self._partitions() if partition.leader == node_id]
        if led and self.alive:
            log.info("node %d is gone: %d partitions get other leaders", node_id, len(led))
        for partition in led:
            self._lead(partition, next((r for r in partition.replicas if r in self.alive), NO_LEADER))
        heirs = sorted(self.alive)
        for number, leader in enumerate(self.offsets_leaders):
            if leader == node_id:
                self._coordinate(number, heirs[number % len(heirs)] if heirs else NO_LEADER)
        for number, leader in enumerate(self.transaction_leaders):
            if leader == node_id:
                self.transaction_leaders[number] = heirs[number % len(heirs)] if heirs else NO_LEADER

    def spread_coordinators(self) -> None:
        """Share the partitions of `__consumer_offsets`, and the transactions, evenly between the nodes, as a new cluster
        does.
        """
        nodes = sorted(self.alive)
        self.transaction_leaders = [nodes[number % len(nodes)] for number in range(TRANSACTION_PARTITIONS)]
        for number in range(OFFSETS_PARTITIONS):
            self._coordinate(number, nodes[number % len(nodes)])

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def move_leader(self, partition: Partition, node_id: int) -> None:
        """Make a live node the leader, and a replica if it was none."""
        self._check_alive(node_id)
        if partition.topic == OFFSETS_TOPIC:
            self._coordinate(partition.index, node_id, anew=True)
            return
        if node_id not in partition.replicas:
            partition.replicas.append(node_id)
        self._lead(partition, node_id)

    def truncate(self, partition: Partition, offset: int, node_id: int) -> None:
        """Make a live node the leader that lacks the records from `offset` on."""
        self._check_alive(node_id)
        partition.log.truncate(offset)
        self.move_leader(partition, node_id)

    def _lead(self, partition: Partition, node_id: int) -> None:
        if partition.leader in self.alive:  # else `node_down` has told of all its partitions at once
            place = f"{partition.topic}-{partition.index}"
            log.info("partition %s: leader %d -> %d", place, partition.leader, node_id)
        partition.lead_by(node_id)
        self.journal.partition_changed(partition)
        for listener in self._listeners.values():
            listener.partition_changed(partition)

    def offsets_partition(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds a group."""
        return java_hash(group_id) % OFFSETS_PARTITIONS

    def coordinator_of(self, group_id: str) -> int:
        """The node that coordinates a group, or NO_LEADER."""
        return self.offsets_leaders[self.offsets_partition(group_id)]

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group, and of all others in its partition of
        `__consumer_offsets`.
        """
        self._check_alive(node_id)
        self._coordinate(self.offsets_partition(group_id), node_id)

    def transaction_partition(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that would hold a transactional id."""
        return java_hash(transactional_id) % TRANSACTION_PARTITIONS

    def transaction_coordinator_of(self, transactional_id: str) -> int:
        """The node that answers for a transactional id, or NO_LEADER."""
        return self.transaction_leaders[self.transaction_partition(transactional_id)]

    def move_transaction_coordinator(self, transactional_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a transactional id, and of all others in its partition."""
        self._check_alive(node_id)
        self.transaction_leaders[self.transaction_partition(transactional_id)] = node_id

    def _coordinate(self, number: int, node_id: int, *, anew: bool = False) -> None:
        """Let a node lead a partition of `__consumer_offsets` and coordinate its groups; `anew` also if it does already."""
        old = self.offsets_leaders[number]
        if old == node_id and not anew:
            return
        self.offsets_leaders[number] = node_id
        if old in self._listeners:
            self._listeners[old].coordinator_resigned(number)
        topic = self.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            partition = topic.partitions[number]
            if node_id not in (NO_LEADER, *partition.replicas):
                partition.replicas.append(node_id)
            self._lead(partition, node_id)
        if node_id in self._listeners:
            self._listeners[node_id].coordinator_elected(number)

    def offsets_topic(self) -> Topic:
        """`__consumer_offsets`. It is made when somebody first needs it, as in Kafka, which looks for a coordinator then
        (`AutoTopicCreationManager`).
        """
        found = self.topics.get(OFFSETS_TOPIC)
        if found is not None:
            return found
        topic = new_offsets_topic(self.cluster_id, self.node_ids, self.offsets_leaders)
        self.journal.topic_changed(topic)
        self.topics[OFFSETS_TOPIC] = self.topics_by_id[topic.id] = topic
        return topic

    def _check_alive(self, node_id: int) -> None:
        if node_id not in self.alive:
            raise UsageError(f"node {node_id} is not running; these are: {sorted(self.alive)}")

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        assignments: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic; -1 takes the cluster's default. `assignments` gives the replicas of each partition.

        Raises Refused with the code that CreateTopics answers.
        """
        check_topic_name(name)
        if name == OFFSETS_TOPIC and name not in self.topics:
            return self._create_offsets_topic(partitions, validate_only=validate_only)
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        count = self.default_partitions if partitions == -1 else partitions
        factor = self.default_replication_factor if replication_factor == -1 else replication_factor
        if assignments:
            self._check_assignments(assignments)
        elif count <= 0:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{count} partitions: at least 1 is needed")
        elif not 1 <= factor <= len(self.alive):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}: {len(self.alive)} nodes are running",
            )
        self._check_number(name, count)
        check_configs(configs or {})
        topic = Topic(name, self._new_topic_id(), configs or {})
        replicas = [list(nodes) for nodes in assignments] or [self._place(factor) for _ in range(count)]
        self._add_partitions(topic, replicas)
        if not validate_only:
            self.journal.topic_changed(topic)
            self.topics[name] = self.topics_by_id[topic.id] = topic
            self.configured(topic)
            log.info("topic %s: created with %d partitions", name, len(replicas))
        return topic

    def reassign(self, partition: Partition, replicas: Sequence[int]) -> None:
        """Give a partition these replicas; a leader that is none of them hands over to the first.

        Raises Refused(INVALID_REPLICA_ASSIGNMENT).
        """
        self._check_assignments([replicas])
        partition.replicas[:] = replicas
        self.journal.partition_changed(partition)
        if partition.leader not in replicas:
            self.move_leader(partition, replicas[0])

    def _create_offsets_topic(self, partitions: int, *, validate_only: bool) -> Topic:
        """Make `__consumer_offsets` because somebody says so; it is the same as the one that makes itself."""
        if partitions not in (-1, OFFSETS_PARTITIONS):
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{OFFSETS_TOPIC} has {OFFSETS_PARTITIONS} of them")
        return Topic(OFFSETS_TOPIC, uuid.UUID(int=0), {}) if validate_only else self.offsets_topic()

    def create_partitions(
        self,
        topic: Topic,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
    ) -> None:
        """Let a topic have `total` partitions; raises Refused(INVALID_PARTITIONS) if that is not more than
        now.
        """
        if topic.name == OFFSETS_TOPIC:  # a group would live in another partition than its records
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{OFFSETS_TOPIC} keeps its {OFFSETS_PARTITIONS}")
        missing = total - len(topic.partitions)
        if missing <= 0:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name!r} has {len(topic.partitions)} partitions already, {total} are asked for",
            )
        self._check_number(topic.name, missing)
        if assignments:
            self._check_assignments(assignments)
            if len(assignments) != missing:
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{missing} assignments are needed")
        factor = min(len(topic.partitions[0].replicas), len(self.alive))
        replicas = [list(nodes) for nodes in assignments] or [self._place(factor) for _ in range(missing)]
        if not validate_only:
            self._add_partitions(topic, replicas)
            self._keep_new_partitions(topic, missing)
            log.info("topic %s: has %d partitions now", topic.name, total)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records; a new one of the same name gets another id. With `__consumer_offsets` all
        groups go.
        """
        self.journal.topic_deleted(topic)
        del self.topics[topic.name]
        del self.topics_by_id[topic.id]
        log.info("topic %s: deleted", topic.name)
        for partition in topic.partitions:
            partition.deleted = True
            for listener in self._listeners.values():
                listener.partition_changed(partition)
        if topic.name == OFFSETS_TOPIC:
            for number, leader in enumerate(self.offsets_leaders):
                self._coordinate(number, leader, anew=True)

    def configure_topic(self, topic: Topic, configs: Mapping[str, str | None]) -> None:
        """Give a topic settings that `check_configs` has passed in place of those that it had; raises StorageError."""
        before = topic.configs
        topic.configure(configs)
        try:
            self.journal.topic_changed(topic)
        except StorageError:
            topic.configure(before)
            raise
        self.configured(topic)

    def _keep_new_partitions(self, topic: Topic, count: int) -> None:
        try:
            self.journal.topic_changed(topic)
        except StorageError:
            del topic.partitions[-count:]
            raise

    def restore(self, topics: Sequence[Topic], journal: Journal, next_producer_id: int | None) -> None:
        """Take over what a journal kept, before any node is there."""
        self.journal = journal
        for topic in topics:
            self.topics[topic.name] = self.topics_by_id[topic.id] = topic
        self._placed = len(self._partitions())
        if next_producer_id is not None:
            self._next_producer_id = next_producer_id

    def _new_topic_id(self) -> UUID:
        # a cluster that comes back from disk with the seed of before meets the ids of before
        while (topic_id := uuid.UUID(int=self._rng.getrandbits(128), version=4)) in self.topics_by_id:
            pass
        return topic_id

    def _place(self, factor: int) -> list[int]:
        """Replicas for one partition, node after node round the cluster."""
        nodes = sorted(self.alive)
        first = self._placed
        self._placed += 1
        return [nodes[(first + i) % len(nodes)] for i in range(factor)]

    def _check_number(self, topic: str, partitions: int) -> None:
        if partitions > MAX_PARTITIONS:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"topic {topic!r}: {partitions} partitions; at most {MAX_PARTITIONS} are created at once",
            )

    def _check_assignments(self, assignments: Sequence[Sequence[int]]) -> None:
        for nodes in assignments:
            if not nodes or len(set(nodes)) != len(nodes) or not self.alive.issuperset(nodes):
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"replicas {list(nodes)} are not live nodes, each once",
                )

    def _add_partitions(self, topic: Topic, replicas: list[list[int]]) -> None:
        for nodes in replicas:
            leader = next((n for n in nodes if n in self.alive), NO_LEADER)
            topic.add_partition(nodes, leader)

    def _partitions(self) -> list[Partition]:
        """All but those of `__consumer_offsets`, whose leaders are the coordinators of groups."""
        return [
            partition
            for topic in self.topics.values()
            if topic.name != OFFSETS_TOPIC
            for partition in topic.partitions
        ]

    def next_producer_id(self) -> int:
        """A producer id that no other producer has."""
        self._next_producer_id += 1
        self.journal.producer_id_given(self._next_producer_id)
        return self._next_producer_id
