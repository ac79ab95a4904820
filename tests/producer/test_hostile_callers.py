"""Callers whose arguments have wrong types, and whose code raises, or calls and closes the producer: no memory is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncgroup import Interceptor
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ClosedError, ConfigError, InvalidRecordError
from asyncgroup.producer import Producer
from tests.producer.support import QUICK, TOPIC, stored, writing
from tests.producer.transactions.support import cluster_with_topics

PLAIN = (TOPIC, b"x", None, (), None, None)
CHUNKS: dict[str, Any] = {"chunking": True, "max_chunk_size": 1024, "batch_size": 1}
LIMITS: dict[str, Any] = {"max_pending_records_per_partition": 5}

WRONG: dict[str, list[Any]] = {
    "topic": [None, 5, b"orders", [], {}, "", ".", "a" * 250, "ä", "\ud800", "a b", ("a",)],
    "value": ["text", 5, bytearray(b"x"), memoryview(b"x"), [b"x"], True],
    "key": ["text", 5, bytearray(b"x"), 0, False, "", []],
    "headers": [None, 5, 0, False, "", b"", {}, {"a": b"b"}, set(), iter([]), [None], ["ab"]],
    "header": [("a",), ("a", "b"), (b"a", b"b"), ("\ud800", b""), {"a": b"b"}],
    "partition": [-1, 2**31, 1.0, True, "0", b"0"],
    "timestamp": [-1, 2**63, 1.0, True, "0", float("nan")],
}


def calls_of(producer: Producer, **arguments: Any) -> list[Callable[[], Any]]:
    """Return a record's calls of each kind."""
    given = {"topic": TOPIC, "value": b"x", **arguments}
    names = ("topic", "value", "key", "headers", "partition", "timestamp")
    record = tuple(given.get(name, () if name == "headers" else None) for name in names)
    return [
        lambda: producer.send_nowait(**given),
        lambda: producer.send(**given),
        lambda: producer.enqueue(**given),
        lambda: producer.enqueue_all([record]),  # type: ignore[list-item]
    ]


@pytest.mark.parametrize("options", [{}, LIMITS, CHUNKS], ids=["plain", "limits", "chunks"])
@pytest.mark.parametrize("name", WRONG)
async def test_wrong_arguments(name: str, options: dict[str, Any]) -> None:
    async with writing(**options) as (cluster, producer):
        for wrong in WRONG[name]:
            arguments = {"headers": [wrong]} if name == "header" else {name: wrong}
            for call in calls_of(producer, **arguments):
                with pytest.raises(InvalidRecordError, match=name):
                    await call()
        await producer.flush()
        assert producer._inner.memory.used == 0
        assert stored(cluster) == []


@pytest.mark.parametrize("wrong", [(), (TOPIC,), 5, (TOPIC, b"x"), {}, None, "orders", (*PLAIN, None)])
async def test_wrong_records_of_enqueue_all(wrong: Any) -> None:
    """The earlier ones are written."""
    async with writing() as (cluster, producer):
        with pytest.raises(
            InvalidRecordError, match=r"a tuple of six values \(topic, value, key, headers|value='r'"
        ):
            await producer.enqueue_all([PLAIN, wrong])
        await producer.flush()
        assert stored(cluster) == [b"x"]
        assert producer._inner.memory.used == 0


@pytest.mark.parametrize("options", [{}, LIMITS, CHUNKS], ids=["plain", "limits", "chunks"])
async def test_records_of_enqueue_all_of_other_types(options: dict[str, Any]) -> None:
    """Any iterable of six fields, with and without further steps of a send; a large one is read once as well."""
    large = (TOPIC, b"y" * 4000, None, (), None, None)
    records: list[Any] = [list(PLAIN), iter(PLAIN), (each for each in PLAIN), iter(large)]
    async with writing(**options) as (cluster, producer):
        await producer.enqueue_all(records)
        await producer.flush()
        assert [value or b"" for value in stored(cluster)].count(b"x") == 3
        with pytest.raises(InvalidRecordError, match="a tuple of six values"):
            await producer.enqueue_all([iter(PLAIN[1:])])  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [None, 5, "orders", b"orders", TOPIC])
async def test_wrong_iterables_of_enqueue_all(wrong: Any) -> None:
    async with writing() as (_, producer):
        with pytest.raises(ConfigError, match="is not allowed: an iterable of records"):
            await producer.enqueue_all(wrong)


async def test_an_async_iterable_of_enqueue_all() -> None:
    async def records() -> Any:
        yield PLAIN

    async with writing() as (_, producer):
        with pytest.raises(ConfigError, match="not an async iterable"):
            await producer.enqueue_all(records())


@pytest.mark.parametrize("error", [ValueError, StopIteration, asyncio.CancelledError, GeneratorExit])
async def test_an_iterable_that_raises(error: type[BaseException]) -> None:
    class Records(Iterator[Any]):
        left = 3

        def __next__(self) -> Any:
            self.left -= 1
            if self.left < 0:
                raise error
            return PLAIN

    async with writing() as (cluster, producer):
        if error is StopIteration:
            await producer.enqueue_all(Records())
        else:
            with pytest.raises(error):
                await producer.enqueue_all(Records())
        await producer.flush()
        assert len(stored(cluster)) == 3
        assert producer._inner.memory.used == 0


