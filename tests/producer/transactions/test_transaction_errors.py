"""Each error code at each request of a transaction: retried, aborted, or fatal; and what an aborted producer does next."""

from __future__ import annotations

from typing import Any, Final

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.producer import Producer
from tests.producer.support import TOPIC
from tests.producer.transactions.support import (
    INPUT,
    cluster_with_topics,
    committed,
    offsets_of,
    producer_of,
    requests,
    transacting,
)
from tests.profiles import thinned

E = ErrorCode

RETRIED: Final = "retried"
ABORTED: Final = "aborted"
FENCED: Final = "fenced"
FATAL: Final = "fatal"

COORDINATOR: Final = dict.fromkeys(
    [
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.REQUEST_TIMED_OUT,
    ],
    RETRIED,
)
EPOCH: Final = {E.INVALID_PRODUCER_EPOCH: FENCED, E.PRODUCER_FENCED: FENCED}
COMMON: Final = {
    **COORDINATOR,
    **EPOCH,
    E.CONCURRENT_TRANSACTIONS: RETRIED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    E.CLUSTER_AUTHORIZATION_FAILED: FATAL,
    E.INVALID_TXN_STATE: FATAL,
    E.INVALID_PRODUCER_ID_MAPPING: ABORTED,
    E.UNKNOWN_PRODUCER_ID: ABORTED,
    E.TRANSACTION_ABORTABLE: ABORTED,
}
TABLE: Final[dict[str, dict[ErrorCode, str]]] = {
    "AddPartitionsToTxn": {
        **COMMON,
        E.UNKNOWN_TOPIC_OR_PARTITION: RETRIED,
        E.TOPIC_AUTHORIZATION_FAILED: ABORTED,
        E.UNKNOWN_SERVER_ERROR: ABORTED,
        E.INVALID_REQUEST: ABORTED,
    },
    "AddOffsetsToTxn": {**COMMON, E.GROUP_AUTHORIZATION_FAILED: ABORTED, E.UNKNOWN_SERVER_ERROR: ABORTED},
    "TxnOffsetCommit": {
        **COMMON,
        E.INVALID_TXN_STATE: ABORTED,
        E.UNKNOWN_TOPIC_OR_PARTITION: RETRIED,
        E.GROUP_AUTHORIZATION_FAILED: ABORTED,
        E.TOPIC_AUTHORIZATION_FAILED: ABORTED,
        E.OFFSET_METADATA_TOO_LARGE: ABORTED,
        E.FENCED_INSTANCE_ID: ABORTED,
        E.UNKNOWN_MEMBER_ID: ABORTED,
        E.ILLEGAL_GENERATION: ABORTED,
        E.STALE_MEMBER_EPOCH: ABORTED,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT: FATAL,
        E.UNKNOWN_SERVER_ERROR: ABORTED,
    },
    "EndTxn": {**COMMON, E.UNKNOWN_SERVER_ERROR: FATAL, E.INVALID_REQUEST: FATAL},
    "Produce": {
        **EPOCH,
        E.NOT_LEADER_OR_FOLLOWER: RETRIED,
        E.NOT_ENOUGH_REPLICAS: RETRIED,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: RETRIED,
        E.CONCURRENT_TRANSACTIONS: RETRIED,
        E.KAFKA_STORAGE_ERROR: RETRIED,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
        E.CLUSTER_AUTHORIZATION_FAILED: FATAL,
        E.INVALID_TXN_STATE: ABORTED,
        E.INVALID_PRODUCER_ID_MAPPING: ABORTED,
        E.UNKNOWN_PRODUCER_ID: ABORTED,
        E.OUT_OF_ORDER_SEQUENCE_NUMBER: ABORTED,
        E.TRANSACTION_ABORTABLE: ABORTED,
        E.MESSAGE_TOO_LARGE: ABORTED,
        E.TOPIC_AUTHORIZATION_FAILED: ABORTED,
        E.INVALID_RECORD: ABORTED,
        E.UNKNOWN_SERVER_ERROR: ABORTED,
    },
}
ONLY_V1: Final = {"AddPartitionsToTxn", "AddOffsetsToTxn"}
CASES: Final = [
    pytest.param(api, code, expected, version, id=f"{api}-{code.name}-v{version}")
    for api, codes in TABLE.items()
    for code, expected in codes.items()
    for version in ((1,) if api in ONLY_V1 else (1, 2))
]


async def transaction(producer: Producer, value: bytes, next_offset: int) -> None:
    """Write a record and an offset in a transaction."""
    async with producer.transaction():
        await producer.send(TOPIC, value, partition=0)
        await producer.send_offsets(offsets_of("g", next_offset))


