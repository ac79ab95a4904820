"""Fetch (1), versions 4-18: long poll, incremental sessions (KIP-227), topics by id from version 13 on.

As in Kafka: from version 11 on a consumer may read from any replica; a partition that does not exist does not
end the wait of the others, an error in reading does; `max_bytes` bounds the whole response, but one batch
always comes. With `read_committed` the log ends at its last stable offset, and the aborted transactions that
touch the records are listed. A consumer that names its rack is sent from
the leader to the replica there (KIP-392).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final
from uuid import UUID

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import PartitionError
from asyncgroup.broker.fetch_sessions import FetchContext, Fetched, FetchKey
from asyncgroup.broker.log import PartitionLog
from asyncgroup.broker.node import Node
from asyncgroup.broker.producer_state import AbortedTransaction
from asyncgroup.broker.replica_selector import preferred_replica
from asyncgroup.broker.topics import Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

VERSIONS = (4, 18)

MAX_BYTES: Final = 55 * 1024 * 1024
"""Kafka's default of the broker's `fetch.max.bytes`."""

_READ_COMMITTED: Final = 1
_UNREAD: Final = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
"""Errors of what was never looked at: Kafka lists no aborted transactions then, where it otherwise says null."""
_NO_DIVERGENCE: Final = m.FetchResponse.EpochEndOffset()
_NO_HINT: Final = m.FetchResponse.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = m.FetchResponse.SnapshotId()

Wanted = m.FetchRequest.FetchPartition


def handle(
    node: Node, context: RequestContext, request: m.FetchRequest
) -> m.FetchResponse | asyncio.Future[object]:
    """Answer with what there is, or wait for `min_bytes` up to `max_wait_ms`."""
    if request.isolation_level not in (0, _READ_COMMITTED):
        return refuse(context, request, ErrorCode.UNKNOWN_SERVER_ERROR)
    session = node.fetch_sessions.context(request, context.api_version)
    if session.error:
        return m.FetchResponse(error_code=session.error)
    fetch = _Fetch(node, context, request, session)
    fetched, size, urgent = fetch.read()
    if urgent or request.max_wait_ms <= 0 or not fetch.found or size >= fetch.min_bytes:
        return fetch.respond(fetched)
    keys = [TopicPartition(partition.topic, partition.index) for _, partition, _ in fetch.found]
    return node.purgatory.park(keys, request.max_wait_ms / 1000, fetch.is_ready, fetch.finish)


def refuse(context: RequestContext, request: m.FetchRequest, code: int) -> m.FetchResponse:
    """The error for the request, up to version 12 also for each partition."""
    topics = request.topics if context.api_version < 13 else []
    return m.FetchResponse(
        error_code=code,
        session_id=request.session_id,
        responses=[
            m.FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    _partition_data(p.partition, Fetched(ErrorCode(code)), committed=True)
                    for p in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


class _Fetch:
    """One Fetch request: which partitions it may read, and what it found."""

    def __init__(
        self, node: Node, context: RequestContext, request: m.FetchRequest, session: FetchContext
    ) -> None:
        self._node = node
        self._session = session
        self._committed = request.isolation_level == _READ_COMMITTED
        self._leader_only = context.api_version < 11
        self._tells_leaders = context.api_version >= 16
        self._rack = request.rack_id if context.api_version >= 11 else ""
        self._max_bytes = min(request.max_bytes, MAX_BYTES)
        self.min_bytes = min(request.min_bytes, self._max_bytes)
        self.found: list[tuple[FetchKey, Partition, Wanted]] = []
        self._missing: list[tuple[FetchKey, Fetched]] = []
        self._faulty: list[tuple[FetchKey, Fetched]] = []
        for name, group in groupby(session.wanted, key=lambda pair: pair[0][0]):
            self._resolve(context, name, group)

    def _resolve(
        self, context: RequestContext, name: str | UUID, group: Iterable[tuple[FetchKey, Wanted]]
    ) -> None:
        """Sort the wanted partitions of one topic into those that can be read and those that can't."""
        controller = self._node.controller
        topic = controller.topics.get(name) if isinstance(name, str) else controller.topics_by_id.get(name)
        fault = None if topic is None else context.topic_errors.get(topic.name)
        for key, wanted in group:
            if topic is None and not isinstance(name, str):
                self._missing.append((key, Fetched(ErrorCode.UNKNOWN_TOPIC_ID)))
            elif topic is None or not 0 <= key[1] < len(topic.partitions):
                self._missing.append((key, Fetched(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
            elif fault is not None:
                self._faulty.append((key, Fetched(fault)))
            else:
                self.found.append((key, topic.partitions[key[1]], wanted))

    def read(self) -> tuple[list[tuple[FetchKey, Fetched]], int, bool]:
        """What there is, how many bytes it is, and whether it should be answered without waiting."""
        fetched = []
        left, size, urgent = self._max_bytes, 0, bool(self._faulty)
        for key, partition, wanted in self.found:
            result = self._read_one(partition, wanted, left, at_least_one=size == 0)
            fetched.append((key, result))
            if result.records:
                size += len(result.records)
                left = max(0, left - len(result.records))
            elif result.error or result.diverging is not None or result.preferred >= 0:
                urgent = True
        return fetched + self._faulty + self._missing, size, urgent

    def _read_one(self, partition: Partition, wanted: Wanted, left: int, *, at_least_one: bool) -> Fetched:
        log, offset = partition.log, wanted.fetch_offset
        try:
            self._check(partition, wanted)
            if wanted.last_fetched_epoch >= 0 and (diverging := self._divergence(partition, wanted)):
                stable = log.last_stable_offset
                return Fetched(
                    ErrorCode.NONE, log.high_watermark, log.start_offset, b"", diverging, None, stable
                )
            log.check_offset(offset)
        except PartitionError as error:
            return Fetched(error.code, leader=error.leader if self._tells_leaders else None)
        records: bytes | memoryview = b""
        stable = log.last_stable_offset
        if (preferred := self._preferred(partition)) >= 0:
            return Fetched(
                ErrorCode.NONE, log.high_watermark, log.start_offset, b"", None, None, stable, (), preferred
            )
        aborted: Sequence[AbortedTransaction] = ()
        if offset < log.end_offset:
            limit = min(wanted.partition_max_bytes, left)
            end = self._end(log)
            records = log.read(offset, limit, at_least_one=at_least_one, end=end)
            aborted = log.aborted_in(offset, records) if self._committed else ()
        return Fetched(
            ErrorCode.NONE, log.high_watermark, log.start_offset, records, None, None, stable, aborted
        )

    def _preferred(self, partition: Partition) -> int:
        """Whom to ask instead, -1 for nobody: only leaders give advice, and only to those who say where they are."""
        if not self._rack or partition.leader != self._node.id:
            return -1
        racks = {peer.id: peer.rack for peer in self._node.peers.values()}
        return preferred_replica(partition, self._rack, racks, self._node.controller.alive)

    def _check(self, partition: Partition, wanted: Wanted) -> None:
        self._node.check_holds(partition, wanted.current_leader_epoch, leader_only=self._leader_only)

    @staticmethod
    def _divergence(partition: Partition, wanted: Wanted) -> tuple[int, int] | None:
        """Where the reader's log and this one part, if the reader's last epoch ended earlier here (KIP-595)."""
        epoch, end_offset = partition.log.end_of_epoch(wanted.last_fetched_epoch)
        if epoch < 0:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if wanted.fetch_offset < partition.log.start_offset:
            raise PartitionError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            return epoch, end_offset
        return None

    def _end(self, log: PartitionLog) -> int | None:
        """Where the log ends for this reader, None for where it does end."""
        if self._committed:
            return log.last_stable_offset
        return None if log.held_at is None else log.high_watermark

    def is_ready(self) -> bool:
        """Whether the wait is over: enough bytes, or something that the reader has to know."""
        size = 0
        for _, partition, wanted in self.found:
            try:
                self._check(partition, wanted)
                partition.log.check_offset(wanted.fetch_offset)
            except PartitionError:
                return True
            end = self._end(partition.log)
            size += min(partition.log.bytes_from(wanted.fetch_offset, end), wanted.partition_max_bytes)
        return size >= self.min_bytes

    def finish(self) -> m.FetchResponse:
        """Read again and answer."""
        return self.respond(self.read()[0])

    def respond(self, fetched: list[tuple[FetchKey, Fetched]]) -> m.FetchResponse:
        """The response, with those partitions that the session has to hear of."""
        error, session_id, news = self._session.answer(fetched)
        response = m.FetchResponse(error_code=error, session_id=session_id)
        for name, group in groupby(news, key=lambda pair: pair[0][0]):
            partitions = [_partition_data(key[1], result, committed=self._committed) for key, result in group]
            topic = m.FetchResponse.FetchableTopicResponse(partitions=partitions)
            if isinstance(name, str):
                topic.topic = name
            else:
                topic.topic_id = name
            response.responses.append(topic)
        if self._tells_leaders:
            self._add_endpoints(response, [result for _, result in news])
        return response

    def _add_endpoints(self, response: m.FetchResponse, fetched: list[Fetched]) -> None:
        """Say where the leaders are that were missed (KIP-951)."""
        leaders = {result.leader[0] for result in fetched if result.leader is not None}
        if leaders:
            response.node_endpoints = [
                m.FetchResponse.NodeEndpoint(peer.id, peer.advertised_host, peer.port, peer.rack)
                for peer in self._node.live_peers()
                if peer.id in leaders
            ]


def _partition_data(index: int, fetched: Fetched, *, committed: bool) -> m.FetchResponse.PartitionData:
    diverging, leader = fetched.diverging, fetched.leader
    lists_aborted = committed or fetched.error in _UNREAD
    return m.FetchResponse.PartitionData(
        index,
        fetched.error,
        fetched.high_watermark,
        fetched.last_stable_offset,
        fetched.log_start_offset,
        _NO_DIVERGENCE if diverging is None else m.FetchResponse.EpochEndOffset(*diverging),
        _NO_HINT if leader is None else m.FetchResponse.LeaderIdAndEpoch(*leader),
        _NO_SNAPSHOT,
        [m.FetchResponse.AbortedTransaction(*one[:2]) for one in fetched.aborted] if lists_aborted else None,
        fetched.preferred,
        fetched.records,
    )
