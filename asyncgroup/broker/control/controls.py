"""The synchronous half of `EmbeddedCluster`: inspect and change topics, records, leaders, coordinators and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from asyncgroup.broker.control.faults import Faults
from asyncgroup.broker.control.history import History
from asyncgroup.broker.control.message_fields import topic_names_in
from asyncgroup.broker.control.seeding import SeedRecord, append_records, check_int64
from asyncgroup.broker.control.views import GroupView, view_group
from asyncgroup.broker.groups.requests import CommitRequest, OffsetAndMetadata
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.net.context import RequestContext
from asyncgroup.broker.node import ClusterState
from asyncgroup.broker.storage.retention import Retention
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition

__all__ = ["ClusterControls"]


class ClusterControls:
    """Methods of `EmbeddedCluster` that do not wait: each is one step on the cluster's loop."""

    _shared: ClusterState
    _retention: Retention
    _history: History
    _faults: Faults

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; None means the cluster's default.

        Raise `broker.Refused` with the error code of CreateTopics.
        """
        self._shared.controller.create_topic(
            name,
            -1 if partitions is None else partitions,
            -1 if replication_factor is None else replication_factor,
            configs=configs,
        )

    def create_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to `total`."""
        self._shared.controller.create_partitions(self.topic(name), total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets committed for it."""
        next(iter(self._shared.nodes.values())).delete_topic(self.topic(name))

    def topic(self, name: str) -> Topic:
        """Return a topic with its partitions. Raise UsageError if it does not exist."""
        topic = self._shared.controller.topics.get(name)
        if topic is None:
            raise UsageError(f"no topic {name!r}; the topics are {sorted(self._shared.controller.topics)}")
        return topic

    def partition(self, topic: str, partition: int) -> Partition:
        """Return a partition with its log, leader and replicas. Raise UsageError if it does not exist."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UsageError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the decoded records of a topic, or of one partition, ordered by partition and offset.

        Records of open and aborted transactions are included, transaction markers are not.
        """
        partitions = self.topic(topic).partitions if partition is None else [self.partition(topic, partition)]
        return [record for each in partitions for record in each.log.records()]

    def produce(
        self,
        topic: str,
        *records: SeedRecord,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> list[RecordMetadata]:
        """Append records directly, without a client; return their metadata in the order given.

        A record is its value, or a pair of key and value; text is encoded as UTF-8. Records go to `partition`;
        without it, records with a key go where Java's default partitioner puts them, records without one to the
        partitions in turn. `headers` and `timestamp` (ms since 1970, default: now) apply to all records.

        Raise UsageError for a topic or partition that does not exist or has no leader, ConfigError for an invalid key,
        value or timestamp, AppendError where a Produce request would be refused.
        """
        return append_records(
            self.topic(topic),
            records,
            partition=partition,
            headers=headers,
            timestamp=timestamp,
            now=self._shared.clock(),
            on_append=self._complete_delayed_operations,
        )

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets (next to read) for a group without members: `commit("billing", {("orders", 0): 5})`.

        Raise UsageError if a partition does not exist, the group has members (only they may commit), or no node
        coordinates the group; ConfigError for an invalid offset.
        """
        committed = {}
        for (topic, partition), offset in offsets.items():
            self.partition(topic, partition)
            check_int64("offset", offset)
            committed[TopicPartition(topic, partition)] = OffsetAndMetadata(
                offset, topic_id=self.topic(topic).id
            )
        node = self._shared.nodes.get(self.coordinator(group_id))
        if node is None:
            raise UsageError(f"no node coordinates group {group_id!r}")
        outcomes: list[ErrorCode | dict[TopicPartition, ErrorCode]] = []
        node.coordinator.commit(CommitRequest(group_id=group_id, offsets=committed), outcomes.append)
        if outcomes and isinstance(outcomes[0], ErrorCode) and outcomes[0]:
            members = len(self.group(group_id).members)
            raise UsageError(
                f"cannot commit offsets of group {group_id!r}, which has {members} members: {outcomes[0].name}"
            )

    def apply_retention(self) -> None:
        """Delete the segments beyond `retention.ms` and `retention.bytes` of all topics now.

        See `PartitionLog.delete_old_segments`. Kafka's defaults are seven days and no size limit.
        """
        self._retention.apply()

    def compact(self, topic: str) -> None:
        """Compact a topic now, with any `cleanup.policy`: keep the last record of each key.

        Records from the first open transaction on are not compacted.
        """
        self._retention.compact(self.topic(topic))

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the partition's leader, -1 if it has none."""
        return self.partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a live node the leader of a partition."""
        self._shared.controller.move_leader(self.partition(topic, partition), node_id)

    def truncate(self, topic: str, partition: int, offset: int, leader: int | None = None) -> None:
        """Lose the records from `offset` on, as in an unclean leader election of a replica that lacks them.

        The whole batch that holds `offset` is lost. `leader` is the new leader (default: the present one); its
        leader epoch begins at the new log end offset.
        """
        place = self.partition(topic, partition)
        self._shared.controller.truncate(place, offset, place.leader if leader is None else leader)

    def hold_followers(self, topic: str, partition: int) -> None:
        """Stop replication to a partition's followers: records appended from now on stay above the high watermark.

        Consumers do not see them, and acks=all waits for `release_followers` or fails with REQUEST_TIMED_OUT; so do
        the coordinator's writes to `__consumer_offsets` (COORDINATOR_NOT_AVAILABLE after five seconds). The
        followers stay in the ISR however long it takes (Kafka removes them after `replica.lag.time.max.ms`), and a
        new leader has all records.
        """
        log = self.partition(topic, partition).log
        log.follower_end_offset = log.high_watermark

    def release_followers(self, topic: str, partition: int) -> None:
        """Resume replication to a partition's followers; they catch up at once."""
        place = self.partition(topic, partition)
        place.log.follower_end_offset = None
        self._complete_delayed_operations(place)

    def coordinator(self, group_id: str) -> int:
        """Return the id of the group's coordinator, -1 if it has none."""
        return self._shared.controller.coordinators.group_coordinator(group_id)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group.

        As in Kafka, a whole partition of `__consumer_offsets` moves, including any other groups in it; requests
        parked at the old coordinator get NOT_COORDINATOR.
        """
        self._shared.controller.move_coordinator(group_id, node_id)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the id of the transactional id's coordinator, -1 if it has none."""
        return self._shared.controller.coordinators.transaction_coordinator(transactional_id)

    def move_transaction_coordinator(self, transactional_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a transactional id.

        All other transactional ids in its partition of `__transaction_state` move too.
        """
        self._shared.controller.move_transaction_coordinator(transactional_id, node_id)

    def group(self, group_id: str) -> GroupView:
        """Return a snapshot of a group."""
        node_id = self.coordinator(group_id)
        node = self._shared.nodes.get(node_id)
        group = None if node is None else node.coordinator.groups.get(group_id)
        return view_group(
            group_id, node_id, group, {} if node is None else node.coordinator.offsets(group_id)
        )

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """The known transactional ids and the state of their transactions."""
        return self._shared.transactions.transactions

    @property
    def groups(self) -> list[str]:
        """The ids of all groups that some node coordinates."""
        return sorted(g for node in self._shared.nodes.values() for g in node.coordinator.groups)

    # -- history and faults ----------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The requests and responses so far."""
        return self._history

    @property
    def faults(self) -> Faults:
        """The injected faults: `cluster.faults.on("Fetch", node=1).error(…)`."""
        return self._faults

    def on_unknown_topic(self, call: Callable[[str], object]) -> None:
        """Call `call(name)` whenever a client requests a topic that never existed and is not created."""
        self._shared.on_unknown_topic = call

    def _complete_delayed_operations(self, partition: Partition) -> None:
        next(iter(self._shared.nodes.values())).complete_delayed_operations(partition)

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._shared.controller.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def _topics_of(self, context: RequestContext, request: Any) -> set[str]:
        ids = self._shared.controller.topics_by_id
        found = topic_names_in(request, self._topic_name)
        if context.api == "Fetch" and request.session_epoch > 0:
            for key, _ in self._shared.nodes[context.node_id].fetch_sessions.keys(request.session_id):
                if isinstance(key, str):
                    found.add(key)
                elif key in ids:
                    found.add(ids[key].name)
        return found
