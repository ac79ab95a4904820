"""Repeated fetch failures in virtual time: pauses, request rate, and when an error is raised to the reader."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.fetch_outcome import FETCH_ACTIONS
from asyncgroup.consumer.retries import _ELECTION, EAGER_SECONDS
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    RetriesExhausted,
)
from tests.consumer.brokers import caught_up, client, fetches, fill, now, read
from tests.profiles import thinned


async def test_pauses_grow_while_an_error_persists(brokers: EmbeddedCluster) -> None:
    """Found by review: the pause never grew beyond the first one, which made ten tries a second without end."""
    fault = brokers.faults.on("Fetch", topic="orders", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, retry_backoff=0.1, retry_backoff_max=2.0) as reader:
        reader.read("orders", 0)
        await asyncio.sleep(60)
        assert 20 <= fault.hits <= 45
        times = [exchange.time for exchange in fetches(brokers)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[0] < 0.2
        assert all(1.5 < gap < 2.6 for gap in gaps[-10:])


@pytest.mark.parametrize("code", thinned(filter(None, FETCH_ACTIONS)), ids=lambda code: code.name)
@pytest.mark.parametrize("policy", ["earliest", "error"])
async def test_no_error_code_causes_a_busy_loop(
    brokers: EmbeddedCluster, code: ErrorCode, policy: str
) -> None:
    """A broker returns an error at once for a minute, and the reader ignores all errors."""
    fill(brokers, "orders", 0, batches=1)
    brokers.faults.on("Fetch", times=None).error(code)
    async with client(brokers, auto_offset_reset=policy) as reader:
        (consumer,) = reader.read("orders", 0)

        async def ignore_everything() -> None:
            while not consumer.ended:
                try:
                    await anext(consumer)
                except AsyncGroupError:
                    consumer.seek(0)
                except StopAsyncIteration:
                    break

        task = asyncio.ensure_future(ignore_everything())
        await asyncio.sleep(60)
        # while it may be an election pauses do not grow
        eager = int(EAGER_SECONDS / reader.config.retry_backoff) if code in _ELECTION else 0
        assert 20 <= len(fetches(brokers)) <= 60 + eager
        assert len(brokers.history.of("Metadata", client_id="reader")) <= 60 + eager
        assert len(brokers.history.of("ListOffsets", client_id="reader")) <= 120
        brokers.faults.clear()
        start = now()
        while consumer.position == 0:
            await asyncio.sleep(0.01)
        assert now() - start < 3, "it is fetched again as soon as its pause is over"
        consumer._inner.end()
        await task


async def test_brokers_that_name_each_other_as_leader_are_asked_with_pauses(brokers: EmbeddedCluster) -> None:
    """Each answers that it is not the leader, and the metadata names the other one each time."""
    brokers.faults.on("Fetch", times=None).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with client(brokers, retry_backoff=0.5) as reader:
        (consumer,) = reader.read("orders", 0)
        for turn in range(600):
            brokers.move_leader("orders", 0, 1 + turn % 2)
            reader.cluster.update_leader(consumer.tp, 1 + turn % 2, 1000 + turn)
            await asyncio.sleep(0.1)
        assert len(fetches(brokers)) <= 70


@pytest.mark.parametrize("times", [1, 3])
async def test_retries_exhausted_is_raised_beyond_fetch_retry_max(
    brokers: EmbeddedCluster, times: int
) -> None:
    fill(brokers, "orders", 0, batches=2)
    fault = brokers.faults.on("Fetch", times=2 * times + 2).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, fetch_retry_max=times) as reader:
        (consumer,) = reader.read("orders", 0)
        for turn in (1, 2):
            with pytest.raises(
                RetriesExhausted, match=f"orders-0: {times + 1} fetch attempts failed"
            ) as caught:
                await asyncio.wait_for(anext(consumer), 60)
            assert fault.hits == turn * (times + 1), "raised once, and the count starts again"
            assert isinstance(caught.value.__cause__, BrokerError)
            assert caught.value.__cause__.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await asyncio.wait_for(read(consumer, 2), 10) == [0, 1]


async def test_successes_in_between_reset_the_count(brokers: EmbeddedCluster) -> None:
    async with client(brokers, fetch_retry_max=2) as reader:
        (consumer,) = reader.read("orders", 0)
        for offset in range(10):
            brokers.faults.on("Fetch", times=2).error(ErrorCode.KAFKA_STORAGE_ERROR)
            fill(brokers, "orders", 0, batches=1)
            assert await asyncio.wait_for(read(consumer, 1), 10) == [offset]
            await asyncio.sleep(1)


async def test_a_stopped_broker_exhausts_the_retries(brokers: EmbeddedCluster) -> None:
    async with client(brokers, fetch_retry_max=5) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        for node in (1, 2):
            await brokers.stop_node(node)
        with pytest.raises(RetriesExhausted):
            await asyncio.wait_for(anext(consumer), 600)


async def test_a_deleted_topic_exhausts_the_retries_without_a_fetch(
    brokers: EmbeddedCluster,
) -> None:
    fill(brokers, "orders", 0, batches=1)
    async with client(brokers, ["orders", "gone"], fetch_retry_max=3) as reader:
        (gone,) = reader.read("gone", 0)
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        with pytest.raises(RetriesExhausted, match=r"gone-0: 4 fetch attempts .*LEADER_NOT_AVAILABLE"):
            await asyncio.wait_for(anext(gone), 60)


async def test_fetch_retry_backoff_is_called_for_each_partition(brokers: EmbeddedCluster) -> None:
    asked: list[int] = []

    def pause(failures: int) -> float:
        asked.append(failures)
        return 1.0 + failures

    brokers.faults.on("Fetch", times=4).error(ErrorCode.KAFKA_STORAGE_ERROR)
    fill(brokers, "orders", 0, batches=1)
    async with client(brokers, fetch_retry_backoff=pause) as reader:
        start = now()
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        assert now() - start == pytest.approx(1 + 2 + 3 + 4, abs=0.1)
    assert asked == [0, 1, 2, 3]


async def test_a_failing_partition_does_not_lengthen_the_pauses_of_another(
    brokers: EmbeddedCluster,
) -> None:
    brokers.create_topic("bad", 1)
    brokers.faults.on("Fetch", topic="bad", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, ["orders", "bad"]) as reader:
        reader.read("bad", 0)
        (consumer,) = reader.read("orders", 0)
        await asyncio.sleep(30)
        brokers.faults.on("Fetch", topic="orders").error(ErrorCode.KAFKA_STORAGE_ERROR)
        fill(brokers, "orders", 0, batches=1)
        start = now()
        assert await read(consumer, 1) == [0]
        assert now() - start < 0.7


async def test_errors_are_reported_to_readers_or_logged_without_any(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.consumer")
    fill(brokers, "orders", 0, batches=1)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, 1)
        for watched in (False, True):
            errors = consumer.errors() if watched else None
            caplog.clear()
            fault = brokers.faults.on("Fetch").error(ErrorCode.KAFKA_STORAGE_ERROR)
            fill(brokers, "orders", 0, batches=1)
            await read(consumer, 1)
            await fault.wait_hit()
            await asyncio.sleep(1)
            assert ("recovering: " in caplog.text) is not watched
            if errors is not None:
                error = await anext(errors)
                assert isinstance(error, BrokerError)
                assert error.code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_pauses_start_again_after_successful_fetches(brokers: EmbeddedCluster) -> None:
    async with client(brokers, retry_backoff=0.1, retry_backoff_max=2.0) as reader:
        reader.read("orders", 0)
        for _ in range(3):
            fault = brokers.faults.on("Fetch", topic="orders", times=8).error(ErrorCode.KAFKA_STORAGE_ERROR)
            await fault.wait_hit(8)
            await asyncio.sleep(10)
        times = [exchange.time for exchange in fetches(brokers)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert sum(gap < 0.2 for gap in gaps) >= 3
        assert sum(gap > 1.5 for gap in gaps) >= 6


async def test_a_leaderless_partition_does_not_delay_others(brokers: EmbeddedCluster) -> None:
    """Found by review: all partitions shared one pause, and a new partition waited for it."""
    for partition in (0, 1):
        brokers.move_leader("orders", partition, 1)
        fill(brokers, "orders", partition, batches=1)
    brokers.create_topic("bad", 1)
    brokers.faults.on("Fetch", topic="bad", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, ["orders", "bad"]) as reader:
        reader.read("bad", 0)
        await asyncio.sleep(20)
        for partition in (0, 1):
            start = now()
            (consumer,) = reader.read("orders", partition)
            assert await read(consumer, 1) == [0]
            assert now() - start < 0.05


async def test_a_session_response_without_the_partition_is_a_success(brokers: EmbeddedCluster) -> None:
    """In a fetch session (KIP-227) a response omits partitions without news."""
    async with client(brokers, fetch_retry_max=1, fetch_max_wait=0.2) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        for _ in range(5):
            fault = brokers.faults.on("Fetch").error(ErrorCode.KAFKA_STORAGE_ERROR)
            await fault.wait_hit()
            await asyncio.sleep(3)
            assert consumer._inner.error is None
            assert consumer._inner.fetch_failures.count == 0
