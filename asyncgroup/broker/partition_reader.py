"""What one Fetch request gets to read of a partition (Kafka's `FetchParams`, `Partition.fetchRecords`, `ReplicaManager`).

Consumers read up to the high watermark, with `read_committed` up to the last stable offset; followers, of which there are
none among the nodes here but whom a client may play, read from the leader only, up to the end of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asyncgroup.broker.errors import PartitionError, StorageError
from asyncgroup.broker.fetch_sessions import Fetched
from asyncgroup.broker.log import PartitionLog
from asyncgroup.broker.node import Node
from asyncgroup.broker.producer_state import AbortedTransaction
from asyncgroup.broker.replica_selector import preferred_replica
from asyncgroup.broker.topics import Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

__all__ = ["PartitionReader"]

_READ_COMMITTED: Final = 1
_FROM_FOLLOWERS: Final = 11
"""The first version in which consumers may read from any replica (KIP-392)."""

_TELLS_LEADERS: Final = 16
"""The first version that names the leader to those who missed it (KIP-951)."""

_REPLICA_STATE: Final = 15
"""The first version in which followers say who they are in a field that consumers leave out (KIP-903)."""

Wanted = m.FetchRequest.FetchPartition


class PartitionReader:
    """How a request reads at `node`, the same for all its partitions."""

    def __init__(self, node: Node, version: int, request: m.FetchRequest) -> None:
        self._node = node
        follower = request.replica_state.replica_id if version >= _REPLICA_STATE else request.replica_id
        self._follower = follower if follower >= 0 else None
        self._committed = request.isolation_level == _READ_COMMITTED and self._follower is None
        self._leader_only = version < _FROM_FOLLOWERS or self._follower is not None
        self._rack = request.rack_id if version >= _FROM_FOLLOWERS and self._follower is None else ""
        self._tells_leaders = version >= _TELLS_LEADERS
        self.tells_nodes = self._tells_leaders and self._follower is None
        """Whether the response says where the leaders are that were missed; followers know that themselves."""

    def read(self, partition: Partition, wanted: Wanted, limit: int, *, at_least_one: bool) -> Fetched:
        """Whole batches of up to `limit` bytes in all, the first one whatever its size if `at_least_one`."""
        log, offset = partition.log, wanted.fetch_offset
        try:
            diverging = self._check(partition, wanted)
        except PartitionError as error:
            return Fetched(error.code, leader=error.leader if self._tells_leaders else None)
        position = (log.high_watermark, log.start_offset)
        stable = log.last_stable_offset
        if diverging is not None:
            return Fetched(ErrorCode.NONE, *position, diverging=diverging, last_stable_offset=stable)
        if (preferred := self._preferred(partition)) >= 0:
            return Fetched(ErrorCode.NONE, *position, last_stable_offset=stable, preferred=preferred)
        records: bytes | memoryview = b""
        aborted: Sequence[AbortedTransaction] | None = () if self._committed else None
        if offset < log.end_offset:
            limit = min(wanted.partition_max_bytes, limit)
            try:
                records = log.read(offset, limit, at_least_one=at_least_one, end=self._end(log))
            except StorageError as error:
                return Fetched(error.code)
            if self._committed:
                aborted = log.aborted_in(offset, records)
        return Fetched(ErrorCode.NONE, *position, records, None, None, stable, aborted)

    def waiting(self, partition: Partition, wanted: Wanted) -> int | None:
        """How many bytes there are to read, None if there is something else that the reader has to know."""
        try:
            if self._check(partition, wanted) is not None:
                return None
        except PartitionError:
            return None
        size = partition.log.bytes_from(wanted.fetch_offset, self._end(partition.log))
        return min(size, wanted.partition_max_bytes)

    def _check(self, partition: Partition, wanted: Wanted) -> tuple[int, int] | None:
        """Where the reader's log and this one part, None if they don't; raises PartitionError."""
        self._node.check_holds(partition, wanted.current_leader_epoch, leader_only=self._leader_only)
        if self._follower is not None and self._follower not in self._followers(partition):
            leader = (partition.leader, partition.leader_epoch)
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=leader)
        if wanted.last_fetched_epoch >= 0 and (diverging := _divergence(partition, wanted)) is not None:
            return diverging
        partition.log.check_offset(wanted.fetch_offset)
        return None

    @staticmethod
    def _followers(partition: Partition) -> list[int]:
        return [replica for replica in partition.replicas if replica != partition.leader]

    def _preferred(self, partition: Partition) -> int:
        """Whom to ask instead, -1 for nobody: only leaders give advice, and only to those who say where they are."""
        if not self._rack or partition.leader != self._node.id:
            return -1
        racks = {peer.id: peer.rack for peer in self._node.peers.values()}
        return preferred_replica(partition, self._rack, racks, self._node.controller.alive)

    def _end(self, log: PartitionLog) -> int | None:
        """Where the log ends for this reader, None for where it does end."""
        if self._committed:
            return log.last_stable_offset
        return None if log.held_at is None or self._follower is not None else log.high_watermark


def _divergence(partition: Partition, wanted: Wanted) -> tuple[int, int] | None:
    """The epoch and the offset up to which the logs agree, if the reader's last epoch ended earlier here (KIP-595)."""
    epoch, end_offset = partition.log.end_of_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.fetch_offset < partition.log.start_offset:
        raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None
