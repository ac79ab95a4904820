"""Fetch (1), versions 4-18: long polling and incremental fetch sessions (KIP-227); topics by id from version 13 on.

As in Kafka, an unknown partition does not end the wait for the others, but a read error does. `max_bytes` limits
the whole response, but the first batch is always included. Consumers read up to the high watermark, with
`read_committed` up to the last stable offset. Followers read only from the leader, up to the log end offset; the nodes
here never fetch from each other, but a client may act as a follower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final
from uuid import UUID

from asyncgroup.broker.errors import KafkaStorageError, PartitionError
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.log.fetch_sessions import FetchContext, FetchKey, FetchPartitionData
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.producer_state import AbortedTransaction
from asyncgroup.broker.metadata.replicas import preferred_replica
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["PartitionReader"]

VERSIONS = (4, 18)

MAX_BYTES: Final = 55 * 1024 * 1024
"""Kafka's default of the broker's `fetch.max.bytes`."""

_ISOLATION_LEVELS: Final = frozenset({0, 1})
"""read_uncommitted and read_committed."""

_NO_DIVERGENCE: Final = m.FetchResponse.EpochEndOffset()
_NO_HINT: Final = m.FetchResponse.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = m.FetchResponse.SnapshotId()

_READ_COMMITTED: Final = 1
_FOLLOWER_FETCH_VERSION: Final = 11
"""The first version in which consumers may read from any replica (KIP-392)."""

_CURRENT_LEADER_VERSION: Final = 16
"""The first version that returns the current leader with NOT_LEADER_OR_FOLLOWER and fenced epochs (KIP-951)."""

_REPLICA_STATE_VERSION: Final = 15
"""The first version in which followers send their id in `ReplicaState`, which consumers omit (KIP-903)."""

FetchPartition = m.FetchRequest.FetchPartition


def handle(
    node: Node, context: RequestContext, request: m.FetchRequest
) -> m.FetchResponse | asyncio.Future[object]:
    """Return the available records, or wait up to `max_wait_ms` for `min_bytes`."""
    if request.isolation_level not in _ISOLATION_LEVELS:
        return error_response(context, request, ErrorCode.UNKNOWN_SERVER_ERROR)
    session = node.fetch_sessions.context(request, context.api_version)
    # an error of the whole request: the response has no partitions
    if session.error:
        return m.FetchResponse(error_code=session.error)
    fetch = _Fetch(node, context, request, session)
    fetched, size, urgent = fetch.read()
    # without readable partitions nothing could end the wait
    if urgent or request.max_wait_ms <= 0 or not fetch.found or size >= fetch.min_bytes:
        return fetch.respond(fetched)
    keys = [TopicPartition(partition.topic, partition.index) for _, partition, _ in fetch.found]
    return node.purgatory.park(keys, request.max_wait_ms / 1000, fetch.is_ready, fetch.finish)


def error_response(context: RequestContext, request: m.FetchRequest, code: int) -> m.FetchResponse:
    """Return the error for the request; up to version 12, also for each partition."""
    topics = request.topics if context.api_version < 13 else []
    return m.FetchResponse(
        error_code=code,
        session_id=request.session_id,
        responses=[
            m.FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    _partition_data(p.partition, _error_only(ErrorCode(code))) for p in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


class _Fetch:
    """A Fetch request: its readable partitions, and the errors of the others."""

    def __init__(
        self, node: Node, context: RequestContext, request: m.FetchRequest, session: FetchContext
    ) -> None:
        self._node = node
        self._session = session
        self._reader = PartitionReader(node, context.api_version, request)
        self._max_bytes = min(request.max_bytes, MAX_BYTES)
        # more can never be returned, so it must not be waited for
        self.min_bytes = min(request.min_bytes, self._max_bytes)
        self.found: list[tuple[FetchKey, Partition, FetchPartition]] = []  # readable
        self._missing: list[tuple[FetchKey, FetchPartitionData]] = []  # unknown; the wait for others goes on
        self._failed: list[tuple[FetchKey, FetchPartitionData]] = []  # other errors; answered at once
        for name, group in groupby(session.wanted, key=lambda pair: pair[0][0]):
            self._resolve(context, name, group)

    def _resolve(
        self, context: RequestContext, name: str | UUID, group: Iterable[tuple[FetchKey, FetchPartition]]
    ) -> None:
        """Sort the requested partitions of one topic into readable, unknown and failed ones."""
        controller = self._node.controller
        topic = controller.topics.get(name) if isinstance(name, str) else controller.topics_by_id.get(name)
        error = None if topic is None else context.topic_errors.get(topic.name)
        if topic is None and not isinstance(name, str):
            self._resolve_unknown(name, group)
            return
        # the session keeps the name: a later request may find the id gone, and a namesake
        if topic is not None:
            self._session.names.setdefault(topic.id, topic.name)
        for key, wanted in group:
            if topic is None or not 0 <= key[1] < len(topic.partitions):
                self._missing.append((key, _error_only(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
            elif error is not None:
                self._failed.append((key, _error_only(error)))
            else:
                self.found.append((key, topic.partitions[key[1]], wanted))

    def _resolve_unknown(self, topic_id: UUID, group: Iterable[tuple[FetchKey, FetchPartition]]) -> None:
        """Handle partitions of an unknown topic id.

        If the session knows the topic's name and there is another topic with that name now, the error is
        INCONSISTENT_TOPIC_ID.
        """
        name = self._session.names.get(topic_id)
        namesake = None if name is None else self._node.controller.topics.get(name)
        for key, _ in group:
            if name is None:
                self._missing.append((key, _error_only(ErrorCode.UNKNOWN_TOPIC_ID)))
            elif namesake is None or not 0 <= key[1] < len(namesake.partitions):
                self._missing.append((key, _error_only(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
            else:
                self._failed.append((key, FetchPartitionData(ErrorCode.INCONSISTENT_TOPIC_ID)))

    def read(self) -> tuple[list[tuple[FetchKey, FetchPartitionData]], int, bool]:
        """Return the results, their size in bytes, and whether the response must not wait."""
        fetched = []
        left, size, urgent = self._max_bytes, 0, bool(self._failed)
        for key, partition, wanted in self.found:
            # the first partition with records gets its first batch of any size, or it would never be read (KIP-74)
            result = self._reader.read(partition, wanted, left, at_least_one=size == 0)
            fetched.append((key, result))
            if result.records:
                size += len(result.records)
                left = max(0, left - len(result.records))
            elif result.error or result.diverging_epoch is not None or result.preferred_read_replica >= 0:
                urgent = True
        return fetched + self._failed + self._missing, size, urgent

    def is_ready(self) -> bool:
        """Whether the wait has ended: there are enough bytes, or a result that must not wait."""
        size = 0
        for _, partition, wanted in self.found:
            waiting = self._reader.readable_bytes(partition, wanted)
            # an error, or a log that diverges, is answered now
            if waiting is None:
                return True
            size += waiting
        return size >= self.min_bytes

    def finish(self) -> m.FetchResponse:
        """Read again and return the response."""
        return self.respond(self.read()[0])

    def respond(self, fetched: list[tuple[FetchKey, FetchPartitionData]]) -> m.FetchResponse:
        """Return the response; in an incremental session, with the changed partitions only."""
        # here and not when it was read: the session remembers what this response says
        error, session_id, changed = self._session.answer(fetched)
        response = m.FetchResponse(error_code=error, session_id=session_id)
        for name, group in groupby(changed, key=lambda pair: pair[0][0]):
            partitions = [_partition_data(key[1], result) for key, result in group]
            topic = m.FetchResponse.FetchableTopicResponse(partitions=partitions)
            if isinstance(name, str):
                topic.topic = name
            else:
                topic.topic_id = name
            response.responses.append(topic)
        if self._reader.includes_node_endpoints:
            self._add_endpoints(response, [result for _, result in changed])
        return response

    def _add_endpoints(self, response: m.FetchResponse, fetched: list[FetchPartitionData]) -> None:
        """Add the addresses of the current leaders (KIP-951)."""
        # only the named ones: the list is for clients whose metadata is older
        leaders = {result.leader[0] for result in fetched if result.leader is not None}
        if leaders:
            response.node_endpoints = [
                m.FetchResponse.NodeEndpoint(peer.id, peer.advertised_host, peer.port, peer.rack)
                for peer in self._node.live_peers()
                if peer.id in leaders
            ]


def _error_only(error: ErrorCode) -> FetchPartitionData:
    """Return the result for a partition that was not read.

    As in Kafka its list of aborted transactions is empty, while after a read error it is null.
    """
    return FetchPartitionData(error, aborted=())


def _partition_data(index: int, fetched: FetchPartitionData) -> m.FetchResponse.PartitionData:
    diverging_epoch, leader, aborted = fetched.diverging_epoch, fetched.leader, fetched.aborted
    return m.FetchResponse.PartitionData(
        index,
        fetched.error,
        fetched.high_watermark,
        fetched.last_stable_offset,
        fetched.log_start_offset,
        _NO_DIVERGENCE if diverging_epoch is None else m.FetchResponse.EpochEndOffset(*diverging_epoch),
        _NO_HINT if leader is None else m.FetchResponse.LeaderIdAndEpoch(*leader),
        _NO_SNAPSHOT,
        None if aborted is None else [m.FetchResponse.AbortedTransaction(*one[:2]) for one in aborted],
        fetched.preferred_read_replica,
        fetched.records,
    )


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
        # at the end of the log the records are empty, and not null
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
    # nothing is known of that epoch: the reader has to reset, as its log may share nothing with this one
    if epoch < 0 or wanted.fetch_offset < partition.log.start_offset:
        raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None


register("Fetch", VERSIONS, handle, error_response)
