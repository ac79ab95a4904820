"""The controller: the cluster's metadata (topics, live nodes, leaders) and all changes to it.

Every change is one synchronous step and is visible to all nodes at once; nodes are notified through `MetadataListener`.
Unlike in a real cluster, no node ever has stale metadata.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from asyncgroup.broker.errors import KafkaStorageError, Refused
from asyncgroup.broker.log.topic_configs import check_configs
from asyncgroup.broker.metadata.config_repository import BROKER, ConfigRepository
from asyncgroup.broker.metadata.coordinator_election import CoordinatorElection
from asyncgroup.broker.metadata.features import ClusterFeatures
from asyncgroup.broker.metadata.journal import Journal, MetadataListener
from asyncgroup.broker.metadata.quotas import ClientQuotas, QuotaEntity
from asyncgroup.broker.metadata.replicas import ReplicaPlacer, check_partition_count
from asyncgroup.broker.metadata.scram_users import ScramCredential, ScramUsers, credential_record
from asyncgroup.broker.metadata.topics import (
    NO_LEADER,
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    Partition,
    Topic,
    check_collisions,
    check_topic_name,
    new_offsets_topic,
)
from asyncgroup.counting import counted
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.escaping import escaping_logger

__all__ = ["Controller"]

log = escaping_logger(__name__)


class Controller:
    """The cluster's metadata and the operations that change it; `coordinators` elects the coordinators."""

    def __init__(
        self,
        node_ids: Sequence[int],
        rng: random.Random,
        *,
        default_partitions: int,
        default_replication_factor: int,
        settings: ConfigRepository | None = None,
        features: ClusterFeatures | None = None,
    ) -> None:
        self.cluster_id = uuid.UUID(int=rng.getrandbits(128), version=4).hex[:22]
        self.node_ids = tuple(node_ids)
        self.alive: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.deleted_names: set[str] = set()
        """Names of deleted topics."""
        self.topics_by_id: dict[UUID, Topic] = {}
        self.default_partitions = default_partitions
        self.default_replication_factor = default_replication_factor
        self.configs = settings or ConfigRepository()
        self.features = features or ClusterFeatures()
        self.scram_users = ScramUsers()
        self.quotas = ClientQuotas()
        self._rng = rng
        self._listeners: dict[int, MetadataListener] = {}
        self.coordinators = CoordinatorElection(self.topics, self._listeners, self._elect_leader)
        self.journal: Journal = Journal()
        self.configs_changed: Callable[[Topic], None] = lambda _topic: None
        """Called with each topic that is created, restored or gets new configs."""
        self._last_producer_id = 1000  # of those allocated or reserved
        self._replica_placer = ReplicaPlacer(self.alive)

    def __repr__(self) -> str:
        return f"<Controller nodes={sorted(self.alive)} of {list(self.node_ids)} topics={len(self.topics)}>"

    @property
    def controller_id(self) -> int:
        """The node that Metadata names as controller; as with KRaft, every node accepts controller requests."""
        return min(self.alive, default=-1)

    # -- nodes -----------------------------------------------------------------------------------------------

    def node_up(self, node_id: int, listener: MetadataListener) -> None:
        """Add a started node; it becomes leader of its partitions that have none, other leaders stay."""
        self.alive.add(node_id)
        self._listeners[node_id] = listener
        for partition in self._partitions():
            if partition.leader == NO_LEADER and node_id in partition.replicas:
                self._elect_leader(partition, node_id)
        self.coordinators.node_up(node_id)

    def node_down(self, node_id: int) -> None:
        """Remove a stopped node; leaders and coordinators on it move to live nodes."""
        self.alive.discard(node_id)
        # first: a stopped node is notified of nothing
        self._listeners.pop(node_id, None)
        led = [partition for partition in self._partitions() if partition.leader == node_id]
        if led and self.alive:
            moving = counted(len(led), "partition gets a new leader", "partitions get new leaders")
            log.info("node %d stopped: %s", node_id, moving)
        for partition in led:
            self._elect_leader(partition, next((r for r in partition.replicas if r in self.alive), NO_LEADER))
        self.coordinators.node_down(node_id, self.alive)

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def move_leader(self, partition: Partition, node_id: int) -> None:
        """Make a live node the leader, adding it to the replicas if necessary."""
        self._check_alive(node_id)
        if partition.topic == OFFSETS_TOPIC:
            self.coordinators.move_offsets_leader(partition.index, node_id, force=True)
            return
        if node_id not in partition.replicas:
            partition.replicas.append(node_id)
        self._elect_leader(partition, node_id)

    def truncate(self, partition: Partition, offset: int, node_id: int) -> None:
        """Drop the records from `offset` on, then make a live node the leader."""
        self._check_alive(node_id)
        partition.log.truncate(offset)
        self.move_leader(partition, node_id)

    def _elect_leader(self, partition: Partition, node_id: int) -> None:
        if partition.leader in self.alive:  # otherwise `node_down` has logged all its partitions in one line
            place = f"{partition.topic}-{partition.index}"
            log.info("partition %s: leader %d -> %d", place, partition.leader, node_id)
        partition.set_leader(node_id)
        # configs of a broker hold for the partitions that it leads
        if self.configs.nodes and partition.topic in self.topics:
            self._apply_configs(self.topics[partition.topic], [partition])
        self.journal.partition_changed(partition)
        for listener in self._listeners.values():
            listener.partition_changed(partition)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group and of all others in its `__consumer_offsets` partition."""
        self._check_alive(node_id)
        self.coordinators.move_offsets_leader(self.coordinators.offsets_partition(group_id), node_id)

    def move_transaction_coordinator(self, transactional_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a transactional id, and of all others in its partition."""
        self._check_alive(node_id)
        self.coordinators.move_transaction(transactional_id, node_id)

    def offsets_topic(self) -> Topic:
        """Return `__consumer_offsets`, created on first use as by Kafka's `AutoTopicCreationManager`."""
        found = self.topics.get(OFFSETS_TOPIC)
        if found is not None:
            return found
        topic = new_offsets_topic(self.cluster_id, self.node_ids, self.coordinators.offsets_leaders)
        self.journal.topic_changed(topic)
        self.topics[OFFSETS_TOPIC] = self.topics_by_id[topic.id] = topic
        return topic

    def _check_alive(self, node_id: int) -> None:
        if node_id not in self.alive:
            raise UsageError(f"node {node_id} is not running; the running nodes are {sorted(self.alive)}")

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
        """Create a topic; -1 means the cluster's default. `assignments` are the replicas of each partition.

        Raise Refused with the error code of CreateTopics.
        """
        check_topic_name(name)
        if name == OFFSETS_TOPIC and name not in self.topics:
            return self._create_offsets_topic(partitions, validate_only=validate_only)
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        check_collisions(name, self.topics)
        check_configs(configs or {})  # before the numbers, as Kafka does
        count = self.default_partitions if partitions == -1 else partitions
        factor = self.default_replication_factor if replication_factor == -1 else replication_factor
        if assignments:
            if (partitions, replication_factor) != (-1, -1):
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    "with assignments, num_partitions and replication_factor must be -1",
                )
            self._replica_placer.check_assignments(assignments)
        else:
            self._replica_placer.check_numbers(count, factor)
        check_partition_count(name, count)
        topic = Topic(name, uuid.UUID(int=self._rng.getrandbits(128), version=4), configs or {})
        replicas = self._replica_placer.replicas(count, factor, assignments)
        self._add_partitions(topic, replicas)
        self._apply_configs(topic)
        if not validate_only:
            # first: what cannot be stored was not created
            self.journal.topic_changed(topic)
            self.topics[name] = self.topics_by_id[topic.id] = topic
            self.configs_changed(topic)
            log.info("topic %s: created with %s", name, counted(len(replicas), "partition"))
        return topic

    def reassign(self, partition: Partition, replicas: Sequence[int]) -> None:
        """Replace a partition's replicas; if the leader is not among them, the first replica becomes leader.

        Raise Refused(INVALID_REPLICA_ASSIGNMENT).
        """
        self._replica_placer.check_assignments([replicas])
        partition.replicas[:] = replicas
        self.journal.partition_changed(partition)
        if partition.leader not in replicas:
            self.move_leader(partition, replicas[0])

    def _create_offsets_topic(self, partitions: int, *, validate_only: bool) -> Topic:
        """Create `__consumer_offsets` on request; it is the same topic as the one created on first use."""
        if partitions not in (-1, OFFSETS_PARTITIONS):
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions; {OFFSETS_TOPIC} always has {OFFSETS_PARTITIONS}",
            )
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
        """Increase a topic's partitions to `total`. Raise Refused(INVALID_PARTITIONS) if it has as many already."""
        if topic.name == OFFSETS_TOPIC:
            # groups would hash to other partitions than the ones with their records
            raise Refused(
                ErrorCode.INVALID_PARTITIONS, f"{OFFSETS_TOPIC} always has {OFFSETS_PARTITIONS} partitions"
            )
        missing = total - len(topic.partitions)
        if missing <= 0:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name!r} already has {len(topic.partitions)} partitions; {total} are requested",
            )
        check_partition_count(topic.name, missing)
        if assignments:
            self._replica_placer.check_assignments(assignments)
            if len(assignments) != missing:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(assignments)} assignments for {missing} new partitions",
                )
        # fewer nodes may run than when the topic was created
        factor = min(len(topic.partitions[0].replicas), len(self.alive))
        replicas = self._replica_placer.replicas(missing, factor, assignments)
        if not validate_only:
            self._add_partitions(topic, replicas)
            self._apply_configs(topic)
            self._keep_new_partitions(topic, missing)
            log.info("topic %s: now has %s", topic.name, counted(total, "partition"))

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records. Deleting `__consumer_offsets` deletes all groups."""
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
            self.coordinators.reset_groups()

    def configure_topic(self, topic: Topic, configs: Mapping[str, str | None]) -> None:
        """Replace a topic's configs; `check_configs` must have passed. Raise KafkaStorageError."""
        before = topic.configs
        topic.configure(configs)
        self._apply_configs(topic)
        try:
            self.journal.topic_changed(topic)
        except KafkaStorageError:
            topic.configure(before)
            self._apply_configs(topic)
            raise
        self.configs_changed(topic)

    def alter_configs(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Replace the dynamic configs of a broker, all brokers ("") or a group.

        `ConfigRepository.check` must have passed. Raise KafkaStorageError.
        """
        self.journal.resource_changed(
            "settings", (kind, name), {"configs": dict(configs)} if configs else None
        )
        self.configs.put(kind, name, configs)
        if kind == BROKER:
            for topic in self.topics.values():
                self._apply_configs(topic)
                self.configs_changed(topic)

    def update_features(self, levels: Mapping[str, int]) -> None:
        """Change the levels of features; `ClusterFeatures.problem` must have passed. Raise KafkaStorageError."""
        changed = {name: level for name, level in levels.items() if level != self.features.level(name)}
        if not changed:
            return
        # one record for all, so that no crash and no disk error separates them
        levels = {**self.features.changed, **changed}
        self.journal.resource_changed("features", (), {"levels": levels, "epoch": self.features.epoch + 1})
        self.features.change(changed)
        log.info("features: %r", self.features)

    def alter_scram_user(self, mechanism: str, user: str, credential: ScramCredential | None) -> None:
        """Create, replace or delete (None) a user's credential. Raise KafkaStorageError."""
        self.journal.resource_changed("scram", (mechanism, user), credential_record(credential))
        if credential is None:
            self.scram_users.remove(mechanism, user)
        else:
            self.scram_users.put(mechanism, user, credential)

    def alter_quotas(self, entity: QuotaEntity, values: Mapping[str, float]) -> None:
        """Replace the quotas of an entity; `ClientQuotas.merged` must have passed. Raise KafkaStorageError."""
        kept = {"values": dict(values)} if values else None
        self.journal.resource_changed("quota", [json.dumps(entity)], kept)
        self.quotas.put(entity, values)

    def _apply_configs(self, topic: Topic, partitions: Sequence[Partition] | None = None) -> None:
        """Configure a topic's partitions from its own configs and, for those it does not set, the brokers' defaults."""
        for partition in topic.partitions if partitions is None else partitions:
            partition.configure(self.configs.log_config(topic.configs, partition.leader))

    def _keep_new_partitions(self, topic: Topic, count: int) -> None:
        try:
            self.journal.topic_changed(topic)
        except KafkaStorageError:
            del topic.partitions[-count:]
            raise

    def restore(
        self, topics: Sequence[Topic], journal: Journal, next_producer_id: int | None, *, start_count: int = 1
    ) -> None:
        """Take over the stored metadata before any node starts.

        `start_count` counts the cluster's starts, this included.
        """
        self.journal = journal
        if start_count > 1:  # a restart with the same seed must not generate the same ids again
            self._rng.seed(f"{self._rng.getrandbits(64)} in life {start_count}")
        for topic in topics:
            self.topics[topic.name] = self.topics_by_id[topic.id] = topic
            self._apply_configs(topic)
            self.configs_changed(topic)
        self._replica_placer.placed = len(self._partitions())
        if next_producer_id is not None:
            self._last_producer_id = next_producer_id

    def _add_partitions(self, topic: Topic, replicas: list[list[int]]) -> None:
        for nodes in replicas:
            leader = next((n for n in nodes if n in self.alive), NO_LEADER)
            topic.add_partition(nodes, leader)

    def _partitions(self) -> list[Partition]:
        """Return all partitions except those of `__consumer_offsets`, whose leaders `coordinators` elects."""
        return [
            partition
            for topic in self.topics.values()
            if topic.name != OFFSETS_TOPIC
            for partition in topic.partitions
        ]

    def next_producer_id(self) -> int:
        """Return a new, unique producer id. Raise KafkaStorageError."""
        producer_id = self._last_producer_id + 1
        self.journal.producer_id_allocated(producer_id)
        self._last_producer_id = producer_id
        return producer_id
