"""Interceptors of producers, sequence ids of our own, and the hook with a batch's figures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import Interceptor
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    ConfigError,
    DeliveryFailedError,
    ErrorCode,
    InvalidRecordError,
    QueueFull,
    RecordRejectedError,
)
from asyncgroup.interceptor import ProduceInterceptor
from asyncgroup.model import BatchResult, Record, RecordMetadata
from asyncgroup.producer import Producer, ProducerRecord
from asyncgroup.producer.interceptors import ProducerInterceptors
from tests.producer.support import TOPIC, now, stored


class Recorder(Interceptor):
    """Records what it is called with."""

    def __init__(self) -> None:
        self.sent: list[ProducerRecord] = []
        self.ends: list[tuple[ProducerRecord, RecordMetadata | None, Exception | None]] = []

    def on_send(self, record: ProducerRecord) -> None:
        self.sent.append(record)

    def on_acknowledgement(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        self.ends.append((record, metadata, error))

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(metadata.partition, metadata.offset) for _, metadata, _ in self.ends if metadata is not None]

    @property
    def errors(self) -> list[type[Exception]]:
        return [type(error) for _, _, error in self.ends if error is not None]


@asynccontextmanager
async def intercepted(
    *interceptors: ProduceInterceptor, config: dict[str, Any] | None = None, **arguments: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 3)
        settings = ProducerConfig(**{"linger": 0.0, **(config or {})})
        async with Producer(
            cluster.bootstrap_servers,
            settings,
            interceptors=interceptors,
            clock=lambda: 5,
            rng=random.Random(1),
            **arguments,
        ) as producer:
            yield cluster, producer


async def test_each_record_is_seen_twice() -> None:
    seen = Recorder()
    async with intercepted(seen) as (_, producer):
        await producer.send(TOPIC, b"a", key=b"k", partition=1)
        await producer.send_nowait(TOPIC, b"b", headers=[("h", b"1")], partition=1)
        await producer.enqueue(TOPIC, b"c", partition=1, timestamp=7)
        assert len(seen.ends) == 2
        await producer.flush()
        assert seen.sent == [
            (TOPIC, b"a", b"k", (), 1, None),
            (TOPIC, b"b", None, [("h", b"1")], 1, None),
            (TOPIC, b"c", None, (), 1, 7),
        ]
        assert [record for record, _, _ in seen.ends] == seen.sent
        assert seen.places == [(1, 0), (1, 1), (1, 2)]


async def test_a_chain_changes_records() -> None:
    class Tag(Interceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(headers=[*record.headers, (self.name, b"")], partition=2)

    seen = Recorder()
    async with intercepted(Tag("one"), Tag("two"), seen) as (cluster, producer):
        assert (await producer.send(TOPIC, b"a", partition=0)).partition == 2
        (record,) = cluster.records(TOPIC)
        assert [name for name, _ in record.headers] == ["one", "two"]
        assert len(seen.ends[0][0].headers) == 2


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError()], ids=repr)
async def test_an_interceptor_that_raises_breaks_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise error

        def on_acknowledgement(self, *_: object) -> None:
            raise error

    seen = Recorder()
    async with intercepted(Broken(), seen) as (cluster, producer):
        for _ in range(3):
            await producer.send(TOPIC, b"a")
            await producer.enqueue(TOPIC, b"b")
        await producer.flush()
        assert len(stored(cluster)) == len(seen.ends) == 6
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in texts] == ["on_send", "on_acknowledgement"], "each is logged once"


async def test_what_is_not_a_record_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Interceptor):
        def on_send(self, record: ProducerRecord) -> Any:
            return record.value

    async with intercepted(Wrong()) as (cluster, producer):
        await producer.send(TOPIC, b"a")
        assert stored(cluster) == [b"a"]
    assert "which is not a ProducerRecord" in caplog.text


async def test_failures_are_reported_to_interceptors_callers_and_flush() -> None:
    seen = Recorder()
    async with intercepted(seen) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").error(ErrorCode.INVALID_RECORD)
        future = producer.send_nowait(TOPIC, b"a", partition=1)
        await producer.enqueue(TOPIC, b"b", partition=1)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await future
        with pytest.raises(DeliveryFailedError, match="for orders-1"):
            await producer.flush()
        with pytest.raises(InvalidRecordError):
            await producer.send(TOPIC, "text")  # type: ignore[arg-type]
        assert seen.errors == [BrokerError, BrokerError, InvalidRecordError]
    assert len(seen.sent) == len(seen.ends)


async def test_records_that_are_not_accepted_end_as_well() -> None:
    seen = Recorder()
    async with intercepted(seen, config={"buffer_bytes": 400}) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        fault = cluster.faults.on("Produce").hold()
        first = producer.send_nowait(TOPIC, b"." * 300, partition=1)
        with pytest.raises(QueueFull, match="buffer_bytes=400"):
            producer.send_nowait(TOPIC, b"." * 300)
        waiting = asyncio.create_task(producer.send(TOPIC, b"." * 300, partition=1))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        fault.release()
        await first
        await producer.aclose()
        with pytest.raises(ClosedError):
            producer.send_nowait(TOPIC, b"x")
    assert seen.errors == [QueueFull, ClosedError, ClosedError]
    assert "withdrawn" in str(seen.ends[2][2])
    assert len(seen.sent) == len(seen.ends) == 5


async def test_a_topic_that_does_not_exist() -> None:
    seen = Recorder()
    config = {"allow_auto_topic_creation": False, "metadata_retry_max": 1}
    async with intercepted(seen, config=config) as (_, producer):
        await producer.enqueue("missing", b"x")
        with pytest.raises(DeliveryFailedError, match="missing"):
            await producer.flush()
        assert seen.errors == [BrokerError]


async def test_a_cancelled_caller_does_not_hide_the_acknowledgement() -> None:
    seen = Recorder()
    async with intercepted(seen) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        fault = cluster.faults.on("Produce").hold()
        sending = asyncio.create_task(producer.send(TOPIC, b"x", partition=1))
        await asyncio.sleep(1)
        sending.cancel()
        await asyncio.wait([sending])
        fault.release()
        await producer.flush()
        assert seen.places == [(0, 0), (1, 0)]


async def test_a_function_is_on_send() -> None:
    def tag(record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[("source", b"web")])

    async with intercepted(tag) as (cluster, producer):
        await producer.send(TOPIC, b"x", partition=0)
        assert [each.headers for each in cluster.records(TOPIC, 0)] == [[("source", b"web")]]


async def test_objects_with_some_of_the_methods() -> None:
    """An object that is callable and has a method is called by its method only."""
    ended: list[tuple[bytes | None, int]] = []

    class Ends:
        def on_acknowledgement(
            self, record: ProducerRecord, metadata: RecordMetadata | None, error: Exception | None
        ) -> None:
            assert metadata is not None
            ended.append((record.value, metadata.offset))

        def __call__(self, record: ProducerRecord) -> ProducerRecord:
            raise AssertionError(record)

    class Upper:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(value=(record.value or b"").upper())

    async with intercepted(Ends(), Upper(), Interceptor()) as (_, producer):
        await producer.send(TOPIC, b"x", partition=0)
        assert ended == [(b"X", 0)]


async def test_a_base_class_without_own_methods_costs_nothing() -> None:
    class Consumed(Interceptor):
        def on_consume(self, record: Record) -> None:
            raise AssertionError(record)

    assert not ProducerInterceptors([Interceptor(), Consumed()])
    assert ProducerInterceptors([Consumed(), print])  # type: ignore[list-item]


async def test_the_former_name_names_the_new_one() -> None:
    with pytest.raises(
        ImportError, match=r"^asyncgroup\.producer\.ProducerInterceptor is asyncgroup\.Interceptor now$"
    ):
        from asyncgroup.producer import ProducerInterceptor  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("wrong", [7, "audit", [Recorder], [object()], [7], Recorder])
async def test_wrong_interceptors(wrong: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"interceptors=.*a list of functions, or of objects with on_send or on_acknowledgement",
    ):
        Producer("localhost:9092", interceptors=wrong)


async def test_async_methods_are_refused() -> None:
    class Late(Interceptor):
        async def on_send(self, record: ProducerRecord) -> None:  # type: ignore[override]
            pass

    with pytest.raises(ConfigError, match="not coroutine functions"):
        Producer("localhost:9092", interceptors=[Late()])

    async def late(record: ProducerRecord) -> None:
        raise AssertionError(record)

    with pytest.raises(ConfigError, match="not coroutine functions"):
        Producer("localhost:9092", interceptors=[late])  # type: ignore[list-item]


# --- sequence ids ---------------------------------------------------------------------------------------------------


async def test_accepted_records_are_numbered() -> None:
    async with intercepted(initial_sequence_id=99) as (_, producer):
        with pytest.raises(InvalidRecordError):
            await producer.send(TOPIC, "text")  # type: ignore[arg-type]
        assert (await producer.send(TOPIC, b"a", partition=0)).sequence_id == 100
        await producer.enqueue(TOPIC, b"b", partition=1)
        futures = [producer.send_nowait(TOPIC, b"c", partition=n) for n in (2, 0, 1)]
        assert [(await future).sequence_id for future in futures] == [102, 103, 104]
    async with intercepted(initial_sequence_id=-1) as (_, producer):
        assert (await producer.send(TOPIC, b"a")).sequence_id == 0
    async with intercepted() as (_, producer):
        assert (await producer.send(TOPIC, b"a")).sequence_id is None
    for wrong in (-2, 1.0, True, "1"):
        with pytest.raises(ConfigError, match="initial_sequence_id="):
            Producer("localhost:9092", initial_sequence_id=wrong)  # type: ignore[arg-type]


# --- the hook with a batch's figures --------------------------------------------------------------------------------


class Batches:
    def __init__(self) -> None:
        self.results: list[BatchResult] = []

    def on_batch_done(self, batch: BatchResult) -> None:
        self.results.append(batch)


async def test_the_figures_of_a_batch() -> None:
    seen = Batches()
    config = {"linger": 0.5, "compression_type": "gzip", "retry_backoff": 0.1}
    async with intercepted(config=config, hooks=[seen]) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        seen.results.clear()
        cluster.faults.on("Produce").error(ErrorCode.NOT_ENOUGH_REPLICAS)
        start = now()
        for _ in range(3):
            await producer.enqueue(TOPIC, b"." * 1000, partition=1)
        await asyncio.sleep(5)
        cluster.faults.on("Produce").error(ErrorCode.INVALID_RECORD)
        with pytest.raises(BrokerError):
            await producer.send(TOPIC, b"y", partition=1)
    good, bad = seen.results
    assert (good.topic, good.partition, good.records, good.attempts) == (TOPIC, 1, 3, 2)
    assert (good.base_offset, good.error) == (0, None)
    assert 3 * 1000 < good.size < 3 * 1021 + 61
    assert 61 < good.wire_size < 200
    assert 0.5 < good.latency < 1.0 < now() - start
    assert (bad.records, bad.attempts, bad.base_offset, type(bad.error)) == (1, 1, -1, RecordRejectedError)
