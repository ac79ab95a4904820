"""What one node's group coordinator needs of the cluster: `__consumer_offsets`, and the topics that groups subscribe to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.groups.consumer.topics import TopicFacts
from asyncgroup.broker.log.batch_validator import ValidBatch, check_size
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import OFFSETS_TOPIC, Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire.batch_view import BatchView, iter_batches
from asyncgroup.wire.primitives import Buffer

__all__ = ["ClusterTopics", "OffsetsTopic"]

log = logging.getLogger(__name__)

_LOAD_BYTES: Final = 5 << 20
"""Kafka's default of `offsets.load.buffer.size`."""

_COMPACTED_BYTES: Final = 1 << 18
"""Size in bytes below which a log is not compacted; compacting one of this size takes some 10 ms."""


class OffsetsTopic:
    """Implements `OffsetsLog` on the cluster's logs.

    `on_append` is called with each partition appended to; `clock` is in ms.

    A log is compacted as soon as it is twice as large as after its last compaction: the segments that Kafka's
    cleaner waits for (100 MB) would never fill in a test, and the log would grow with every commit.
    """

    def __init__(
        self,
        node_id: int,
        controller: Controller,
        on_append: Callable[[Partition], None],
        clock: Callable[[], int],
        *,
        compacted_bytes: int = _COMPACTED_BYTES,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._on_append = on_append
        self._clock = clock
        self._compacted_bytes = compacted_bytes
        self._compacted_sizes: dict[int, int] = {}  # size in bytes after the last compaction, by partition

    def __repr__(self) -> str:
        return f"<OffsetsTopic of node {self._node_id}>"

    def exists(self) -> bool:
        """Return whether the topic has been created."""
        return OFFSETS_TOPIC in self._controller.topics

    def read(self, partition: int) -> Iterator[Buffer]:
        """Yield all record batches of a partition, some megabytes at a time."""
        if not self.exists():
            return
        kept = self._controller.offsets_topic().partitions[partition].log
        offset = kept.start_offset
        while offset < kept.end_offset:
            data = kept.read(offset, _LOAD_BYTES, at_least_one=True)
            yield data
            offset = max((batch.next_offset for batch in iter_batches(data)), default=kept.end_offset)

    def append(self, partition: int, batch: bytes) -> int:
        """Append a record batch that the coordinator has built, and return its base offset; only its size is checked.

        Raise Refused: NOT_LEADER_OR_FOLLOWER, MESSAGE_TOO_LARGE, and what `PartitionLog.append` raises.
        """
        place = self._controller.offsets_topic().partitions[partition]
        if place.leader != self._node_id:
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(place.leader, place.leader_epoch))
        written = BatchView(batch)
        check_size(written, place.config.max_message_bytes)
        base_offset = place.log.append(
            ValidBatch(written), place.leader_epoch, by_coordinator=True
        ).base_offset
        if place.log.size > max(self._compacted_bytes, 2 * self._compacted_sizes.get(partition, 0)):
            self._compact(place)
        self._on_append(place)
        return base_offset

    def end_offset(self, partition: int) -> int:
        """Return the log end offset: the base offset of the next batch."""
        return self._controller.offsets_topic().partitions[partition].log.end_offset

    def high_watermark(self, partition: int) -> int:
        """Return the high watermark: the offset up to which all replicas have the log."""
        return self._controller.offsets_topic().partitions[partition].log.high_watermark

    def _compact(self, place: Partition) -> None:
        try:
            place.log.compact(self._clock(), place.config.delete_retention_ms)
        except AsyncGroupError as error:  # not raised: the append itself has succeeded
            log.error("compacting %s-%d failed: %s", place.topic, place.index, error)
        self._compacted_sizes[place.index] = place.log.size


class ClusterTopics:
    """Implements `TopicsImage` on the cluster's metadata."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def __repr__(self) -> str:
        return f"<ClusterTopics {len(self._controller.topics)}>"

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""
        return self._controller.topics

    def find(self, name: str) -> TopicFacts | None:
        """Return a topic by its name, None if it does not exist."""
        topic = self._controller.topics.get(name)
        return None if topic is None else TopicFacts(topic.id, len(topic.partitions))

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, None if it does not exist."""
        topic = self._controller.topics_by_id.get(topic_id)
        return None if topic is None else topic.name
