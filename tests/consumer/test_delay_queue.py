"""DelayQueue: partitions become due at their own times."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.delay_queue import DelayQueue
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from tests.consumer.brokers import now

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


def partition(number: int) -> PartitionConsumer:
    tp = TopicPartition("orders", number)
    return PartitionConsumer(tp, 0, ConsumerConfig(), Budget(1, 1), Hooks())


async def test_each_partition_is_due_at_its_own_time() -> None:
    waiting, began = DelayQueue(0.0), now()
    for number, pause in ((0, 3.0), (1, 1.0), (2, 2.0)):
        waiting.put(partition(number), pause)
    called = [(consumer.partition, now() - began) for _ in range(3) for consumer in await waiting.wait_due()]
    assert called == [(1, 1.0), (2, 2.0), (0, 3.0)]
    assert len(waiting) == 0


async def test_partitions_due_within_the_window_are_returned_together() -> None:
    waiting = DelayQueue(0.5)
    for number, pause in ((0, 1.0), (1, 1.4), (2, 1.6)):
        waiting.put(partition(number), pause)
    assert [consumer.partition for consumer in await waiting.wait_due()] == [0, 1]
    assert repr(waiting) == "<DelayQueue: orders-2>"


async def test_a_later_put_with_an_earlier_due_time_wakes_the_caller() -> None:
    waiting, began = DelayQueue(0.0), now()
    waiting.put(partition(0), 60.0)
    task = asyncio.ensure_future(waiting.wait_due())
    await asyncio.sleep(1)
    waiting.put(partition(1), 1.0)
    assert [consumer.partition for consumer in await task] == [1]
    assert now() - began == 2.0


async def test_a_discarded_partition_is_not_returned() -> None:
    waiting = DelayQueue(0.0)
    first, again = partition(0), partition(0)
    waiting.put(first, 1.0)
    assert not waiting.discard(again), "it is not in the queue"
    assert waiting.discard(first)
    assert not waiting.discard(first)
    waiting.put(again, 2.0)
    waiting.put(again, 3.0)
    began = now()
    assert await waiting.wait_due() == [again]
    assert now() - began == 3.0, "the last put counts"
