"""Outcomes of Fetch responses, without brokers and consumers: the table of error codes, hints, and cut batches."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.consumer.fetch_outcome import (
    FETCH_ACTIONS,
    EpochEnd,
    EpochEndOffset,
    Fatal,
    FetchAction,
    FetchedRecords,
    FetchOutcome,
    FetchOutcomes,
    LeaderHint,
    OutOfRange,
    ReadReplica,
    Retriable,
    TooLarge,
    fetch_action,
    fetch_outcomes,
    partition_outcome,
    response_partitions,
)
from asyncgroup.consumer.fetch_session import PartitionData
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import CorruptRecordsError, ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.consumer.support import TP, batch

NODE = 1
IDS = {name: uuid.UUID(int=number + 1) for number, name in enumerate(("orders", "users"))}
BATCH = batch(0, count=3)
LIMIT = 1 << 20

KINDS = {
    ErrorCode.NONE: FetchedRecords,
    ErrorCode.OFFSET_OUT_OF_RANGE: OutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Retriable,
    ErrorCode.UNKNOWN_TOPIC_ID: Retriable,
    ErrorCode.INCONSISTENT_TOPIC_ID: Retriable,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Retriable,
    ErrorCode.LEADER_NOT_AVAILABLE: Retriable,
    ErrorCode.REPLICA_NOT_AVAILABLE: Retriable,
    ErrorCode.FENCED_LEADER_EPOCH: Retriable,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Retriable,
    ErrorCode.OFFSET_NOT_AVAILABLE: Retriable,
    ErrorCode.KAFKA_STORAGE_ERROR: Retriable,
    ErrorCode.UNKNOWN_SERVER_ERROR: Retriable,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Retriable,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Fatal,
    ErrorCode.CORRUPT_MESSAGE: Fatal,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: Fatal,
    ErrorCode.INVALID_REQUEST: Fatal,
}
"""What `FetchCollector.handleInitializeErrors` in Kafka does with each code, and two codes that it does not list."""


def data_of(partition: int = TP.partition, **fields: Any) -> m.FetchResponse.PartitionData:
    """Return a partition's data in a response."""
    return m.FetchResponse.PartitionData(
        partition, high_watermark=90, last_stable_offset=80, log_start_offset=10, **fields
    )


def outcome_of(data: Any, response: m.FetchResponse | None = None) -> FetchOutcome:
    """Return the outcome of one partition."""
    return partition_outcome(TP, data, response or m.FetchResponse(), NODE)


def outcomes_of(
    contents: dict[TopicPartition, Any], *, max_bytes: int = LIMIT, response_limit: int = LIMIT
) -> FetchOutcomes:
    """Return the outcomes of a response to a request for all of its partitions."""
    wanted = {tp: PartitionData(5, 0, max_bytes, 0) for tp in contents}
    found = contents.items()
    return fetch_outcomes(
        found, m.FetchResponse(), wanted, NODE, response_limit=response_limit, max_response_size=LIMIT
    )


# -- error codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), KINDS.items(), ids=[code.name for code in KINDS])
def test_a_code_has_the_outcome_that_it_has_in_java(code: ErrorCode, kind: type) -> None:
    outcome = outcome_of(data_of(error_code=code))
    assert type(outcome) is kind
    if code:
        assert outcome.error.code == code  # type: ignore[union-attr]
        assert "orders-3 from node 1" in str(outcome.error)  # type: ignore[union-attr]


def test_the_table_lists_the_codes_that_kafka_lists() -> None:
    unlisted = {ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.INVALID_REQUEST}
    assert FETCH_ACTIONS.keys() == KINDS.keys() - unlisted


