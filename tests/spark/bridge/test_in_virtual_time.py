"""ForeachBatch in consumer groups in virtual time: rebalances, closes and lost members during a batch, retries."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from asyncgroup import ConsumerGroup, Producer
from asyncgroup.errors import MemberLost
from asyncgroup.spark import BatchInterrupted, Retry
from asyncgroup.testing import VirtualKafka
from tests.group.parts import end_session
from tests.scenario.support import stop
from tests.spark.bridge.fakes import LoopJobs
from tests.spark.bridge.virtual import (
    CONFIG,
    GROUP,
    IN_VIRTUAL_TIME,
    Sink,
    committed,
    member,
    produce,
    raises_until,
    second_joins_in_a_batch,
    until,
)

pytestmark = [*IN_VIRTUAL_TIME]

# -- rebalances, closes and lost members during a batch ------------------------------------------------------------------


async def test_a_batch_that_ends_within_the_rebalance_timeout_is_committed(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    sink = Sink(lambda call: 20.0 if call == 1 else 0.1)
    first, second = (member(virtual_kafka, sink, max_rows=20) for _ in range(2))
    async with second_joins_in_a_batch(first, second, sink):
        await until(lambda: virtual_kafka.group(GROUP).state == "PreparingRebalance")
        began = sink.calls[0][0]
        await until(lambda: bool(committed(virtual_kafka)))
        assert asyncio.get_running_loop().time() - began == pytest.approx(20, abs=0.5)
        await until(lambda: sum(committed(virtual_kafka).values()) == 40)
        assert first[1].statistics().interrupted == 0
    assert sink.values == list(range(40))
    starts = [(part.partition, part.start) for _, batch_id in sink.calls for part in batch_id.ranges]
    assert len(set(starts)) == len(starts), "no range was delivered again"


async def test_a_claim_that_waits_for_the_function_is_not_stuck(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 120)
    sink = Sink(lambda call: 180.0 if call == 1 else 0.1)  # three times `max_poll_interval`
    _, handler = member(virtual_kafka, sink, max_rows=20)
    config = replace(CONFIG, max_poll_interval=60.0)
    async with ConsumerGroup(virtual_kafka.bootstrap_servers, GROUP, config) as group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: len(sink.calls) == 1)
        session = group.session
        await until(lambda: sum(committed(virtual_kafka).values()) == 120, 1000.0)
        assert group.session is session
        await group.aclose()
        await run
    assert len(sink.calls) == 6


async def test_a_batch_that_outlasts_the_rebalance_timeout_is_cancelled_and_the_session_fails(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    slow, quick = Sink(lambda _: 1_000.0), Sink()
    first, first_handler = member(virtual_kafka, slow)
    second, second_handler = member(virtual_kafka, quick)
    async with first, second:
        run = asyncio.create_task(first.run("numbers", first_handler))
        await until(lambda: len(slow.calls) == 1)
        other = asyncio.create_task(second.run("numbers", second_handler))
        await until(lambda: virtual_kafka.group(GROUP).state == "PreparingRebalance")
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            BatchInterrupted, match=r"BatchId 0: numbers-0\[0, 10\).*rebalance timeout had passed"
        ) as caught:
            await run
        assert 20 < asyncio.get_running_loop().time() - began < 30, "within rebalance_timeout"
        assert len(caught.value.__notes__) == 1, "one claim raises for all"
        assert "raised by consume_claim of numbers-" in caught.value.__notes__[0]
        assert committed(virtual_kafka) == {}
        assert first_handler.statistics().interrupted == 1
        # the other member gets all records
        await first.aclose()
        await until(lambda: sum(committed(virtual_kafka).values()) == 40)
        await second.aclose()
        await other
    assert quick.values == list(range(40))


async def test_queued_records_are_dropped_at_a_rebalance(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    sink = Sink(lambda call: 5.0 if call == 1 else 0.1)
    first, first_handler = member(virtual_kafka, sink, max_rows=5)
    second, second_handler = member(virtual_kafka, Sink(), max_rows=5)
    async with first, second:
        runs = [asyncio.create_task(first.run("numbers", first_handler))]
        await until(lambda: len(sink.calls) == 1)
        await until(lambda: first_handler.statistics().queued_rows >= 10)
        runs.append(asyncio.create_task(second.run("numbers", second_handler)))
        await until(lambda: virtual_kafka.group(GROUP).state == "PreparingRebalance")
        # the session learns of it by the next heartbeat; its queue is then empty long before its batch ends
        await until(lambda: first_handler.statistics().queued_rows == 0)
        assert first_handler.statistics().running is not None
        assert len(sink.calls) == 1
        await first.aclose()
        await second.aclose()
        await asyncio.gather(*runs)


async def test_a_close_waits_for_the_batch_and_then_interrupts_it_without_an_error(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 40)
    sink = Sink(lambda _: 1_000.0)
    group, handler = member(virtual_kafka, sink)
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: len(sink.calls) == 1)
        began = asyncio.get_running_loop().time()
        await group.aclose()
        assert asyncio.get_running_loop().time() - began <= 10 + LoopJobs.CANCEL_SECONDS
        await run
    assert committed(virtual_kafka) == {}
    assert handler.statistics().interrupted == 1


async def test_a_close_takes_no_longer_than_close_timeout_if_no_commit_is_answered(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 8)
    held = virtual_kafka.faults.on("OffsetCommit", times=None).hold()
    sink = Sink()
    group, handler = member(virtual_kafka, sink)
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: len(sink.calls) == 1)
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await group.aclose()
        assert asyncio.get_running_loop().time() - began <= 10
        await run
    held.cancel()


async def test_a_lost_member_interrupts_its_batch_and_rejoins(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 40)
    sink = Sink(lambda call: 1_000.0 if call == 1 else 0.1)
    group, handler = member(virtual_kafka, sink)
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: len(sink.calls) == 1)
        assert group.session is not None
        end_session(group.session, MemberLost("as if the coordinator had expelled it"))
        await until(lambda: sum(committed(virtual_kafka).values()) == 40)
        await group.aclose()
        await run
    assert [int(batch_id) for _, batch_id in sink.calls] == [0, 1], "no number is used twice"
    assert sink.values == list(range(40))


async def test_a_topic_deleted_during_a_batch_does_not_block_other_topics(
    virtual_kafka: VirtualKafka,
) -> None:
    """The offsets of a deleted topic cannot be committed, even with retries."""
    virtual_kafka.create_topic("others", 1)
    await produce(virtual_kafka, 8)
    async with Producer(virtual_kafka.bootstrap_servers) as producer:
        await producer.send("others", b"0")
    sink = Sink(lambda call: 2.0 if call == 1 else 0.1)
    group, handler = member(virtual_kafka, sink)
    async with group:
        run = asyncio.create_task(group.run(["numbers", "others"], handler))
        await until(lambda: len(sink.calls) == 1)
        assert {part.topic for part in sink.calls[0][1].ranges} == {"numbers", "others"}
        virtual_kafka.delete_topic("others")
        await produce(virtual_kafka, 8, start=8)
        await until(lambda: sum(committed(virtual_kafka).values()) == 16, limit=10.0)
        run.cancel()
        await asyncio.wait([run])


# -- on_error ------------------------------------------------------------------------------------------------------------


async def test_a_failed_batch_is_retried_with_the_same_ranges_and_number(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 8)
    sink = Sink(raises_until(4, OSError("the warehouse is closed")))
    policy = Retry(times=3, backoff=10.0, backoff_max=30.0)
    group, handler = member(virtual_kafka, sink, on_error=policy)
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: len(sink.calls) == 2)
        assert committed(virtual_kafka) == {}
        health = handler.statistics()
        assert (health.failures, health.running) == (2, 0)
        assert health.last_error == "OSError: the warehouse is closed"
        await produce(virtual_kafka, 4, start=8)
        await until(lambda: sum(committed(virtual_kafka).values()) == 12)
        await group.aclose()
        await run
    tries = sink.calls[:4]
    assert len({(int(batch_id), batch_id.ranges) for _, batch_id in tries}) == 1
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(tries)]
    # doubled, with 20 % jitter; longer than the session timeout in total, so heartbeats continued
    for gap, pause in zip(gaps, (10, 20, 30), strict=True):
        assert gap == pytest.approx(pause, rel=0.21)
    assert sum(gaps) > CONFIG.effective_session_timeout
    assert sink.values == list(range(12))


async def test_the_last_exception_is_raised_after_the_last_retry(virtual_kafka: VirtualKafka) -> None:
    await produce(virtual_kafka, 8)
    sink = Sink(raises_until(100, OSError("the warehouse is closed")))
    group, handler = member(virtual_kafka, sink, on_error=Retry(times=2))
    async with group:
        with pytest.raises(OSError, match="the warehouse is closed") as caught:
            await group.run("numbers", handler)
    assert len(sink.calls) == 3
    assert "while delivering <BatchId 0: numbers-0[0, 2)" in "\n".join(caught.value.__notes__)
    assert ", attempt 3" in "\n".join(caught.value.__notes__)
    assert committed(virtual_kafka) == {}


async def test_a_rebalance_ends_the_retries_and_the_next_owners_get_the_batch(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 8)
    failing, good = Sink(raises_until(100, OSError("no"))), Sink()
    policy = Retry(times=100, backoff=1_000.0, backoff_max=1_000.0)
    first, first_handler = member(virtual_kafka, failing, on_error=policy)
    second, second_handler = member(virtual_kafka, good)
    async with first, second:
        run = asyncio.create_task(first.run("numbers", first_handler))
        await until(lambda: len(failing.calls) == 1)
        other = asyncio.create_task(second.run("numbers", second_handler))
        await until(lambda: len(virtual_kafka.group(GROUP).members) == 2)
        await until(lambda: virtual_kafka.group(GROUP).state == "Stable")
        assert first_handler.statistics().interrupted == 1
        await first.aclose()
        await run
        await until(lambda: sum(committed(virtual_kafka).values()) == 8)
        await second.aclose()
        await other
    assert good.values == list(range(8))


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "closed"])
async def test_a_close_or_cancellation_does_not_wait_for_the_next_retry(
    virtual_kafka: VirtualKafka, is_cancelled: bool
) -> None:
    await produce(virtual_kafka, 8)
    sink = Sink(raises_until(100, OSError("no")))
    group, handler = member(virtual_kafka, sink, on_error=Retry(backoff=1_000.0, backoff_max=1_000.0))
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: len(sink.calls) == 1)
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await stop(group, run, by_cancellation=is_cancelled)
        assert asyncio.get_running_loop().time() - began < 1
    assert len(sink.calls) == 1
    assert committed(virtual_kafka) == {}
