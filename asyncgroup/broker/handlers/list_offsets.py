"""ListOffsets (2), versions 1-11: look up offsets by timestamp.

Negative timestamps are special: -1 latest, -2 earliest, -3 the record with the largest timestamp (KIP-734), -4
the earliest on this node's disk, -5 the latest in tiered storage, -6 the earliest that is not in tiered storage
yet (there is no tiered storage here). With `read_committed` the latest offset is the last stable offset.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from asyncgroup.broker.errors import KafkaStorageError, PartitionError
from asyncgroup.broker.handlers.registry import register
from asyncgroup.broker.log.record_reader import find_timestamp, latest_timestamp
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import Record
from asyncgroup.wire import messages as m

VERSIONS = (1, 11)

_READ_COMMITTED: Final = 1

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE: Final = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11}
"""The first version with each of the later special timestamps."""

_KNOWS_NOT_AVAILABLE: Final = 5
"""The first version with OFFSET_NOT_AVAILABLE (KIP-207)."""

PartitionResponse = m.ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(node: Node, context: RequestContext, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
    """Look up the offsets."""
    counts = Counter((topic.name, p.partition_index) for topic in request.topics for p in topic.partitions)
    twice = {key for key, count in counts.items() if count > 1}
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponse.ListOffsetsTopicResponse(
                topic.name,
                [
                    PartitionResponse(p.partition_index, ErrorCode.INVALID_REQUEST)
                    if (topic.name, p.partition_index) in twice
                    else _answer(
                        node, context, topic.name, p, committed=request.isolation_level == _READ_COMMITTED
                    )
                    for p in {p.partition_index: p for p in topic.partitions}.values()
                ],
            )
            for topic in request.topics
            if topic.partitions
        ]
    )


def error_response(
    _context: RequestContext, request: m.ListOffsetsRequest, code: int
) -> m.ListOffsetsResponse:
    """Return the error for every partition."""
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponse.ListOffsetsTopicResponse(
                topic.name, [PartitionResponse(p.partition_index, code) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer(
    node: Node,
    context: RequestContext,
    name: str,
    requested: m.ListOffsetsRequest.ListOffsetsPartition,
    *,
    committed: bool,
) -> PartitionResponse:
    index, timestamp = requested.partition_index, requested.timestamp
    if timestamp < _EARLIEST and context.api_version < _SINCE.get(timestamp, 1 << 15):
        return PartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        partition = node.partition(context, node.controller.topics.get(name), index)
        node.check_leader(partition, requested.current_leader_epoch)
        found = _look_up(partition, timestamp, committed=committed)
        if timestamp == _LATEST or (found is None and (timestamp >= 0 or timestamp == _MAX_TIMESTAMP)):
            _check_offset_available(partition, context.api_version)
    except (PartitionError, KafkaStorageError) as error:
        return PartitionResponse(index, error.code)
    if found is None:
        return PartitionResponse(index)
    found_timestamp, offset, epoch = found
    return PartitionResponse(
        index, ErrorCode.NONE, found_timestamp, offset, epoch if context.api_version >= 4 else -1
    )


def _check_offset_available(partition: Partition, version: int) -> None:
    """Raise PartitionError while the high watermark is below the start of the current leader epoch (KIP-207).

    The log may seem to end before records that consumers have read already.
    """
    epochs = partition.log.epochs
    if epochs and epochs[-1] > (partition.leader_epoch, partition.log.high_watermark):
        known = version >= _KNOWS_NOT_AVAILABLE
        raise PartitionError(ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE)


def _look_up(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int, int] | None:
    """Return timestamp, offset and leader epoch; None if no record matches."""
    log = partition.log
    end = log.last_stable_offset if committed else log.high_watermark
    record: Record | None
    if timestamp == _LATEST:
        return -1, end, partition.leader_epoch
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        first = log.first_epoch()
        return -1, log.start_offset, first
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return None
    record = latest_timestamp(log) if timestamp == _MAX_TIMESTAMP else find_timestamp(log, timestamp)
    if record is None or record.offset >= end:
        return None
    return record.timestamp, record.offset, record.leader_epoch


register("ListOffsets", VERSIONS, handle, error_response)
