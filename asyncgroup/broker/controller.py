"""The cluster's metadata: topics, which nodes are alive, who leads what.

Every change is one synchronous step: the metadata is right for all nodes at once, and each node hears of what
concerns it through `Listener`. So there is no stale metadata between nodes, which real brokers have for
moments.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from asyncgroup.broker.coordination import Coordinators
from asyncgroup.broker.errors import Refused, StorageError
from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS, new_offsets_topic
from asyncgroup.broker.journal import Journal, NoJournal
from asyncgroup.broker.listener import Listener
from asyncgroup.broker.placement import Placement, check_number
from asyncgroup.broker.quotas import ClientQuotas, Entity
from asyncgroup.broker.scram_users import ScramUsers, credential_record
from asyncgroup.broker.settings import BROKER, Settings
from asyncgroup.broker.topic_configs import check_configs
from asyncgroup.broker.topics import (
    NO_LEADER,
    OFFSETS_TOPIC,
    Partition,
    Topic,
    check_collisions,
    check_topic_name,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.escaping import escaping_logger
from asyncgroup.wire.scram import ScramCredential

__all__ = ["Controller"]

log = escaping_logger(__name__)


class Controller:
    """Holds the metadata and changes it; who coordinates what is in `coordinators`."""

    def __init__(
        self,
        node_ids: Sequence[int],
        rng: random.Random,
        *,
        default_partitions: int,
        default_replication_factor: int,
        settings: Settings | None = None,
    ) -> None:
        self.cluster_id = uuid.UUID(int=rng.getrandbits(128), version=4).hex[:22]
        self.node_ids = tuple(node_ids)
        self.alive: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.deleted_names: set[str] = set()
        """The names of topics that were deleted."""
        self.topics_by_id: dict[UUID, Topic] = {}
        self.default_partitions = default_partitions
        self.default_replication_factor = default_replication_factor
        self.settings = settings or Settings()
        self.scram_users = ScramUsers()
        self.quotas = ClientQuotas()
        self._rng = rng
        self._listeners: dict[int, Listener] = {}
        self.coordinators = Coordinators(self.topics, self._listeners, self._lead)
        self.journal: Journal = NoJournal()
        self.configured: Callable[[Topic], None] = lambda _topic: None
        """Told of topics that are new or have other settings."""
        self._next_producer_id = 1000
        self._placement = Placement(self.alive)

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
        self.coordinators.node_up(node_id)

    def node_down(self, node_id: int) -> None:
        """A node is gone without a word: leaders and coordinators move to nodes that are alive."""
        self.alive.discard(node_id)
        self._listeners.pop(node_id, None)
        led = [partition for partition in self._partitions() if partition.leader == node_id]
        if led and self.alive:
            log.info("node %d is gone: %d partitions get other leaders", node_id, len(led))
        for partition in led:
            self._lead(partition, next((r for r in partition.replicas if r in self.alive), NO_LEADER))
        self.coordinators.node_down(node_id, self.alive)

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def move_leader(self, partition: Partition, node_id: int) -> None:
        """Make a live node the leader, and a replica if it was none."""
        self._check_alive(node_id)
        if partition.topic == OFFSETS_TOPIC:
            self.coordinators.move_offsets(partition.index, node_id, anew=True)
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
        if self.settings.nodes and partition.topic in self.topics:
            self._apply_settings(self.topics[partition.topic], [partition])
        self.journal.partition_changed(partition)
        for listener in self._listeners.values():
            listener.partition_changed(partition)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group, and of all others in its partition of
        `__consumer_offsets`.
        """
        self._check_alive(node_id)
        self.coordinators.move_offsets(self.coordinators.offsets_partition(group_id), node_id)

    def move_transaction_coordinator(self, transactional_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a transactional id, and of all others in its partition."""
        self._check_alive(node_id)
        self.coordinators.move_transaction(transactional_id, node_id)

    def offsets_topic(self) -> Topic:
        """`__consumer_offsets`. It is made when somebody first needs it, as in Kafka, which looks for a coordinator then
        (`AutoTopicCreationManager`).
        """
        found = self.topics.get(OFFSETS_TOPIC)
        if found is not None:
            return found
        topic = new_offsets_topic(self.cluster_id, self.node_ids, self.coordinators.offsets_leaders)
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
        check_collisions(name, self.topics)
        count = self.default_partitions if partitions == -1 else partitions
        factor = self.default_replication_factor if replication_factor == -1 else replication_factor
        if assignments:
            self._placement.check(assignments)
        elif count <= 0:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{count} partitions: at least 1 is needed")
        else:
            self._placement.check_factor(factor)
        check_number(name, count)
        check_configs(configs or {})
        topic = Topic(name, uuid.UUID(int=self._rng.getrandbits(128), version=4), configs or {})
        replicas = self._placement.replicas(count, factor, assignments)
        self._add_partitions(topic, replicas)
        self._apply_settings(topic)
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
        self._placement.check([replicas])
        partition.replicas[:] = replicas
        self.journal.partition_changed(partition)
        if partition.leader not in replicas:
            self.move_leader(partition, replicas[0])

    def _create_offsets_topic(self, partitions: int, *, validate_only: bool) -> Topic:
        """Make `__consumer_offsets` because somebody says so; it is the same as the one that makes itself."""
        if partitions not in (-1, OFFSETS_PARTITIONS):
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{OFFSETS_TOPIC} has {OFFSETS_PARTITIONS} of them")
        if validate_only:
            return new_offsets_topic(self.cluster_id, self.node_ids, self.coordinators.offsets_leaders)
        return self.offsets_topic()

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
        check_number(topic.name, missing)
        if assignments:
            self._placement.check(assignments)
            if len(assignments) != missing:
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{missing} assignments are needed")
        factor = min(len(topic.partitions[0].replicas), len(self.alive))
        replicas = self._placement.replicas(missing, factor, assignments)
        if not validate_only:
            self._add_partitions(topic, replicas)
            self._apply_settings(topic)
            self._keep_new_partitions(topic, missing)
            log.info("topic %s: has %d partitions now", topic.name, total)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records; a new one of the same name gets another id. With `__consumer_offsets` all
        groups go.
        """
        self.journal.topic_deleted(topic)
        del self.topics[topic.name]
        self.deleted_names.add(topic.name)
        del self.topics_by_id[topic.id]
        log.info("topic %s: deleted", topic.name)
        for partition in topic.partitions:
            partition.deleted = True
            for listener in self._listeners.values():
                listener.partition_changed(partition)
        if topic.name == OFFSETS_TOPIC:
            self.coordinators.forget_groups()

    def configure_topic(self, topic: Topic, configs: Mapping[str, str | None]) -> None:
        """Give a topic settings that `check_configs` has passed in place of those that it had; raises StorageError."""
        before = topic.configs
        topic.configure(configs)
        self._apply_settings(topic)
        try:
            self.journal.topic_changed(topic)
        except StorageError:
            topic.configure(before)
            self._apply_settings(topic)
            raise
        self.configured(topic)

    def alter_settings(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Give a broker, all of them ("") or a group settings that `Settings.check` has passed; raises StorageError."""
        self.journal.resource_changed(
            "settings", (kind, name), {"configs": dict(configs)} if configs else None
        )
        self.settings.put(kind, name, configs)
        if kind == BROKER:
            for topic in self.topics.values():
                self._apply_settings(topic)
                self.configured(topic)

    def alter_scram_user(self, mechanism: str, user: str, credential: ScramCredential | None) -> None:
        """Create, replace or delete (None) a user's credential; raises StorageError."""
        self.journal.resource_changed("scram", (mechanism, user), credential_record(credential))
        if credential is None:
            self.scram_users.remove(mechanism, user)
        else:
            self.scram_users.put(mechanism, user, credential)

    def alter_quotas(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Give clients quotas that `ClientQuotas.altered` has passed; raises StorageError."""
        kept = {"values": dict(values)} if values else None
        self.journal.resource_changed("quota", [json.dumps(entity)], kept)
        self.quotas.put(entity, values)

    def _apply_settings(self, topic: Topic, partitions: Sequence[Partition] | None = None) -> None:
        """Let the brokers' settings hold for what a topic does not say itself."""
        for partition in topic.partitions if partitions is None else partitions:
            partition.configure(self.settings.log_config(topic.configs, partition.leader))

    def _keep_new_partitions(self, topic: Topic, count: int) -> None:
        try:
            self.journal.topic_changed(topic)
        except StorageError:
            del topic.partitions[-count:]
            raise

    def restore(
        self, topics: Sequence[Topic], journal: Journal, next_producer_id: int | None, *, life: int = 1
    ) -> None:
        """Take over what a journal kept, before any node is there; this is the cluster's `life`th life, counted from 1."""
        self.journal = journal
        if life > 1:  # the seed of before must not lead to the ids of before
            self._rng.seed(f"{self._rng.getrandbits(64)} in life {life}")
        for topic in topics:
            self.topics[topic.name] = self.topics_by_id[topic.id] = topic
            self._apply_settings(topic)
            self.configured(topic)
        self._placement.placed = len(self._partitions())
        if next_producer_id is not None:
            self._next_producer_id = next_producer_id

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
        """A producer id that no other producer has. Raises StorageError."""
        producer_id = self._next_producer_id + 1
        self.journal.producer_id_given(producer_id)
        self._next_producer_id = producer_id
        return producer_id