@pytest.mark.parametrize("code", [*ErrorCode, 999, -2])
def test_every_code_has_an_outcome(code: int) -> None:
    """A code that a retry heals is never raised to the reader, and one that it does not heal is not retried forever."""
    outcome = outcome_of(data_of(error_code=code))
    action = fetch_action(code)
    if action is FetchAction.DELIVER:
        assert code == ErrorCode.NONE
    elif action is FetchAction.RESET:
        assert isinstance(outcome, OutOfRange)
        assert code == ErrorCode.OFFSET_OUT_OF_RANGE
    elif action is FetchAction.REDISPATCH:
        assert isinstance(outcome, Retriable)
        assert is_retriable(code) or code in FETCH_ACTIONS
    else:
        assert isinstance(outcome, Fatal)
        # a corrupt log stays corrupt
        assert not is_retriable(code) or code == ErrorCode.CORRUPT_MESSAGE


def test_an_error_counts_and_not_the_records_beside_it() -> None:
    data = data_of(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, records=BATCH, preferred_read_replica=2)
    assert isinstance(outcome_of(data), Retriable)


@pytest.mark.parametrize("code", [code for code, kind in KINDS.items() if kind is Retriable])
def test_a_former_leader_names_the_new_one(code: ErrorCode) -> None:
    response = m.FetchResponse(node_endpoints=[m.FetchResponse.NodeEndpoint(2, "10.0.0.2", 9002, "r2")])
    leader = m.FetchResponse.LeaderIdAndEpoch(2, 6)
    outcome = outcome_of(data_of(error_code=code, current_leader=leader), response)
    assert isinstance(outcome, Retriable)
    assert outcome.leader == LeaderHint(2, 6, [BrokerInfo(2, "10.0.0.2", 9002, "r2")])
    without = outcome_of(data_of(error_code=code), response)
    assert isinstance(without, Retriable)
    assert without.leader is None


# -- without an error --------------------------------------------------------------------------------------------------


def test_records_come_with_the_offsets_of_the_log() -> None:
    aborted = [m.FetchResponse.AbortedTransaction(7, 1)]
    outcome = outcome_of(data_of(records=BATCH, aborted_transactions=aborted))
    assert outcome == FetchedRecords(BATCH, 90, 10, 80, aborted, zero_copy=False)


def test_a_diverging_epoch_comes_before_all_else() -> None:
    """The records of such a response belong to another history of the log."""
    end = m.FetchResponse.EpochEndOffset(3, 40)
    outcome = outcome_of(data_of(records=BATCH, diverging_epoch=end, preferred_read_replica=2))
    assert outcome == EpochEnd(EpochEndOffset(3, 40))


@pytest.mark.parametrize(("replica", "is_advice"), [(2, True), (NODE, False), (-1, False)])
def test_a_read_replica_is_another_node(replica: int, is_advice: bool) -> None:
    outcome = outcome_of(data_of(preferred_read_replica=replica))
    assert isinstance(outcome, ReadReplica if is_advice else FetchedRecords)
    assert not is_advice or outcome == ReadReplica(replica)


# -- batches that are cut ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 16, 17, 60, len(BATCH) - 1])
def test_a_batch_that_would_have_fit_was_damaged(length: int) -> None:
    (found,) = outcomes_of({TP: data_of(records=BATCH[:length])}).partitions
    tp, outcome = found
    assert tp == TP
    assert isinstance(outcome, Retriable)
    assert isinstance(outcome.error, CorruptRecordsError)
    assert f"orders-3 at offset 5: {length} bytes" in str(outcome.error)


@pytest.mark.parametrize("limits", [{"max_bytes": 50}, {"response_limit": 50}])
def test_a_batch_above_the_requested_bytes_is_too_large(limits: dict[str, int]) -> None:
    (found,) = outcomes_of({TP: data_of(records=BATCH[:50])}, **limits).partitions
    outcome = found[1]
    assert isinstance(outcome, TooLarge)
    error = outcome.error
    assert (error.tp, error.offset, error.size, error.limit) == (TP, 5, len(BATCH), 50)


def test_a_batch_above_the_requested_bytes_waits_for_its_turn_beside_others() -> None:
    other = TopicPartition("users", 0)
    contents = {other: data_of(0, records=BATCH), TP: data_of(records=BATCH[:50])}
    outcomes = outcomes_of(contents, max_bytes=50)
    assert outcomes.served == [other]
    assert dict(outcomes.partitions)[TP] == FetchedRecords(None, 90, 10, 80, [], zero_copy=False)


