"""What callers of a producer can get wrong, and what brokers can: one clear error each, and no record vanishes.

Each error names the thing and its value, and what is allowed or which limit was reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    DeliveryFailedError,
    InvalidRecordError,
    NoTransactionError,
    NotTransactionalError,
    ProducerFencedError,
    QueueFull,
    RecordRejectedError,
    RequestTimedOut,
    TransactionAbortedError,
    TransactionInProgressError,
)
from asyncgroup.producer import Producer

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")

TOPIC = "orders"
Action = Callable[[EmbeddedCluster, Producer], Awaitable[Any]]


class Mistake(NamedTuple):
    """What is done, which error it raises, and the settings of the producer."""

    action: Action
    error: type[AsyncGroupError]
    message: str
    config: dict[str, Any] = {}
    in_log: int = 1
    """Records in the log at the end; the first one was written before the mistake."""


async def too_large(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.send(TOPIC, b"x" * 2_000_000)


async def too_large_for_the_broker(cluster: EmbeddedCluster, producer: Producer) -> None:
    cluster.faults.on("Produce").error("MESSAGE_TOO_LARGE")
    await producer.send(TOPIC, b"x", partition=0)


async def unknown_topic(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.send("missing", b"x")


async def unknown_topic_of_enqueue(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.enqueue("missing", b"x")
    await producer.flush()


async def unknown_partition(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.send(TOPIC, b"x", partition=9)


async def wrong_type(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.send(TOPIC, "text")  # type: ignore[arg-type]


async def illegal_topic(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.send("my topic", b"x")


async def closed(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.aclose()
    await producer.send(TOPIC, b"x")


async def closed_at_once(cluster: EmbeddedCluster, producer: Producer) -> None:
    cluster.faults.on("Produce").drop()
    record = producer.send_nowait(TOPIC, b"x", partition=0)
    await asyncio.sleep(1.0)
    await producer.aclose(drain=False)
    await record


async def full(cluster: EmbeddedCluster, producer: Producer) -> None:
    cluster.faults.on("Produce").delay(1.0)
    try:
        for _ in range(100):
            producer.send_nowait(TOPIC, b"x" * 500, partition=0)
    finally:
        await producer.flush()


async def broker_away(cluster: EmbeddedCluster, producer: Producer) -> None:
    await cluster.stop_node(1)
    await producer.send(TOPIC, b"x", partition=0)


async def broker_away_for_enqueue(cluster: EmbeddedCluster, producer: Producer) -> None:
    await cluster.stop_node(1)
    await producer.enqueue(TOPIC, b"x", partition=0)
    await producer.flush()


async def broker_frozen(cluster: EmbeddedCluster, producer: Producer) -> None:
    cluster.faults.on("Produce", times=None).drop()
    await producer.send(TOPIC, b"x", partition=0)


async def not_transactional(_: EmbeddedCluster, producer: Producer) -> None:
    async with producer.transaction():
        pass


async def outside_a_transaction(_: EmbeddedCluster, producer: Producer) -> None:
    await producer.send(TOPIC, b"x", partition=0)


async def two_transactions(_: EmbeddedCluster, producer: Producer) -> None:
    async with producer.transaction(), producer.transaction():
        pass


async def two_transactions_in_two_tasks(cluster: EmbeddedCluster, producer: Producer) -> None:
    async with producer.transaction():
        await producer.send(TOPIC, b"x", partition=0)
        await asyncio.create_task(two_transactions(cluster, producer))


async def left_open(_: EmbeddedCluster, producer: Producer) -> None:
    """The caller writes for longer than the transaction timeout."""
    async with producer.transaction():
        await producer.send(TOPIC, b"x", partition=0)
        await asyncio.sleep(100.0)


async def fenced(cluster: EmbeddedCluster, producer: Producer) -> None:
    async with producer.transaction():
        await producer.send(TOPIC, b"x", partition=0)
        async with Producer(cluster.bootstrap_servers, ProducerConfig(transactional_id="tx")):
            await producer.send(TOPIC, b"y", partition=0)


async def closed_in_a_transaction(_: EmbeddedCluster, producer: Producer) -> None:
    async with producer.transaction():
        await producer.send(TOPIC, b"x", partition=0)
        await producer.aclose()


async def swallowed_error(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A lost record is never committed around, even if its caller ignores the error."""
    async with producer.transaction():
        cluster.faults.on("Produce").error("INVALID_RECORD")
        await asyncio.gather(producer.send(TOPIC, b"x", partition=0), return_exceptions=True)


TX: dict[str, Any] = {"transactional_id": "tx"}
SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}

