"""Attacks on work queues: hostile callbacks and headers, storms of failures, calls at the worst moments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asyncgroup import ClosedError, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.hashing.key_ranges import key_hash
from asyncgroup.model import Record
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window
from asyncgroup.workqueue import (
    BatchPolicy,
    DeadLetter,
    Delivery,
    DeliveryState,
    Mode,
    QueueInterceptor,
    RetryTopic,
    WorkQueue,
    local_consumers,
)
from tests.scenario.heartbeats.test_blocks_without_thread import block
from tests.scenario.queues.test_foreign_metadata import commit
from tests.scenario.support import now
from tests.stories.queue_members import acked, label, opened, send, working
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import core_of

TP = TopicPartition("orders", 0)


class Stop(BaseException):
    """What a signal handler may raise anywhere."""


class Refuses(QueueInterceptor):
    """Raises once for each of some offsets."""

    def __init__(self, method: str, error: type[BaseException], *offsets: int) -> None:
        self._method = method
        self._error = error
        self._left = set(offsets)

    def _check(self, method: str, delivery: Delivery) -> None:
        if method == self._method and delivery.record.offset in self._left:
            self._left.discard(delivery.record.offset)
            raise self._error("refused")

    def before_consume(self, delivery: Delivery) -> None:
        self._check("before_consume", delivery)

    def on_acknowledge(self, delivery: Delivery) -> None:
        self._check("on_acknowledge", delivery)


# --- callbacks ----------------------------------------------------------------------------------------------------------


async def test_a_refused_acknowledgement_of_a_batch_leaves_the_others(env: VirtualEnvironment):
    """The block of a batch ends each delivery, independently of the others."""
    await send(env, *[b"v"] * 5)
    refuses = Refuses("on_acknowledge", ValueError, 1, 3)
    async with opened(env, interceptors=[refuses], nack_backoff=1.0) as queue:
        batch = await queue.batch_receive(BatchPolicy(max_records=5, timeout=5.0))
        with pytest.raises(ValueError, match="refused"):
            async with batch:
                pass
        states = [delivery.state for delivery in batch]
        acked_, nacked = DeliveryState.ACKED, DeliveryState.NACKED
        assert states == [acked_, nacked, acked_, nacked, acked_]
    assert await acked(env) == [0, 2, 4]


@pytest.mark.parametrize("by", ["decode", "before_consume", "on_acknowledge"])
async def test_callbacks_that_raise_base_exceptions_leave_nothing_acquired(env: VirtualEnvironment, by: str):
    """The exception arrives at the caller; the record is neither done nor failed, and delivered again."""
    await send(env, b"v", b"w")
    refuses = Refuses(by, Stop, 0)

    def decode(record: Record) -> object:
        refuses._check("decode", Delivery(record, 1, None, None, None))  # type: ignore[arg-type]
        return None

    async with opened(env, interceptors=[refuses], decode=decode) as queue:
        with pytest.raises(Stop):
            await (await queue.receive()).ack()
        delivery = await asyncio.wait_for(queue.receive(), 1.0)
        assert label(delivery) == "0@0#1"
        await delivery.ack()
        await (await queue.receive()).ack()
    assert await acked(env) == [0, 1]


@pytest.mark.parametrize("by", ["before_consume", "on_acknowledge"])
async def test_a_callback_that_raises_cancelled_error_does_not_end_run(env: VirtualEnvironment, by: str):
    await send(env, b"v", b"w")
    refuses = Refuses(by, asyncio.CancelledError, 0)
    async with working(env, "ann", interceptors=[refuses], nack_backoff=1.0, concurrency=1) as ann:
        await ann.until_count("end", 2)
        await asyncio.sleep(5.0)
        assert ann.run is not None
        assert not ann.run.done()
        assert await acked(env) == [0, 1]


# --- local consumers ------------------------------------------------------------------------------------------------------


async def test_a_consumer_closed_twice_does_not_end_another_of_its_name(env: VirtualEnvironment):
    await send(env, *[b"v"] * 3)
    async with opened(env) as queue:
        first = queue.consumer("one")
        await (await first.receive()).ack()
        await first.aclose()
        second = queue.consumer("one")
        await first.aclose()
        for _ in range(2):
            await (await asyncio.wait_for(second.receive(), 1.0)).ack()
    assert await acked(env) == [0, 1, 2]


async def test_the_queue_is_read_by_itself_again_after_its_last_consumer(env: VirtualEnvironment):
    """Records that were parked or waited in an inbox are delivered, with an ack timeout."""
    await send(env, (b"a", b"v"), (b"b", b"v"), (b"c", b"v"), (b"d", b"v"))
    async with opened(env, mode=Mode.KEY_SHARED, ack_timeout=5.0, nack_backoff=1.0) as queue:
        async with queue.consumer("one", receiver_queue=1) as one:
            acquired = await one.receive()
            await asyncio.sleep(1.0)
        taken = [await asyncio.wait_for(queue.receive(), 1.0) for _ in range(3)]
        offsets = {acquired.record.offset, *(each.record.offset for each in taken)}
        assert offsets == {0, 1, 2, 3}
        await asyncio.sleep(6.0)
        assert {each.state for each in taken} == {DeliveryState.EXPIRED}


async def test_a_paused_queue_hands_out_nothing_from_inboxes(env: VirtualEnvironment):
    await send(env, *[b"v"] * 3)
    async with opened(env) as queue:
        one = queue.consumer("one")
        await (await one.receive()).ack()
        queue.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.receive(), 5.0)
        queue.resume()
        for _ in range(2):
            await (await asyncio.wait_for(one.receive(), 1.0)).ack()


async def test_a_consumer_handles_one_record_at_a_time_in_modes_in_order(env: VirtualEnvironment):
    """This includes records that were in its inbox when its handlers began to run."""
    await send(env, *[b"v"] * 10)
    busy = most = 0
    seen: list[int] = []

    async def work(delivery: Delivery) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        seen.append(delivery.record.offset)
        await asyncio.sleep(1.0)
        busy -= 1

    async with opened(env, mode=Mode.FAILOVER) as queue:
        one = queue.consumer("one")
        await asyncio.sleep(5.0)
        run = asyncio.create_task(one.run(work))
        await asyncio.sleep(20.0)
        await one.aclose()
        await run
    assert (most, seen) == (1, list(range(10)))


async def test_records_parked_for_a_slow_consumer_cost_others_nothing(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
):
    """Linear: a refill of one consumer does not look at what waits for another one."""
    hashed = 0

    def counted(key: bytes) -> int:
        nonlocal hashed
        hashed += 1
        return key_hash(key)

    monkeypatch.setattr(local_consumers, "key_hash", counted)
    keys = [b"k%d" % number for number in range(900)]
    await send(env, *[(key, b"v") for key in keys])
    fast_keys = sum(key_hash(key) > 32767 for key in keys)
    async with opened(env, mode=Mode.KEY_SHARED) as queue:
        slow = queue.consumer("slow", receiver_queue=1, key_ranges=[(0, 32767)])
        fast = queue.consumer("fast", receiver_queue=1, key_ranges=[(32768, 65535)])
        for _ in range(fast_keys):
            await (await fast.receive()).ack()
        assert queue.statistics().queued > 400
        assert hashed < 3 * len(keys)
        for _ in range(len(keys) - fast_keys):
            await (await slow.receive()).ack()
    assert await acked(env) == list(range(900))


async def test_a_closed_queue_has_no_new_consumers(env: VirtualEnvironment):
    async with opened(env) as queue:
        pass
    with pytest.raises(ClosedError):
        queue.consumer("late")


# --- metadata and headers -------------------------------------------------------------------------------------------------


async def test_a_window_beyond_the_end_of_the_log_swallows_no_later_record(env: VirtualEnvironment):
    """Without an epoch and a topic id, only the end of the log shows that it was created again."""
    await send(env, *[b"v"] * 5)
    window = encode_window(AckWindow(1, [(2, 3), (10, 1000)]), 1, 1000).text
    await commit(env, encode_metadata(TP, 1, CommitMetadata(window=window)), 1)
    async with working(env) as ann:
        await ann.until_count("end", 3)
        await send(env, *[b"w"] * 12)
        await ann.until_count("end", 15)
        assert ann.of("end") == [f"0@{offset}#1" for offset in (1, *range(3, 17))]
    assert await acked(env) == list(range(17))


async def test_headers_count_as_bytes_of_a_record(env: VirtualEnvironment):
    """An ordering key of half a megabyte is in a header."""
    for _ in range(20):
        await send(env, b"v", headers=[("ag-ordering-key", b"x" * 500_000)])
    async with opened(env, mode=Mode.KEY_SHARED, receive_buffer_bytes=4_000_000) as queue:  # 1 MB a partition
        await asyncio.sleep(20.0)
        assert queue.statistics().queued == 2
        for _ in range(20):
            await (await queue.receive()).ack()
        works = core_of(queue).dispatcher.works.values()
        assert [work.bytes for work in works] == [0] * 4


HOSTILE: dict[bytes | None, int] = {
    None: 1,
    b"": 1,
    b"-1": 1,
    b"+3": 1,
    b" 3": 1,
    b"1e3": 1,
    b"\xb2": 1,
    b"9" * 5000: 1,
    b"9223372036854775807": 1,
    b"2147483647": 2147483648,
    b"3": 4,
}
"""Values of RECONSUMETIMES, and the number of the delivery that follows."""


async def test_hostile_headers_in_the_retry_topic(env: VirtualEnvironment):
    """Each copy is delivered at least once, with any headers, and after any failure of another record."""

    async def work(delivery: Delivery) -> None:
        if delivery.attempt <= 2:
            raise ValueError("fails")

    options = {"retry": RetryTopic(), "dead_letter": DeadLetter(2), "nack_backoff": 1.0}
    env.cluster.create_topic("orders-g-RETRY", 1)
    async with working(env, "ann", work, **options) as ann:
        for value in HOSTILE:
            headers = [("RECONSUMETIMES", b"1"), ("RECONSUMETIMES", value), ("ag-deliver-at", value)]
            if value is None or len(value) != 19:  # else it is due in 292 million years
                await send(env, b"v", topic="orders-g-RETRY", headers=headers)
            await asyncio.sleep(0.5)  # some have failed before others arrive
        sent = [attempt for value, attempt in HOSTILE.items() if value is None or len(value) != 19]
        await ann.until_count("begin", sum(3 if attempt == 1 else 1 for attempt in sent))
        await asyncio.sleep(20.0)
    first: dict[int, int] = {}
    for text in ann.of("begin"):
        offset, attempt = text.removeprefix("0@").split("#")
        first.setdefault(int(offset), int(attempt))
    assert [first[offset] for offset in range(len(sent))] == sent
    assert await acked(env, topic="orders-g-RETRY") == list(range(len(sent)))


# --- storms ---------------------------------------------------------------------------------------------------------------


async def test_a_storm_of_failures_does_not_hold_healthy_records(env: VirtualEnvironment):
    """More records fail at once, each time, than a partition holds ready; the records after them are still handled."""
    poison = 3000

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(0.05)
        if delivery.record.offset < poison:
            raise ValueError("poison")

    await send(env, *[b"p"] * poison, *[b"f"] * 100)
    async with working(env, "ann", work, nack_backoff=0.0) as ann:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60.0):
                await ann.until_count("end", 100)
        assert len(ann.of("end")) == 100


async def run(queue: WorkQueue) -> None:
    """Handle all with handlers that never wait."""

    async def work(_delivery: Delivery) -> None:
        block(0.005)

    await queue.run(work)


async def receive(queue: WorkQueue) -> None:
    """Receive one delivery after the other."""
    while True:
        async with await queue.receive():
            block(0.005)


async def batches(queue: WorkQueue) -> None:
    """Receive small batches."""
    while True:
        async with await queue.batch_receive(BatchPolicy(max_records=2)) as batch:
            block(0.005 * len(batch))


async def iterate(queue: WorkQueue) -> None:
    """Iterate over the deliveries."""
    async for delivery in queue:
        async with delivery:
            block(0.005)


@pytest.mark.parametrize("read", [run, receive, batches, iterate])
@pytest.mark.parametrize("concurrency", [1, 100])
async def test_work_that_never_waits_leaves_turns_to_the_event_loop(
    env: VirtualEnvironment, concurrency: int, read: Callable[[WorkQueue], Coroutine[Any, Any, None]]
):
    """Each record blocks for 5 ms; with 10 s of records at hand, heartbeats and commits go on."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = now()
            await asyncio.sleep(0)
            longest = max(longest, now() - before)

    for partition in range(4):
        await send(env, *[b"v"] * 500, partition=partition)
    async with opened(env, concurrency=concurrency) as queue:
        await asyncio.sleep(5.0)
        watching = asyncio.create_task(watch())
        reading = asyncio.create_task(read(queue))
        while queue.statistics().counts.acked < 2000:
            await asyncio.sleep(0.01)
        watching.cancel()
        reading.cancel()
        await asyncio.wait([watching, reading])
    assert 0.005 <= longest < 0.1
