"""Failures again and again: their pauses, their rate, and when a reader hears of them; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.fetch_plan import FETCH_ACTIONS
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    RetriesExhausted,
)
from tests.consumer.brokers import caught_up, client, fetches, fill, now, read

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


async def test_an_error_that_stays_is_asked_about_less_and_less(brokers: EmbeddedCluster) -> None:
    """Found by review: the pause never grew beyond the first one, ten tries a second for ever."""
    fault = brokers.faults.on("Fetch", topic="orders", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, retry_backoff=0.1, retry_backoff_max=2.0) as reader:
        reader.read("orders", 0)
        await asyncio.sleep(60)
        assert 20 <= fault.hits <= 45
        times = [exchange.time for exchange in fetches(brokers)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[0] < 0.2
        assert all(1.5 < gap < 2.6 for gap in gaps[-10:])


@pytest.mark.parametrize("code", [code for code in FETCH_ACTIONS if code], ids=lambda code: code.name)
@pytest.mark.parametrize("policy", ["earliest", "error"])
async def test_no_error_code_keeps_the_broker_busy(
    brokers: EmbeddedCluster, code: ErrorCode, policy: str
) -> None:
    """A broker that answers with an error at once, for a minute, and a reader that passes over everything."""
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
        assert 20 <= len(fetches(brokers)) <= 60
        assert len(brokers.history.of("Metadata", client_id="reader")) <= 60
        assert len(brokers.history.of("ListOffsets", client_id="reader")) <= 120
        brokers.faults.clear()
        start = now()
        while consumer.position == 0:
            await asyncio.sleep(0.01)
        assert now() - start < 3, "it is asked for again as soon as its pause is over"
        consumer.end()
        await task


async def test_brokers_that_send_us_to_and_fro_are_asked_with_pauses(brokers: EmbeddedCluster) -> None:
    """Each knows that it isn't the leader; the metadata name the other one at every turn."""
    brokers.faults.on("Fetch", times=None).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with client(brokers, retry_backoff=0.5) as reader:
        reader.read("orders", 0)
        for turn in range(600):
            brokers.move_leader("orders", 0, 1 + turn % 2)
            reader.cluster.update_leader(
                reader.fetchers._consumers.copy().popitem()[0], 1 + turn % 2, 1000 + turn
            )
            await asyncio.sleep(0.1)
        assert len(fetches(brokers)) <= 70


@pytest.mark.parametrize("times", [1, 3])
async def test_a_reader_hears_of_one_failure_too_many(brokers: EmbeddedCluster, times: int) -> None:
    fill(brokers, "orders", 0, batches=2)
    fault = brokers.faults.on("Fetch", times=2 * times + 2).error(ErrorCode.KAFKA_STORAGE_ERROR)
    async with client(brokers, fetch_retry_max=times) as reader:
        (consumer,) = reader.read("orders", 0)
        for turn in (1, 2):
            with pytest.raises(RetriesExhausted, match=f"orders-0: {times + 1} tries") as caught:
                await asyncio.wait_for(anext(consumer), 60)
            assert fault.hits == turn * (times + 1), "once, and the count begins anew"
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


async def test_a_broker_that_is_away_for_good_exhausts_the_retries_too(brokers: EmbeddedCluster) -> None:
    async with client(brokers, fetch_retry_max=5) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        for node in (1, 2):
            await brokers.stop_node(node)
        with pytest.raises(RetriesExhausted):
            await asyncio.wait_for(anext(consumer), 600)


async def test_a_partition_whose_topic_is_gone_exhausts_them_without_any_fetch(
    brokers: EmbeddedCluster,
) -> None:
    fill(brokers, "orders", 0, batches=1)
    async with client(brokers, ["orders", "gone"], fetch_retry_max=3) as reader:
        reader.read("gone", 0)
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        gone = reader.fetchers._consumers[("gone", 0)]
        with pytest.raises(RetriesExhausted, match=r"gone-0: 4 tries .*LEADER_NOT_AVAILABLE"):
            await asyncio.wait_for(anext(gone), 60)


async def test_a_function_gives_the_pauses_of_each_partition(brokers: EmbeddedCluster) -> None:
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


async def test_a_partition_in_trouble_does_not_lengthen_the_pauses_of_another(
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


async def test_errors_go_to_those_who_read_them_and_else_to_the_log(
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
            assert ("healing: " in caplog.text) is not watched
            if errors is not None:
                error = await anext(errors)
                assert isinstance(error, BrokerError)
                assert error.code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_the_pauses_begin_anew_after_a_time_of_health(brokers: EmbeddedCluster) -> None:
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


async def test_a_partition_without_a_leader_holds_no_other_up(brokers: EmbeddedCluster) -> None:
    """Found by review: one partition's pause was everybody's; a new partition waited for it."""
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


async def test_an_answer_without_news_is_a_success_as_well(brokers: EmbeddedCluster) -> None:
    """In a fetch session (KIP-227) a partition to which nothing has happened is in no answer."""
    async with client(brokers, fetch_retry_max=1, fetch_max_wait=0.2) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        for _ in range(5):
            fault = brokers.faults.on("Fetch").error(ErrorCode.KAFKA_STORAGE_ERROR)
            await fault.wait_hit()
            await asyncio.sleep(3)
            assert consumer.error is None
            assert consumer.fetch_failures.count == 0