MISTAKES = [
    Mistake(
        too_large,
        InvalidRecordError,
        r"size=2000021 is not allowed: a record of at most max_request_size=1048576 \(chunking=True splits values\)",
    ),
    Mistake(
        too_large_for_the_broker,
        RecordRejectedError,
        r"1 record for orders-0: MESSAGE_TOO_LARGE \(10\): \d+ bytes; the limit is max.message.bytes of the topic",
    ),
    Mistake(
        unknown_topic, BrokerError, r"topic 'missing': UNKNOWN_TOPIC_OR_PARTITION \(3\): it does not exist"
    ),
    Mistake(
        unknown_topic_of_enqueue,
        DeliveryFailedError,
        r"1 record not delivered: topic 'missing': UNKNOWN_TOPIC_OR_PARTITION \(3\): it does not exist",
    ),
    Mistake(
        unknown_partition,
        InvalidRecordError,
        r"partition=9 is not allowed: orders-9 does not exist, the topic has 1 partition",
    ),
    Mistake(
        wrong_type,
        InvalidRecordError,
        r"value='text' is not allowed: bytes or None; encode text first: value.encode\(\)",
    ),
    Mistake(
        illegal_topic,
        InvalidRecordError,
        r"topic='my topic' is not allowed: 1 to 249 of the characters a-z A-Z 0-9 . _ -",
    ),
    Mistake(closed, ClosedError, r"the producer is closed"),
    Mistake(
        closed_at_once,
        ClosedError,
        r"the producer was closed with 1 record for 1 partition not acknowledged \(drain=False\)",
        in_log=2,
    ),
    Mistake(
        full,
        QueueFull,
        r"no room for 521 bytes: buffer_bytes=1200: 1042 bytes in use",
        {"buffer_bytes": 1200},
        in_log=3,
    ),
    Mistake(
        broker_away,
        RequestTimedOut,
        r"'orders' could not be looked up within delivery_timeout=20 s: .* Connection refused",
        SHORT,
    ),
    Mistake(
        broker_away_for_enqueue,
        DeliveryFailedError,
        r"1 record not delivered: topic 'orders' .* within delivery_timeout=20 s: .* Connection refused",
        SHORT,
    ),
    Mistake(
        broker_frozen,
        RequestTimedOut,
        r"1 record for orders-0: not acknowledged within delivery_timeout=20 s, 4 attempts: .* no response to Produce",
        SHORT,
        in_log=2,
    ),
    Mistake(not_transactional, NotTransactionalError, r"transaction needs ProducerConfig\(transactional_id="),
    Mistake(
        outside_a_transaction,
        NoTransactionError,
        r"'tx': a record is written in a transaction only \(`async with producer.transaction\(\)`\)",
        TX,
    ),
    Mistake(
        two_transactions,
        TransactionInProgressError,
        r"transactional id 'tx' is in a transaction: a producer has one transaction at a time",
        TX,
    ),
    Mistake(
        two_transactions_in_two_tasks,
        TransactionInProgressError,
        r"transactional id 'tx' is in a transaction: a producer has one transaction at a time",
        TX,
        in_log=2,
    ),
    Mistake(
        left_open,
        ProducerFencedError,
        r"'tx': fenced: .* took longer than transaction_timeout=30 s and the coordinator aborted it",
        {**TX, "transaction_timeout": 30.0},
        in_log=2,
    ),
    Mistake(
        fenced,
        ProducerFencedError,
        r"'tx': fenced: producer id \d+ with epoch 0 is no longer valid; the coordinator has producer id \d+ with epoch \d",
        TX,
        in_log=2,
    ),
    Mistake(
        closed_in_a_transaction,
        ClosedError,
        r"the producer was closed before its transaction was committed",
        TX,
        in_log=2,
    ),
    Mistake(
        swallowed_error,
        TransactionAbortedError,
        r"'tx': the transaction is aborted: RecordRejectedError: 1 record for orders-0: INVALID_RECORD \(87\)",
        TX,
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.action.__name__ for mistake in MISTAKES])
async def test_mistake(mistake: Mistake) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        cluster.produce(TOPIC, b"first", partition=0)
        settings = ProducerConfig(**{"linger": 0.0, **mistake.config})
        async with Producer(cluster.bootstrap_servers, settings) as producer:
            with pytest.raises(mistake.error, match=mistake.message) as raised:
                await mistake.action(cluster, producer)
            assert type(raised.value) is mistake.error
            assert producer._inner.memory.used == 0
            assert producer._inner.pending == 0
        assert len(cluster.records(TOPIC)) == mistake.in_log