def committed_offset(cluster: EmbeddedCluster) -> int | None:
    found = cluster.group("g").offsets.get(TopicPartition(INPUT, 0))
    return None if found is None else found.offset


@pytest.mark.parametrize(("api", "code", "expected", "version"), thinned(CASES, 6))
async def test_an_error(api: str, code: ErrorCode, expected: str, version: int) -> None:
    async with transacting(close_timeout=1.0) as (cluster, producer):
        fault = cluster.faults.on(api).error(code)
        raised: AsyncGroupError | None = None
        try:
            await transaction(producer, b"first", 1)
        except AsyncGroupError as error:
            raised = error
        assert fault.hits == 1
        assert (raised is None) is (expected == RETRIED), raised
        assert committed(cluster) == ([b"first"] if raised is None else [])
        assert committed_offset(cluster) == (1 if raised is None else None)
        if expected == FENCED:
            assert isinstance(raised, ProducerFencedError)
            assert raised.current == (
                raised.producer_id,
                raised.epoch,
            )  # the embedded cluster has fenced nothing
        elif raised is not None:
            assert code.name in str(raised)
        if expected == ABORTED and api == "TxnOffsetCommit":
            assert isinstance(raised, CommitFailedError)
        if expected in (FENCED, FATAL):
            with pytest.raises(type(raised)) as again:  # type: ignore[arg-type]
                await transaction(producer, b"second", 2)
            assert str(raised).endswith(str(again.value))
            assert again.value is not raised
        else:
            await transaction(producer, b"second", 2)
            assert committed(cluster)[-1] == b"second"
            assert committed_offset(cluster) == 2


@pytest.mark.parametrize("version", [1, 2])
async def test_an_aborted_transaction_is_followed_by_the_next_epoch(version: int) -> None:
    """Under the former epoch a broker could take a new batch for the one that failed."""
    async with transacting() as (cluster, producer):
        cluster.faults.on("Produce").error(E.INVALID_RECORD)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await transaction(producer, b"first", 1)
        await transaction(producer, b"second", 2)
        epochs = [exchange.request.producer_epoch for exchange in cluster.history.of("EndTxn")]
        assert epochs == [0, 1]
        inits = [exchange.request.producer_epoch for exchange in cluster.history.of("InitProducerId")]
        assert inits == ([-1, 0] if version == 1 else [-1])


async def test_a_lost_enqueued_record_aborts_at_the_end_of_the_block() -> None:
    async with transacting() as (cluster, producer):
        cluster.faults.on("Produce").error(E.INVALID_RECORD)
        with pytest.raises(
            TransactionAbortedError, match="RecordRejectedError: 1 record for orders-0: INVALID_RECORD"
        ) as raised:
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"lost", partition=0)
        assert isinstance(raised.value.__cause__, BrokerError)
        assert requests(cluster, "Produce", "EndTxn") == ["Produce", "EndTxn"]
        assert committed(cluster) == []


async def test_the_other_records_of_a_failed_transaction_fail_at_once() -> None:
    async with transacting() as (cluster, producer):
        held = cluster.faults.on("Produce", node=cluster.leader(TOPIC, 1)).hold()
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            async with producer.transaction():
                waiting = producer.send_nowait(TOPIC, b"x", partition=1)
                await held.wait_hit()
                cluster.faults.on("Produce").error(E.INVALID_RECORD)
                try:
                    await producer.send(TOPIC, b"y", partition=0)
                finally:
                    with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
                        waiting.result()
                    with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
                        await producer.send(TOPIC, b"z")
                    with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
                        await producer.send_offsets(offsets_of())
                    held.release()
        assert committed(cluster) == []