def test_a_length_that_no_response_can_have_is_damage() -> None:
    """No limit of a broker explains such a length, so the batch is fetched again and not raised as too large."""
    damaged = BATCH[:8] + (LIMIT + 1).to_bytes(4) + BATCH[12:50]
    (found,) = outcomes_of({TP: data_of(records=damaged)}, max_bytes=50).partitions
    assert isinstance(found[1], Retriable)


def test_a_cut_after_the_first_batch_is_normal() -> None:
    (found,) = outcomes_of({TP: data_of(records=BATCH + BATCH[:50])}, max_bytes=50).partitions
    assert found[1] == FetchedRecords(BATCH + BATCH[:50], 90, 10, 80, [], zero_copy=True)


# -- whole responses ---------------------------------------------------------------------------------------------------

CONTENTS = {
    "records": {"records": BATCH},
    "none": {"records": b""},
    "missing": {"records": None},
    "cut": {"records": BATCH[:50]},
    "error": {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER},
    "elsewhere": {"preferred_read_replica": 2},
}

PARTITIONS = st.tuples(st.sampled_from(sorted(IDS)), st.integers(0, 5)).map(lambda tp: TopicPartition(*tp))


def response_of(contents: dict[TopicPartition, str], *, by_id: bool) -> m.FetchResponse:
    """Return a response with one entry for each partition, as brokers may group them as they like."""
    topics = [
        m.FetchResponse.FetchableTopicResponse(
            topic="" if by_id else tp.topic,
            topic_id=IDS[tp.topic] if by_id else m.NO_UUID,
            partitions=[data_of(tp.partition, **CONTENTS[content])],
        )
        for tp, content in contents.items()
    ]
    return m.FetchResponse(responses=topics)


@given(
    st.dictionaries(PARTITIONS, st.sampled_from(sorted(CONTENTS)), max_size=8),
    st.sets(PARTITIONS, max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_a_response_has_an_outcome_for_each_requested_partition(
    contents: dict[TopicPartition, str], wanted: set[TopicPartition], by_id: bool, is_small: bool
) -> None:
    """Not for others: a broker must not be able to move or fail a partition that it was not asked about."""
    requested = {tp: PartitionData(5, 0, 50 if is_small else LIMIT, 0) for tp in wanted}
    names = {IDS[tp.topic]: tp.topic for tp in wanted}
    response = response_of(contents, by_id=by_id)
    outcomes = fetch_outcomes(
        response_partitions(response, names)[0],
        response,
        requested,
        NODE,
        response_limit=LIMIT,
        max_response_size=LIMIT,
    )
    answered = {tp: content for tp, content in contents.items() if tp in wanted}
    assert [tp for tp, _ in outcomes.partitions] == list(answered)
    assert outcomes.served == [tp for tp, content in answered.items() if content == "records"]
    sizes = [len(CONTENTS[content].get("records") or b"") for content in answered.values()]
    assert outcomes.total_bytes == sum(sizes)
    for tp, outcome in outcomes.partitions:
        check_outcome(outcome, answered[tp], outcomes, is_small=is_small)
        if isinstance(outcome, FetchedRecords):
            # `data` may keep the whole response in memory only if there is nothing else in it
            assert outcome.zero_copy == (sum(map(bool, sizes)) == 1)


def check_outcome(outcome: FetchOutcome, content: str, outcomes: FetchOutcomes, *, is_small: bool) -> None:
    """Check the outcome of a partition by what the response had of it."""
    if content == "cut":
        # it is never taken as if it had no records, without an error and without another partition's records
        if not is_small:
            assert isinstance(outcome, Retriable)
        elif outcomes.served:
            assert isinstance(outcome, FetchedRecords)
            assert outcome.data is None
        else:
            assert isinstance(outcome, TooLarge)
        return
    kinds = {"error": Retriable, "elsewhere": ReadReplica}
    assert isinstance(outcome, kinds.get(content, FetchedRecords))
    if isinstance(outcome, FetchedRecords):
        assert outcome.data == CONTENTS[content]["records"]
