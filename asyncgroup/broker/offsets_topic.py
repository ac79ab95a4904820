"""`__consumer_offsets` as one node has it: what the group coordinator's store reads and appends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.topics import OFFSETS_TOPIC, Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import iter_batch_headers

__all__ = ["OffsetsTopic"]

_LOAD_BYTES: Final = 5 << 20
"""Kafka's default of `offsets.load.buffer.size`."""


_COMPACTED_BYTES: Final = 1 << 20
"""A log that is smaller is not worth the work."""


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
        log = self._controller.offsets_topic().partitions[partition].log
        offset = log.start_offset
        while offset < log.end_offset:
            data = log.read(offset, _LOAD_BYTES, at_least_one=True)
            yield data
            offset = max((header.next_offset for header in iter_batch_headers(data)), default=log.end_offset)

    def append(self, partition: int, batch: bytes) -> int:
        """Append a record batch and give its base offset; raises Refused, NOT_LEADER_OR_FOLLOWER for instance."""
        place = self._controller.offsets_topic().partitions[partition]
        if place.leader != self._node_id:
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(place.leader, place.leader_epoch))
        base_offset = place.log.append(batch, place.leader_epoch, by_coordinator=True).base_offset
        if place.log.size > max(self._compacted_bytes, 2 * self._left.get(partition, 0)):
            place.log.compact(self._clock(), place.config.delete_retention_ms)
            self._left[partition] = place.log.size
        self._appended(place)
        return base_offset
