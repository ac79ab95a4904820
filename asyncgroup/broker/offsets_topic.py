"""`__consumer_offsets` as one node has it: what the group coordinator's store reads and appends to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.topics import OFFSETS_TOPIC, Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import iter_batch_headers

__all__ = ["OffsetsTopic"]

log = logging.getLogger(__name__)

_LOAD_BYTES: Final = 5 << 20
"""Kafka's default of `offsets.load.buffer.size`."""

_COMPACTED_BYTES: Final = 1 << 18
"""A log that is smaller is not worth the work; compacting one of this size takes some 10 ms."""


class OffsetsTopic:
    """An `OffsetsLog` over the cluster's logs; `appended` is told of each partition that got a batch, `clock` gives ms.

    A log that has become twice as large as what compaction left of it is compacted at once: the segments that Kafka's
    cleaner waits for (100 MB) would never fill in a test, and the log would grow with every commit.
    """

    def __init__(
        self,
        node_id: int,
        controller: Controller,
        appended: Callable[[Partition], None],
        clock: Callable[[], int],
        *,
        compacted_bytes: int = _COMPACTED_BYTES,
    ) -> None:
        self._node_id, self._controller, self._appended = node_id, controller, appended
        self._clock, self._compacted_bytes = clock, compacted_bytes
        self._left: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<OffsetsTopic of node {self._node_id}>"

    def exists(self) -> bool:
        """Whether there is such a topic by now."""
        return OFFSETS_TOPIC in self._controller.topics

    def read(self, partition: int) -> Iterator[Buffer]:
        """All whole record batches of a partition, in pieces."""
        if not self.exists():
            return
        kept = self._controller.offsets_topic().partitions[partition].log
        offset = kept.start_offset
        while offset < kept.end_offset:
            data = kept.read(offset, _LOAD_BYTES, at_least_one=True)
            yield data
            offset = max((header.next_offset for header in iter_batch_headers(data)), default=kept.end_offset)

    def append(self, partition: int, batch: bytes) -> int:
        """Append a record batch and give its base offset; raises Refused, NOT_LEADER_OR_FOLLOWER for instance."""
        place = self._controller.offsets_topic().partitions[partition]
        if place.leader != self._node_id:
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(place.leader, place.leader_epoch))
        base_offset = place.log.append(batch, place.leader_epoch, by_coordinator=True).base_offset
        if place.log.size > max(self._compacted_bytes, 2 * self._left.get(partition, 0)):
            self._compact(place)
        self._appended(place)
        return base_offset

    def end_offset(self, partition: int) -> int:
        """Where the next batch will be."""
        return self._controller.offsets_topic().partitions[partition].log.end_offset

    def high_watermark(self, partition: int) -> int:
        """The offset up to which all replicas have the log."""
        return self._controller.offsets_topic().partitions[partition].log.high_watermark

    def _compact(self, place: Partition) -> None:
        try:
            place.log.compact(self._clock(), place.config.delete_retention_ms)
        except AsyncGroupError as error:  # the batch is in the log all the same
            log.error("compacting %s-%d failed: %s", place.topic, place.index, error)
        self._left[place.index] = place.log.size
