"""Each caller gets its own exception object: a shared one would collect the tracebacks and notes of all callers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import pytest

from asyncgroup import Consumer, ConsumerConfig, OffsetManager, ProducerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster, connection_pool
from asyncgroup.cluster.connection import Address, Connection
from asyncgroup.consumer.error_stream import ErrorStream
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConnectError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.lifecycle import BackgroundTasks, SingleFlight
from asyncgroup.producer import Producer
from asyncgroup.wire import messages as m


async def errors_of(calls: Iterable[Awaitable[object]]) -> list[BaseException]:
    """Run several calls at the same time and return what each raises."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, BaseException) for end in ends), ends
    return [end for end in ends if isinstance(end, BaseException)]


def frames(error: BaseException) -> int:
    trace, count = error.__traceback__, 0
    while trace is not None:
        trace, count = trace.tb_next, count + 1
    return count


def assert_own(errors: Sequence[BaseException], kind: type[BaseException]) -> None:
    """Check that errors have the same type, text, code and cause, but are separate objects with separate notes."""
    assert len(errors) > 1
    assert {type(error) for error in errors} == {kind}
    assert len({str(error) for error in errors}) == 1
    assert len({getattr(error, "code", None) for error in errors}) == 1
    assert len({id(error) for error in errors}) == len(errors)
    assert len({repr(error.__cause__) for error in errors}) == 1
    assert len({frames(error) for error in errors}) == 1, list(map(frames, errors))
    errors[0].add_note("of the first one only")
    assert not any("of the first one only" in getattr(error, "__notes__", ()) for error in errors[1:])


async def failing() -> None:
    await asyncio.sleep(1)
    raise BrokerError(ErrorCode.NOT_COORDINATOR, "group 'g'") from OSError("gone")


async def test_of_a_refresh() -> None:
    refresh = SingleFlight("refreshes", failing)
    errors = await errors_of(refresh() for _ in range(3))
    assert_own(errors, BrokerError)
    assert isinstance(errors[2].__cause__, OSError)
    waiting = [asyncio.create_task(refresh()) for _ in range(3)]
    await asyncio.sleep(0.5)
    await refresh.aclose()
    assert_own(await errors_of(waiting), ClosedError)


async def test_of_a_single_flight() -> None:
    flights = SingleFlight("commits", failing)
    assert_own(await errors_of(flights() for _ in range(3)), BrokerError)
    waiting = [asyncio.create_task(flights()) for _ in range(3)]
    await asyncio.sleep(0.5)
    await flights.aclose()
    assert_own(await errors_of(waiting), ClosedError)


async def test_of_background_tasks_that_failed() -> None:
    tasks = BackgroundTasks("test")
    await tasks.start()
    tasks.spawn(failing)
    tasks.spawn(failing)
    await asyncio.sleep(2)
    errors = await errors_of(tasks.stop() for _ in range(3))
    assert_own(errors, BrokerError)
    assert all(len(getattr(error, "__notes__", ())) <= 2 for error in errors)


async def test_of_a_connection_that_cannot_be_made() -> None:
    async with EmbeddedCluster(nodes=2, seed=1) as broker, Cluster(broker.bootstrap_servers) as cluster:
        await broker.stop_node(2)
        errors = await errors_of(cluster.request(2, m.ListGroupsRequest()) for _ in range(3))
        assert_own(errors, ConnectError)


async def test_of_a_cluster_without_a_reachable_broker() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker, Cluster(broker.bootstrap_servers) as cluster:
        await broker.stop_node(1)
        assert_own(await errors_of(cluster.refresh() for _ in range(3)), NoBrokersError)


async def test_of_commits_that_share_a_request() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("t", 3)
        config = ConsumerConfig(auto_commit=False, commit_retry_max=0)
        async with OffsetManager(broker.bootstrap_servers, "g", config) as offsets:
            managed = await offsets.manage_all([("t", number) for number in range(3)])
            for each in managed.values():
                each.mark_offset(1)
            broker.faults.on("OffsetCommit").error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            errors = await errors_of(offsets.commit() for _ in range(3))
    assert_own(errors, CommitFailedError)
    inner = [
        each for error in errors if isinstance(error, CommitFailedError) for each in error.errors.values()
    ]
    assert len({id(each) for each in inner}) == 9


async def test_of_records_whose_topic_cannot_be_found() -> None:
    config = ProducerConfig(metadata_retry_max=0, delivery_timeout=2.0, request_timeout=1.0, linger=0.0)
    async with (
        EmbeddedCluster(nodes=1, seed=1) as broker,
        Producer(broker.bootstrap_servers, config) as producer,
    ):
        assert_own(await errors_of(producer.send("nowhere", b"x") for _ in range(3)), BrokerError)
        await broker.stop_node(1)
        assert_own(await errors_of(producer.send("elsewhere", b"x") for _ in range(3)), RequestTimedOut)


async def test_of_records_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing compression library fails a batch before it is sent; closing fails waiting records."""

    def refuse(_: object) -> bytes:
        raise UnsupportedVersionError("no such codec")

    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("t", 1)
        async with Producer(broker.bootstrap_servers, ProducerConfig(linger=0.1)) as producer:
            await producer.send("t", b"warm up")
            with monkeypatch.context() as patch:
                patch.setattr("asyncgroup.producer.batches.batch.ProducerBatch.encoded", refuse)
                errors = await errors_of([producer.send_nowait("t", b"x") for _ in range(3)])
            assert_own(errors, UnsupportedVersionError)
            broker.faults.on("Produce").hold()
            waiting = [producer.send_nowait("t", b"x") for _ in range(3)]
            await asyncio.sleep(1)
            producer._inner.sender.fail_all(ClosedError("the cluster was closed"))
            assert_own(await errors_of(waiting), ClosedError)


async def test_of_partitions_that_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a broker refuses the credentials, each reader of a partition that it leads gets its own error."""
    connect = connection_pool.connect

    async def refuse(address: Address, purpose: str, *others: Any) -> Connection:
        if purpose.startswith("fetch"):
            raise AuthenticationError(f"{address}: not you")
        return await connect(address, purpose, *others)

    monkeypatch.setattr(connection_pool, "connect", refuse)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("t", 3)
        async with Consumer(broker.bootstrap_servers) as consumer:
            readers = [await consumer.partition("t", number, 0) for number in range(3)]
            assert_own(await errors_of(map(anext, readers)), AuthenticationError)


async def test_of_partitions_whose_reader_has_a_bug() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("t", 3)
        async with Consumer(broker.bootstrap_servers) as consumer:
            readers = [await consumer.partition("t", number, 0) for number in range(3)]
            consumer._on_bug(ValueError("a bug"))
            assert_own(await errors_of(map(anext, readers)), ValueError)


async def test_of_the_readers_of_an_error_stream() -> None:
    stream = ErrorStream(256)
    readers = [stream.reader() for _ in range(3)]
    error = BrokerError(ErrorCode.NOT_COORDINATOR, "group 'g'")
    assert stream.put(error)
    got = [await anext(reader) for reader in readers]
    assert all(isinstance(each, AsyncGroupError) for each in got)
    for left, right in itertools.combinations([error, *got], 2):
        assert left is not right
        assert (str(left), type(left)) == (str(right), type(right))
