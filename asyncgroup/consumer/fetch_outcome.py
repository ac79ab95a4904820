"""What a Fetch response says about each partition, as values. Pure; the consumer and Spark's range reader apply them.

The rules are those of `FetchCollector` in Kafka, with the oversized first batch of KIP-74, the read replica of KIP-392, the
diverging epoch of KIP-320/595, the leader hint of KIP-951 and the topic ids of KIP-516.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.consumer.decoding import ListedTransaction
from asyncgroup.consumer.fetch_session import PartitionData
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    BrokerError,
    CorruptRecordsError,
    ErrorCode,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import truncated_batch_size
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "FETCH_ACTIONS",
    "EpochEnd",
    "EpochEndOffset",
    "Fatal",
    "FetchAction",
    "FetchOutcome",
    "FetchOutcomes",
    "FetchedRecords",
    "LeaderHint",
    "OutOfRange",
    "ReadReplica",
    "Retriable",
    "TooLarge",
    "fetch_action",
    "fetch_outcomes",
    "missing_outcomes",
    "partition_outcome",
    "response_partitions",
]


class FetchAction(Enum):
    """What to do about a partition's error code in a Fetch response."""

    DELIVER = "no error: hand the records over"
    RESET = "the offset is not in the log: apply out_of_range_reset"
    REDISPATCH = "the leader has moved or is moving: refresh the metadata and fetch from the new leader"
    FAIL = "raise the error to the reader"


FETCH_ACTIONS: Final[Mapping[int, FetchAction]] = {
    ErrorCode.NONE: FetchAction.DELIVER,
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchAction.RESET,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchAction.REDISPATCH,
    ErrorCode.UNKNOWN_TOPIC_ID: FetchAction.REDISPATCH,
    ErrorCode.INCONSISTENT_TOPIC_ID: FetchAction.REDISPATCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchAction.REDISPATCH,
    ErrorCode.LEADER_NOT_AVAILABLE: FetchAction.REDISPATCH,
    ErrorCode.REPLICA_NOT_AVAILABLE: FetchAction.REDISPATCH,
    ErrorCode.FENCED_LEADER_EPOCH: FetchAction.REDISPATCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchAction.REDISPATCH,
    ErrorCode.OFFSET_NOT_AVAILABLE: FetchAction.REDISPATCH,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchAction.REDISPATCH,
    ErrorCode.UNKNOWN_SERVER_ERROR: FetchAction.REDISPATCH,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: FetchAction.FAIL,
    ErrorCode.CORRUPT_MESSAGE: FetchAction.FAIL,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: FetchAction.FAIL,
}
"""As `FetchCollector.handleInitializeErrors` in Kafka. Of the codes not listed, retriable ones are REDISPATCH and others
FAIL."""


class LeaderHint(NamedTuple):
    """The new leader that a former leader names (KIP-951)."""

    node_id: int
    epoch: int
    brokers: list[BrokerInfo]
    """Addresses, for brokers that the metadata may not have yet."""


class FetchedRecords(NamedTuple):
    """Record batches, possibly none."""

    data: Buffer | None
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int = -1
    aborted: Iterable[ListedTransaction] | None = None
    """The aborted transactions that overlap `data` (`read_committed` only)."""
    zero_copy: bool = False
    """Whether `data` need not be copied, as the response has records of no other partition."""


class ReadReplica(NamedTuple):
    """The leader advises to read from a follower; such a response has no records (KIP-392)."""

    node_id: int


class EpochEndOffset(NamedTuple):
    """The end offset of an epoch in the leader's log; -1 for both if the leader does not know."""

    epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        """Whether the leader knows the epoch's end."""
        return self.epoch >= 0 and self.end_offset >= 0


class EpochEnd(NamedTuple):
    """The leader's end offset for the epoch of the last fetched record; the position is beyond it after a truncation
    (KIP-320).
    """

    end: EpochEndOffset


class Retriable(NamedTuple):
    """The broker is not, or not yet, able to serve the partition, or its response was damaged."""

    error: BrokerError | CorruptRecordsError
    leader: LeaderHint | None = None
    """Where the partition has moved, if the broker knows it."""


class OutOfRange(NamedTuple):
    """The fetch offset is not in the log."""

    error: BrokerError


class Fatal(NamedTuple):
    """An error that retries do not heal; a follower's one may not be the leader's."""

    error: BrokerError


class TooLarge(NamedTuple):
    """The broker cannot return the next batch within the requested bytes: there is no progress."""

    error: RecordTooLargeError


FetchOutcome: TypeAlias = FetchedRecords | ReadReplica | EpochEnd | Retriable | OutOfRange | Fatal | TooLarge
"""What a response says about one partition."""


class FetchOutcomes(NamedTuple):
    """The outcomes of one response."""

    partitions: list[tuple[TopicPartition, FetchOutcome]]
    served: list[TopicPartition]
    """The partitions that got complete record batches."""
    total_bytes: int
    """Bytes of records."""


def fetch_action(code: int) -> FetchAction:
    """Return the action for an error code."""
    return FETCH_ACTIONS.get(code, FetchAction.REDISPATCH if is_retriable(code) else FetchAction.FAIL)


