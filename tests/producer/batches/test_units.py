"""Units of the producer: buffer memory, delivery tracker, batches, error actions, arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.error_codes import ErrorCode, is_retriable
from asyncgroup.errors import BrokerError, ClosedError, InvalidRecordError
from asyncgroup.memory.buffer_memory import BufferMemory
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer.arguments import check_record
from asyncgroup.producer.batches.batch import BATCH_OVERHEAD, BatchFormat, ProducerBatch, record_size
from asyncgroup.producer.sending.deliveries import DeliveryTracker
from asyncgroup.producer.sending.requests import PRODUCE_ACTIONS, ProduceAction, produce_action
from asyncgroup.wire.records import BatchBuilder

TP = TopicPartition("t", 3)


def batch_of(count: int, waiting: int = 0) -> tuple[ProducerBatch, list[asyncio.Future[RecordMetadata]]]:
    batch, futures = ProducerBatch(TP, BatchFormat("none", 10_000), 0.0, 1.0), []
    for number in range(count):
        future = asyncio.get_running_loop().create_future() if number >= count - waiting else None
        if future is not None:
            futures.append(future)
        assert batch.append(b"x", None, (), 1000 + number, 22, future)
    return batch, futures


# --- buffer memory --------------------------------------------------------------------------------------------------


async def test_waiters_are_granted_in_fifo_order_even_if_a_later_one_would_fit() -> None:
    memory = BufferMemory(10)
    assert memory.try_reserve(8)
    order: list[int] = []

    async def caller(size: int) -> None:
        await memory.reserve(size)
        order.append(size)

    tasks = [asyncio.create_task(caller(size)) for size in (5, 1, 4)]
    await asyncio.sleep(1)
    assert not memory.try_reserve(1), "no caller passes the waiters"
    memory.release(8)
    await asyncio.gather(*tasks)
    assert order == [5, 1, 4]
    assert memory.used == 10


async def with_two_callers(
    size: int, next_size: int
) -> tuple[BufferMemory, asyncio.Task[None], asyncio.Task[None]]:
    """Return a memory of 10 bytes, of which 8 are reserved, and two callers that have asked for more."""
    memory = BufferMemory(10)
    memory.try_reserve(8)
    first, second = (asyncio.create_task(memory.reserve(each)) for each in (size, next_size))
    await asyncio.sleep(1)
    return memory, first, second


async def test_a_cancelled_caller_makes_way_for_the_next() -> None:
    memory, first, second = await with_two_callers(5, 2)
    first.cancel()
    await second
    assert memory.used == 10
    assert memory.waiting == 0


async def test_a_caller_cancelled_after_the_grant_frees_the_memory() -> None:
    memory, first, second = await with_two_callers(8, 5)
    memory.release(8)
    assert memory.used == 8
    first.cancel()
    await second
    assert first.cancelled()
    assert memory.used == 5


@pytest.mark.real
async def test_fail_raises_in_every_waiter() -> None:
    memory = BufferMemory(10)
    memory.try_reserve(10)
    waiting = [asyncio.create_task(memory.reserve(1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    memory.fail(lambda: ClosedError("closed"))
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError, ClosedError, ClosedError]
    assert memory.used == 10


# --- delivery tracker ------------------------------------------------------------------------------------------------


def test_lost_records_are_counted_by_partition_and_reported_once() -> None:
    tracker = DeliveryTracker()
    assert tracker.take_lost() is None
    first = BrokerError(10, "first")
    tracker.add_lost(TP, 2, first)
    tracker.add_lost(TP, 3, BrokerError(29, "second"))
    lost = tracker.take_lost()
    assert lost is not None
    assert lost.failed == {TP: (5, first)}
    assert tracker.take_lost() is None


@pytest.mark.real
async def test_a_flush_waits_only_for_its_own_batches() -> None:
    tracker = DeliveryTracker()
    (one, _), (two, _), (three, _) = batch_of(1), batch_of(1), batch_of(1)
    one.complete(0)
    await tracker.wait([one])
    waiting = asyncio.create_task(tracker.wait([one, two]))
    impatient = asyncio.create_task(tracker.wait([three]))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert not waiting.done()
    two.fail(TimeoutError)
    tracker.on_batch_done(two, None)
    await waiting
    assert "0 flushes" in repr(tracker)


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.real
async def test_each_future_gets_the_offset_of_its_record() -> None:
    batch, futures = batch_of(4, waiting=2)
    batch.complete(100)
    assert [future.result() for future in futures] == [
        RecordMetadata("t", 3, 102, 1002),
        RecordMetadata("t", 3, 103, 1003),
    ]


@pytest.mark.real
async def test_log_append_time_replaces_the_timestamp() -> None:
    batch, (future,) = batch_of(1, waiting=1)
    batch.complete(7, append_time=5555)
    assert future.result().timestamp == 5555


@pytest.mark.real
async def test_with_acks_0_offsets_are_unknown() -> None:
    batch, futures = batch_of(2, waiting=2)
    batch.complete(-1)
    assert [future.result().offset for future in futures] == [-1, -1]


@pytest.mark.real
async def test_each_failed_future_has_its_own_error_and_cancelled_ones_are_skipped() -> None:
    batch, futures = batch_of(3, waiting=3)
    futures[0].cancel()
    batch.fail(lambda: ClosedError("closed"))
    errors = [future.exception() for future in futures[1:]]
    assert [type(error) for error in errors] == [ClosedError, ClosedError]
    assert errors[0] is not errors[1]


@given(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=50)), max_size=4),
)
def test_record_size_is_an_upper_bound(key: Any, value: Any, headers: Any) -> None:
    builder = BatchBuilder()
    builder.append(2**40, key, value, headers)
    assert len(builder.build()) <= BATCH_OVERHEAD + record_size(value, key, headers)


# --- error actions --------------------------------------------------------------------------------------------------


def test_the_action_of_every_error_code_agrees_with_kafkas_retriable_flag() -> None:
    for code in ErrorCode:
        action = produce_action(code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            assert action is ProduceAction.DONE
        else:
            assert (action in (ProduceAction.RETRY, ProduceAction.REFRESH)) == is_retriable(code), code.name
    assert produce_action(4711) is ProduceAction.FAIL
    assert set(PRODUCE_ACTIONS) <= set(ErrorCode)


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        (None, None, (), None, None),
        (b"", b"", [], 0, 0),
        (b"v", b"k", [("a", b"b"), ("a", None), ["c", b""]], 2**31 - 1, 2**63 - 1),
    ],
)
def test_valid_records(record: Any) -> None:
    check_record(*record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (("text", None, (), None, None), r"value='text' is not allowed: bytes or None; .*value\.encode\(\)"),
        ((7, None, (), None, None), "value=7 is not allowed: bytes or None$"),
        ((bytearray(b"x"), None, (), None, None), "value=bytearray"),
        (({"a" * 99: 1}, None, (), None, None), "value=.*…"),
        ((b"", "key", (), None, None), r"key='key' .*key\.encode\(\)"),
        ((b"", None, {"a": b"b"}, None, None), "headers=.*pairs"),
        ((b"", None, "ab", None, None), "headers=.*pairs"),
        ((b"", None, [("a",)], None, None), "headers=.*pairs"),
        ((b"", None, [("a", "text")], None, None), "headers=.*pairs"),
        ((b"", None, [(b"a", b"b")], None, None), "headers=.*pairs"),
        ((b"", None, (), -1, None), "partition=-1"),
        ((b"", None, (), True, None), "partition=True"),
        ((b"", None, (), "0", None), "partition='0'"),
        ((b"", None, (), None, 1.5), "timestamp=1.5 .*milliseconds"),
        ((b"", None, (), None, -1), "timestamp=-1"),
        ((b"", None, (), None, 2**63), "timestamp="),
    ],
)
def test_invalid_records(record: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        check_record(*record)