@pytest.mark.parametrize(
    "options", [{"buffer_bytes": 1000}, {"max_pending_records_per_partition": 1}], ids=str
)
@pytest.mark.parametrize("interceptors", [[], [Interceptor()]], ids=["plain", "interceptors"])
@pytest.mark.parametrize("call", range(1, 4), ids=["send", "enqueue", "enqueue_all"])
async def test_headers_that_their_caller_modifies_while_it_waits_for_room(
    options: dict[str, Any], interceptors: list[Interceptor], call: int
) -> None:
    """The list is read after the wait: a change to it would change the record, or make it one of another size."""
    settings = ProducerConfig(**QUICK, **options)
    async with cluster_with_topics() as cluster:
        async with Producer(cluster.bootstrap_servers, settings, interceptors=interceptors) as producer:
            await producer.send(TOPIC, b"warm up", partition=0)
            held = cluster.faults.on("Produce").hold()
            producer.send_nowait(TOPIC, b"x" * 500, partition=0)
            await held.wait_hit()
            headers: list[Any] = [("a", b"1")]
            calls = calls_of(producer, value=b"y" * 500, headers=headers, partition=0)
            waiting = asyncio.ensure_future(calls[call]())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            headers[:] = [("b", b"2" * 1000), (None, 5)]
            held.release()
            await waiting
            await producer.flush()
            assert producer._inner.memory.used == 0
        assert list(cluster.records(TOPIC, 0)[-1].headers) == [("a", b"1")]


@pytest.mark.parametrize("options", [{}, CHUNKS], ids=["record", "chunks"])
async def test_headers_that_their_caller_modifies_while_the_topic_is_looked_up(
    options: dict[str, Any],
) -> None:
    async with writing(**options) as (cluster, producer):
        headers: list[Any] = [("a", b"1")]
        await producer.enqueue(TOPIC, b"x" * (3000 if options else 1), headers=headers)
        headers[:] = [(None, 5)]
        await producer.flush()
        records = cluster.records(TOPIC)
        assert len(records) == (4 if options else 1)
        assert all(list(record.headers)[-1] == ("a", b"1") for record in records)


@pytest.mark.parametrize("options", [{}, LIMITS, CHUNKS], ids=["plain", "limits", "chunks"])
@pytest.mark.parametrize("stamp", ["now", 2**63, ValueError("mine")])
async def test_a_clock_that_raises_or_returns_no_timestamp(stamp: Any, options: dict[str, Any]) -> None:
    """The memory of a record whose clock raised was never freed."""

    def clock() -> Any:
        if isinstance(stamp, Exception):
            raise stamp
        return stamp

    async with writing(clock=clock, **options) as (_, producer):
        await producer.send(TOPIC, b"warm up", timestamp=1)
        for value in (b"x", b"x" * (3000 if "chunking" in options else 1)):
            for call in calls_of(producer, value=value):
                with pytest.raises((TypeError, ValueError, OverflowError)):
                    await call()
        await producer.flush()
        assert producer._inner.memory.used == 0


async def test_a_closed_producer_with_limits_remembers_no_topic() -> None:
    async with writing(**LIMITS) as (_, producer):
        await producer.aclose()
        for call in calls_of(producer, topic="other"):
            with pytest.raises(ClosedError):
                await call()
        assert not producer._inner.router.routes


# --- code of the caller that calls the producer ------------------------------------------------------------------------


async def test_a_partitioner_that_writes_records() -> None:
    left = 4

    def partitioner(_key: bytes | None, _count: int) -> int:
        nonlocal left
        if left:
            left -= 1
            producer.send_nowait(TOPIC, b"inner")
        return 0

    async with writing(partitioner=partitioner) as (cluster, producer):
        await producer.send(TOPIC, b"outer")
        left = 4
        await producer.enqueue_all([PLAIN] * 3)
        await producer.flush()
        assert len(stored(cluster)) == 5 + 7
        assert producer._inner.memory.used == 0


async def test_an_iterable_that_writes_records_and_closes() -> None:
    closing: list[asyncio.Task[None]] = []

    def records() -> Iterator[Any]:
        for number in range(100):
            producer.send_nowait(TOPIC, b"inner")
            if number == 50:
                closing.append(asyncio.create_task(producer.aclose()))
            yield PLAIN

    async with writing(batch_size=200) as (cluster, producer):
        await producer.send(TOPIC, b"x")
        with pytest.raises(ClosedError):
            await producer.enqueue_all(records())
        await closing[0]
        assert len(stored(cluster)) > 100
        assert producer._inner.memory.used == 0


async def test_an_interceptor_that_writes_records_and_closes() -> None:
    class Own(Interceptor):
        def on_send(self, record: Any) -> None:
            if record.value == b"a":
                producer.send_nowait(TOPIC, b"from on_send")

        def on_acknowledgement(self, record: Any, metadata: Any, error: Any) -> None:
            assert error is None
            if record.value == b"a":
                producer.send_nowait(TOPIC, b"from on_acknowledgement")
                tasks.append(asyncio.create_task(producer.aclose()))

    tasks: list[asyncio.Task[None]] = []
    async with cluster_with_topics() as cluster:
        producer = Producer(cluster.bootstrap_servers, ProducerConfig(**QUICK), interceptors=[Own()])
        async with producer:
            await producer.send(TOPIC, b"a")
            await asyncio.gather(*tasks)
        assert sorted(map(str, stored(cluster))) == ["b'a'", "b'from on_acknowledgement'", "b'from on_send'"]
        assert producer._inner.memory.used == 0
