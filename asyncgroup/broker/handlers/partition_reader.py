"""Reading one partition for a Fetch request (Kafka's `FetchParams`, `Partition.fetchRecords`, `ReplicaManager`).

Consumers read up to the high watermark, with `read_committed` up to the last stable offset. Followers read only
from the leader, up to the log end offset; the nodes here never fetch from each other, but a client may act as a
follower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asyncgroup.broker.errors import KafkaStorageError, PartitionError
from asyncgroup.broker.log.fetch_sessions import FetchPartitionData
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.producer_state import AbortedTransaction
from asyncgroup.broker.metadata.replica_selector import preferred_replica
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

__all__ = ["PartitionReader"]

_READ_COMMITTED: Final = 1
_FOLLOWER_FETCH_VERSION: Final = 11
"""The first version in which consumers may read from any replica (KIP-392)."""

_CURRENT_LEADER_VERSION: Final = 16
"""The first version that returns the current leader with NOT_LEADER_OR_FOLLOWER and fenced epochs (KIP-951)."""

_REPLICA_STATE_VERSION: Final = 15
"""The first version in which followers send their id in `ReplicaState`, which consumers omit (KIP-903)."""

FetchPartition = m.FetchRequest.FetchPartition


class PartitionReader:
    """Reads partitions at `node` for one Fetch request."""

    def __init__(self, node: Node, version: int, request: m.FetchRequest) -> None:
        self._node = node
        follower = (
            request.replica_state.replica_id if version >= _REPLICA_STATE_VERSION else request.replica_id
        )
        self._follower = follower if follower >= 0 else None
        self._committed = request.isolation_level == _READ_COMMITTED and self._follower is None
        self._leader_only = version < _FOLLOWER_FETCH_VERSION or self._follower is not None
        self._rack = request.rack_id if version >= _FOLLOWER_FETCH_VERSION and self._follower is None else ""
        self._includes_current_leader = version >= _CURRENT_LEADER_VERSION
        self.includes_node_endpoints = self._includes_current_leader and self._follower is None
        """Whether the response has the addresses of current leaders; followers know them."""

    def read(
        self, partition: Partition, wanted: FetchPartition, limit: int, *, at_least_one: bool
    ) -> FetchPartitionData:
        """Read whole batches of at most `limit` bytes; `at_least_one` returns the first batch, of any size."""
        log, offset = partition.log, wanted.fetch_offset
        try:
            diverging_epoch = self._check(partition, wanted)
        except PartitionError as error:
            return FetchPartitionData(
                error.code, leader=error.leader if self._includes_current_leader else None
            )
        position = (log.high_watermark, log.start_offset)
        stable = log.last_stable_offset
        if diverging_epoch is not None:
            return FetchPartitionData(
                ErrorCode.NONE, *position, diverging_epoch=diverging_epoch, last_stable_offset=stable
            )
        if (preferred_read_replica := self._preferred(partition)) >= 0:
            return FetchPartitionData(
                ErrorCode.NONE,
                *position,
                last_stable_offset=stable,
                preferred_read_replica=preferred_read_replica,
            )
        records: bytes | memoryview = b""
        aborted: Sequence[AbortedTransaction] | None = () if self._committed else None
        if offset < log.end_offset:
            limit = min(wanted.partition_max_bytes, limit)
            try:
                records = log.read(offset, limit, at_least_one=at_least_one, end=self._end(log))
            except KafkaStorageError as error:
                return FetchPartitionData(error.code)
            if self._committed:
                aborted = log.aborted_transactions(offset, records)
        return FetchPartitionData(ErrorCode.NONE, *position, records, None, None, stable, aborted)

    def readable_bytes(self, partition: Partition, wanted: FetchPartition) -> int | None:
        """Return how many bytes can be read, None if the partition has an error or divergence to return."""
        try:
            if self._check(partition, wanted) is not None:
                return None
        except PartitionError:
            return None
        size = partition.log.bytes_from(wanted.fetch_offset, self._end(partition.log))
        return min(size, wanted.partition_max_bytes)

    def _check(self, partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
        """Return (epoch, end offset) where the reader's log diverges, None if it does not. Raise PartitionError."""
        self._node.check_replica(partition, wanted.current_leader_epoch, leader_only=self._leader_only)
        if self._follower is not None and self._follower not in self._followers(partition):
            leader = (partition.leader, partition.leader_epoch)
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=leader)
        if wanted.last_fetched_epoch >= 0 and (diverging_epoch := _divergence(partition, wanted)) is not None:
            return diverging_epoch
        partition.log.check_offset(wanted.fetch_offset)
        return None

    @staticmethod
    def _followers(partition: Partition) -> list[int]:
        return [replica for replica in partition.replicas if replica != partition.leader]

    def _preferred(self, partition: Partition) -> int:
        """Return the preferred read replica, -1 for this node: set only by leaders, for readers that send a rack."""
        if not self._rack or partition.leader != self._node.id:
            return -1
        racks = {peer.id: peer.rack for peer in self._node.peers.values()}
        return preferred_replica(partition, self._rack, racks, self._node.controller.alive)

    def _end(self, log: PartitionLog) -> int | None:
        """Return the offset that the reader may not read beyond, None for the log end offset."""
        if self._committed:
            return log.last_stable_offset
        return None if log.follower_end_offset is None or self._follower is not None else log.high_watermark


def _divergence(partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
    """Return (epoch, end offset) up to which the logs agree if the reader's last epoch ended earlier here (KIP-595)."""
    epoch, end_offset = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.fetch_offset < partition.log.start_offset:
        raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None