@pytest.mark.parametrize("version", [1, 2])
async def test_a_transaction_in_which_every_record_failed_is_aborted(version: int) -> None:
    """It hung in franz-go before 1.21.4. The coordinator may not even know the transaction."""
    async with transacting() as (cluster, producer):
        cluster.faults.on("Produce", times=None).error(E.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(TransactionAbortedError, match="TOPIC_AUTHORIZATION_FAILED"):
            async with producer.transaction():
                for index in range(3):
                    await producer.enqueue(TOPIC, b"x", partition=index)
        cluster.faults.clear()
        async with producer.transaction():
            await producer.send(TOPIC, b"y", partition=0)
        assert committed(cluster) == [b"y"]


@pytest.mark.parametrize("version", [1])
async def test_a_failed_addition_aborts_with_the_earlier_partitions(version: int) -> None:
    """franz-go before 1.21.4 forgot the partitions added earlier, and left their transaction open."""
    async with transacting() as (cluster, producer):
        cluster.faults.on("AddPartitionsToTxn", nth=2).error(E.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(TransactionAbortedError, match="TOPIC_AUTHORIZATION_FAILED"):
            async with producer.transaction():
                await producer.send(TOPIC, b"first", partition=0)
                await producer.send(TOPIC, b"second", partition=1)
        assert requests(cluster, "AddPartitionsToTxn", "EndTxn") == [*["AddPartitionsToTxn"] * 2, "EndTxn"]
        (end,) = cluster.history.of("EndTxn")
        assert not end.request.committed
        assert not end.response.error_code


async def test_a_topic_that_cannot_be_looked_up_aborts() -> None:
    async with transacting(metadata_retry_max=1) as (cluster, producer):
        with pytest.raises(TransactionAbortedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            async with producer.transaction():
                await producer.enqueue("absent", b"x")
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            async with producer.transaction():
                await producer.send("absent", b"x")
        with pytest.raises(TransactionAbortedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            async with producer.transaction():
                producer.send_nowait("absent", b"x").add_done_callback(lambda future: future.exception())
        assert requests(cluster) == ["InitProducerId"]  # nothing was begun


# --- InitProducerId -------------------------------------------------------------------------------------------------


INIT: Final = {
    **COORDINATOR,
    E.CONCURRENT_TRANSACTIONS: RETRIED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    E.CLUSTER_AUTHORIZATION_FAILED: FATAL,
    E.INVALID_TRANSACTION_TIMEOUT: FATAL,
    E.UNKNOWN_SERVER_ERROR: FATAL,
    E.PRODUCER_FENCED: FENCED,
}


@pytest.mark.parametrize(("code", "expected"), INIT.items(), ids=[code.name for code in INIT])
async def test_an_error_of_the_first_init_producer_id(code: ErrorCode, expected: str) -> None:
    async with cluster_with_topics() as cluster:
        cluster.faults.on("InitProducerId").error(code)
        producer = producer_of(cluster)
        if expected == RETRIED:
            async with producer:
                await transaction(producer, b"x", 1)
            return
        with pytest.raises(ProducerFencedError if expected == FENCED else BrokerError):
            await producer.__aenter__()
        async with producer_of(cluster) as other:  # nothing is left of the first one
            await transaction(other, b"y", 1)
        assert committed(cluster) == [b"y"]


async def test_a_transaction_timeout_above_the_brokers_limit(cluster: EmbeddedCluster) -> None:
    with pytest.raises(BrokerError, match=r"INVALID_TRANSACTION_TIMEOUT.*transaction.max.timeout.ms"):
        await producer_of(cluster, transaction_timeout=1800.0).__aenter__()


LOOKUP: Final[dict[ErrorCode, Any]] = {
    E.COORDINATOR_NOT_AVAILABLE: RETRIED,
    E.COORDINATOR_LOAD_IN_PROGRESS: RETRIED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FATAL,
    E.UNKNOWN_SERVER_ERROR: FATAL,
}


@pytest.mark.parametrize(("code", "expected"), LOOKUP.items(), ids=[code.name for code in LOOKUP])
async def test_an_error_of_find_coordinator(cluster: EmbeddedCluster, code: ErrorCode, expected: str) -> None:
    cluster.faults.on("FindCoordinator", where=lambda request: request.key_type == 1).error(code)
    producer = producer_of(cluster)
    if expected == RETRIED:
        async with producer:
            await transaction(producer, b"x", 1)
        assert committed(cluster) == [b"x"]
    else:
        with pytest.raises(BrokerError, match=code.name):
            await producer.__aenter__()


async def test_a_group_that_may_not_be_looked_up_aborts(cluster: EmbeddedCluster, producer: Producer) -> None:
    cluster.faults.on("FindCoordinator", where=lambda request: request.key_type == 0).error(
        E.GROUP_AUTHORIZATION_FAILED
    )
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        await transaction(producer, b"first", 1)
    await transaction(producer, b"second", 2)
    assert committed(cluster) == [b"second"]


@pytest.mark.parametrize("version", [1])
@pytest.mark.parametrize(
    "code", [E.TOPIC_AUTHORIZATION_FAILED, E.INVALID_PRODUCER_ID_MAPPING, E.PRODUCER_FENCED]
)
async def test_refused_partitions_are_not_added_to_the_aborted_transaction(
    cluster: EmbeddedCluster, producer: Producer, code: ErrorCode, version: int
) -> None:
    """They would make it one that the coordinator knows; as in Java, the abort needs no EndTxn then."""
    cluster.faults.on("AddPartitionsToTxn").error(code)
    with pytest.raises(AsyncGroupError):
        async with producer.transaction():
            await producer.enqueue(TOPIC, b"a", partition=0)
            await producer.enqueue(TOPIC, b"b", partition=1)
    sent = requests(cluster)
    assert sent.count("AddPartitionsToTxn") == 1, sent
    assert "EndTxn" not in sent