def response_partitions(
    response: m.FetchResponse, names: Mapping[UUID, str]
) -> tuple[list[tuple[TopicPartition, Any]], bool]:
    """Return a response's partitions with their data, and whether all of its topics have a name or an id.

    `names` are the topics by id, for versions without names. Raises UnsupportedVersionError if no topic has a name or an id:
    the broker answers in a version that it does not know.
    """
    found = []
    nameless = 0
    for topic in response.responses:
        # neither a name nor an id: its partitions are of no known topic
        if not topic.topic and topic.topic_id == m.NO_UUID:
            nameless += 1
            continue
        # the topic of an unknown id was dropped since then, so `wanted` does not have its name
        name = topic.topic or names.get(topic.topic_id, "")
        found += [(TopicPartition(name, data.partition_index), data) for data in topic.partitions]
    if nameless and not found:
        raise UnsupportedVersionError("the Fetch response has a topic without name and id (KIP-516)")
    return found, not nameless


def fetch_outcomes(
    found: Iterable[tuple[TopicPartition, Any]],
    response: m.FetchResponse,
    wanted: Mapping[TopicPartition, PartitionData],
    node_id: int,
    *,
    response_limit: int,
    max_response_size: int,
) -> FetchOutcomes:
    """Return the outcomes of the `wanted` partitions in `found`; `response_limit` is the request's size limit."""
    # a session may name partitions that were dropped from the request before it arrived
    found = [(tp, data) for tp, data in found if tp in wanted]
    filled = {tp: data.records for tp, data in found if data.records}
    # a response may end within a batch: that only matters if it is the first one of its partition
    cuts = {tp: size for tp, records in filled.items() if (size := truncated_batch_size(records)) is not None}
    served = [tp for tp in filled if tp not in cuts]
    outcomes: list[tuple[TopicPartition, FetchOutcome]] = []
    for tp, data in found:
        # an error counts in any case: what comes with it is not looked at
        if tp in cuts and not data.error_code:
            limit = min(wanted[tp].max_bytes, response_limit)
            # a batch that would have fit was damaged, and one that never fits has no limit to raise
            if not limit < cuts[tp] <= max_response_size:
                limit = -1
            outcome = _partial_batch(tp, data, wanted[tp].offset, cuts[tp], limit, node_id, alone=not served)
        else:
            # alone in the response: the buffer is of no use to others, and need not be copied
            outcome = partition_outcome(tp, data, response, node_id, zero_copy=len(filled) == 1)
        outcomes.append((tp, outcome))
    return FetchOutcomes(outcomes, served, sum(map(len, filled.values())))


def missing_outcomes(
    missing: Iterable[TopicPartition], node_id: int
) -> list[tuple[TopicPartition, FetchOutcome]]:
    """Return the outcomes of partitions that a response lacks, though it has to name them."""
    code, what = ErrorCode.UNKNOWN_SERVER_ERROR, "the response lacks the partition"
    return [(tp, Retriable(BrokerError(code, f"fetch of {tp} from node {node_id}", what))) for tp in missing]


def partition_outcome(
    tp: TopicPartition, data: Any, response: m.FetchResponse, node_id: int, *, zero_copy: bool = False
) -> FetchOutcome:
    """Return the outcome of one partition's data, as far as it does not end within its first batch."""
    code = data.error_code
    if not code:
        return _delivered(data, data.records, node_id, zero_copy=zero_copy)
    action = fetch_action(code)
    error = BrokerError(code, f"fetch of {tp} from node {node_id}")
    if action is FetchAction.REDISPATCH:
        return Retriable(error, _leader_hint(data, response))
    return OutOfRange(error) if action is FetchAction.RESET else Fatal(error)


def _delivered(data: Any, records: Buffer | None, node_id: int, *, zero_copy: bool) -> FetchOutcome:
    # first: records after a divergence are not those that the reader expects (KIP-595)
    diverging = data.diverging_epoch
    if diverging.epoch >= 0:
        return EpochEnd(EpochEndOffset(diverging.epoch, diverging.end_offset))
    # Kafka's leaders never name themselves (`ReplicaManager.findPreferredReadReplica`); one that does is the node to read from
    if data.preferred_read_replica not in (-1, node_id):
        return ReadReplica(data.preferred_read_replica)
    return FetchedRecords(
        records,
        data.high_watermark,
        data.log_start_offset,
        data.last_stable_offset,
        data.aborted_transactions,
        zero_copy,
    )


def _partial_batch(
    tp: TopicPartition, data: Any, offset: int, size: int, limit: int, node_id: int, *, alone: bool
) -> FetchOutcome:
    """Return the outcome of data that ends within its first record batch of `size` bytes (0: unknown).

    Brokers return the first batch of a response in full even if it is larger than `limit`, the requested bytes (KIP-74;
    -1: the batch would have fit, or can never fit). A broker that does not makes progress impossible, which is raised to
    the reader as in Java (`FetchCollector`), unless the response has records of other partitions: then the partition is
    asked for first next time. A batch that would have fit was damaged on the network.
    """
    if limit < 0:
        text = f"{len(data.records)} bytes end within the first record batch of a response"
        return Retriable(CorruptRecordsError(f"partition {tp} at offset {offset}: {text}"))
    # with records of others there is progress: the partition is asked for first next time
    if alone:
        return TooLarge(RecordTooLargeError(tp, offset, size, limit))
    return _delivered(data, None, node_id, zero_copy=False)


def _leader_hint(data: Any, response: m.FetchResponse) -> LeaderHint | None:
    leader = data.current_leader
    # no hint: the metadata has to be refreshed
    if leader.leader_id < 0:
        return None
    brokers = [BrokerInfo(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
    return LeaderHint(leader.leader_id, leader.leader_epoch, brokers)
