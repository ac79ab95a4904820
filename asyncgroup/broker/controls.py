"""What a running cluster holds, to be looked at and changed by hand: topics, records, leaders, coordinators, groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.coordinator.requests import CommitRequest, OffsetAndMetadata
from asyncgroup.broker.faults import Faults
from asyncgroup.broker.history import History
from asyncgroup.broker.named import topics_of
from asyncgroup.broker.node import Shared
from asyncgroup.broker.retention import Retention
from asyncgroup.broker.seeding import Seed, append_records, check_long
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.views import GroupView, view_group
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition

__all__ = ["ClusterControls"]


class ClusterControls:
    """The part of `EmbeddedCluster` that needs no waiting: every method is one step on the cluster's loop."""

    _shared: Shared
    _retention: Retention

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; None takes the cluster's default. Raises `broker.Refused` as CreateTopics would."""
        self._shared.controller.create_topic(
            name,
            -1 if partitions is None else partitions,
            -1 if replication_factor is None else replication_factor,
            configs=configs,
        )

    def create_partitions(self, name: str, total: int) -> None:
        """Let a topic have `total` partitions, more than now."""
        self._shared.controller.create_partitions(self.topic(name), total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets committed for it."""
        next(iter(self._shared.nodes.values())).delete_topic(self.topic(name))

    def topic(self, name: str) -> Topic:
        """A topic with its partitions; UsageError if it does not exist."""
        topic = self._shared.controller.topics.get(name)
        if topic is None:
            raise UsageError(f"no topic {name!r}; these are: {sorted(self._shared.controller.topics)}")
        return topic

    def partition(self, topic: str, partition: int) -> Partition:
        """A partition with its log, leader and replicas; UsageError if it does not exist."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UsageError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """All records of a topic, or of one partition, decoded; partition after partition, by offset.

        Those of open and aborted transactions are among them, transaction markers are not.
        """
        partitions = self.topic(topic).partitions if partition is None else [self.partition(topic, partition)]
        return [record for each in partitions for record in each.log.records()]

    def produce(
        self,
        topic: str,
        *records: Seed,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> list[RecordMetadata]:
        """Append records to a topic at once, without a client; returns where they went, in their order.

        A record is its value, or a pair of key and value; text is encoded as UTF-8. They go to `partition`, or else those
        with a key where Java's default partitioner puts it, those without to the partitions in turn. `headers` and
        `timestamp` (ms since 1970, default: now) are those of all of them.

        Raises UsageError for a topic or partition that does not exist or has no leader, ConfigError for a key, value or
        timestamp that cannot be, and AppendError as a producer's request would be refused.
        """
        return append_records(
            self.topic(topic),
            records,
            partition=partition,
            headers=headers,
            timestamp=timestamp,
            now=self._shared.clock(),
            appended=self._appended,
        )

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets (the next ones to read) of a group that has no members: `commit("billing", {("orders", 0): 5})`.

        Raises UsageError for a partition that does not exist, for a group with members, whose offsets only they commit,
        and if no node coordinates the group; ConfigError for an offset that cannot be.
        """
        committed = {}
        for (topic, partition), offset in offsets.items():
            self.partition(topic, partition)
            check_long("offset", offset)
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
                f"offsets of group {group_id!r}, which has {members} members: {outcomes[0].name}"
            )

    def apply_retention(self) -> None:
        """Delete now what `retention.ms` and `retention.bytes` of all topics (Kafka's defaults: seven days, no limit)
        don't keep: whole segments, see `PartitionLog.retain`.
        """
        self._retention.apply()

    def compact(self, topic: str) -> None:
        """Compact a topic now, whatever its `cleanup.policy`: of each key the last record stays; an open transaction and
        what is behind its beginning is left alone.
        """
        self._retention.compact(self.topic(topic))

    # -- leaders and coordinators ----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """The id of the node that leads a partition, -1 if none does."""
        return self.partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a live node the leader of a partition."""
        self._shared.controller.move_leader(self.partition(topic, partition), node_id)

    def truncate(self, topic: str, partition: int, offset: int, leader: int | None = None) -> None:
        """Lose the records from `offset` on, as when a replica that lacks them becomes the leader (an unclean election).

        The batch that holds `offset` goes whole. `leader` is the new leader (default: the present one), whose leader
        epoch begins at the log's new end.
        """
        place = self.partition(topic, partition)
        self._shared.controller.truncate(place, offset, place.leader if leader is None else leader)

    def hold_followers(self, topic: str, partition: int) -> None:
        """Let the followers of a partition stand still: what is written from now on stays behind the high watermark.

        Consumers don't see it, and acks=all waits for `release_followers`, or is answered REQUEST_TIMED_OUT. So do coordinators that
        write to `__consumer_offsets` (COORDINATOR_NOT_AVAILABLE after five seconds). The followers stay in sync however
        long it takes (Kafka would drop them after `replica.lag.time.max.ms`), and a new leader has all records.
        """
        log = self.partition(topic, partition).log
        log.held_at = log.high_watermark

    def release_followers(self, topic: str, partition: int) -> None:
        """Let the followers of a partition catch up."""
        place = self.partition(topic, partition)
        place.log.held_at = None
        self._appended(place)

    def coordinator(self, group_id: str) -> int:
        """The id of the node that coordinates a group, -1 if none does."""
        return self._shared.controller.coordinators.of_group(group_id)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a group.

        As in Kafka a whole partition of `__consumer_offsets` moves, with any other groups in it; requests
        parked at the old coordinator are answered NOT_COORDINATOR.
        """
        self._shared.controller.move_coordinator(group_id, node_id)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """The id of the node that coordinates the transactions of a transactional id, -1 if none does."""
        return self._shared.controller.coordinators.of_transaction(transactional_id)

    def move_transaction_coordinator(self, transactional_id: str, node_id: int) -> None:
        """Make a live node the coordinator of a transactional id, with any others in its partition of
        `__transaction_state`.
        """
        self._shared.controller.move_transaction_coordinator(transactional_id, node_id)

    def group(self, group_id: str) -> GroupView:
        """A picture of a group as it is now."""
        node_id = self.coordinator(group_id)
        node = self._shared.nodes.get(node_id)
        group = None if node is None else node.coordinator.groups.get(group_id)
        return view_group(
            group_id, node_id, group, {} if node is None else node.coordinator.offsets(group_id)
        )

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """The transactional ids that were used, with the state of their transactions."""
        return self._shared.transactions.transactions

    @property
    def groups(self) -> list[str]:
        """The ids of all groups that some node coordinates."""
        return sorted(g for node in self._shared.nodes.values() for g in node.coordinator.groups)

    # -- watching and disturbing -----------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """What was asked and answered so far."""
        return self._shared.history

    @property
    def faults(self) -> Faults:
        """What should go wrong: `cluster.faults.on("Fetch", node=1).error(…)`."""
        return self._shared.faults

    def on_unknown_topic(self, call: Callable[[str], object]) -> None:
        """Call `call(name)` from now on when a client asks for a topic that never existed and is not created either."""
        self._shared.on_unknown_topic = call

    def _appended(self, partition: Partition) -> None:
        next(iter(self._shared.nodes.values())).appended(partition)

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._shared.controller.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def _topics_of(self, context: RequestContext, request: Any) -> set[str]:
        ids = self._shared.controller.topics_by_id
        found = topics_of(request, self._topic_name)
        if context.api == "Fetch" and request.session_epoch > 0:
            for key, _ in self._shared.nodes[context.node_id].fetch_sessions.keys(request.session_id):
                if isinstance(key, str):
                    found.add(key)
                elif key in ids:
                    found.add(ids[key].name)
        return found
