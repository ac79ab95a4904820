"""MemorySource: records in memory for tests of handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import (
    ConfigError,
    DeadLetter,
    Delivery,
    GroupSource,
    Record,
    RetryTopic,
    TopicPartition,
    UsageError,
    WorkQueue,
)
from asyncgroup.errors import InvalidRecordError
from asyncgroup.testing import MemorySource

pytestmark = pytest.mark.virtual


async def test_the_example() -> None:
    async def handle(delivery: Delivery) -> None:
        int(delivery.value or b"")

    source = MemorySource([b"1", b"2", b"x"])
    async with WorkQueue(source, nack_backoff=0, dead_letter=1) as queue:
        running = asyncio.create_task(queue.run(handle))
        await source.wait_done()
    await running
    assert [record.value for record in source.acked] == [b"1", b"2", b"x"]
    assert [copy.value for copy in source.dead_letters] == [b"x"]
    assert repr(source) == "<MemorySource 'memory': 3 records>"
    assert queue.config is None
    assert (queue.group_id, queue.dead_letter_topic) == ("memory", "memory-memory-DLQ")


async def test_records_of_all_kinds() -> None:
    source = MemorySource([b"a", None, (b"k", b"b"), (None, b"c")], topic="orders", partitions=2)
    source.add(Record("orders", 1, 10, value=b"d"), Record("other", 0, 5, value=b"e"))
    async with WorkQueue(source) as queue:
        taken = [await queue.receive() for _ in range(6)]
        assert sorted((each.record.topic, each.value or b"") for each in taken) == [
            ("orders", b""),
            ("orders", b"a"),
            ("orders", b"b"),
            ("orders", b"c"),
            ("orders", b"d"),
            ("other", b"e"),
        ]
        for each in taken:
            await each.ack()
        assert source.is_done
        assert {each.tp.topic for each in queue.statistics().partitions} == {"orders", "other"}


async def test_a_key_is_always_in_one_partition() -> None:
    source = MemorySource([(b"k", b"%d" % number) for number in range(9)], partitions=4)
    async with WorkQueue(source) as queue:
        taken = [await queue.receive() for _ in range(9)]
        assert len({each.record.partition for each in taken}) == 1


async def test_records_that_come_while_the_queue_is_open() -> None:
    source = MemorySource()
    async with WorkQueue(source, receiver_queue=2) as queue:
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(1)
        source.add(*(b"%d" % number for number in range(5)))
        assert (await receiving).value == b"0"
        assert [(await queue.receive()).value for _ in range(4)] == [b"1", b"2", b"3", b"4"]


async def test_one_queue_at_a_time() -> None:
    source = MemorySource([b"a"])
    async with WorkQueue(source):
        with pytest.raises(UsageError, match="read by another queue"):
            async with WorkQueue(source):
                pass
    async with WorkQueue(source) as queue:
        assert (await queue.receive()).value == b"a"


async def test_handlers_have_close_timeout_to_end() -> None:
    ended: list[float] = []

    async def handle(_delivery: Delivery) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(asyncio.get_running_loop().time())

    source = MemorySource([b"a"], close_timeout=7.0)
    async with WorkQueue(source) as queue:
        running = asyncio.create_task(queue.run(handle))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
    await running
    assert ended == [began + 7.0]
    assert not source.acked


async def test_positions() -> None:
    source = MemorySource([b"a", b"b", b"c"])
    async with WorkQueue(source) as queue:
        for target, value in (("earliest", b"a"), (1, b"b"), ({TopicPartition("memory", 0): 2}, b"c")):
            await queue.seek(target)
            assert (await queue.receive()).value == value
        await queue.seek(1, inclusive=False)
        assert (await queue.receive()).value == b"c"
        await queue.seek("latest")
        assert source.is_done
        for wrong in ("first", -1, 1.5):
            with pytest.raises(ConfigError, match="position="):
                await queue.seek(wrong)


async def test_a_seek_beyond_all_records_ends_the_wait_for_them() -> None:
    source = MemorySource([b"a", b"b"])
    async with WorkQueue(source) as queue:
        waiting = asyncio.create_task(source.wait_done())
        await asyncio.sleep(1)
        await queue.seek("latest")
        await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({TopicPartition("memory", 0): "1"}, "offset='1'"),
        ({TopicPartition("memory", 0): -5}, "offset=-5"),
        (
            {TopicPartition("memory", 0): 1, TopicPartition("memory", 7): 1},
            "partitions of the source: memory-0",
        ),
        ({"memory": 1}, "position='memory'"),
        (1 << 64, "offset=18446744073709551616"),
    ],
)
async def test_positions_that_are_refused_move_nothing(target: Any, text: str) -> None:
    async with WorkQueue(MemorySource([b"a", b"b"])) as queue:
        with pytest.raises(ConfigError) as caught:
            await queue.seek(target)
        assert text in str(caught.value)
        assert (await queue.receive()).value == b"a"


@pytest.mark.parametrize(
    "options",
    [
        {"retry": RetryTopic(topic="memory")},
        {"dead_letter": DeadLetter(1, topic="memory")},
        {"retry": RetryTopic(topic="other"), "dead_letter": DeadLetter(1, topic="other")},
        {"dead_letter": DeadLetter(1, topic="orders")},
    ],
)
async def test_topics_of_copies_are_checked_as_on_a_group(options: dict[str, Any]) -> None:
    records = [b"a", Record("orders", 0, 0)]
    with pytest.raises(ConfigError, match=r"another topic than .*; choose one by \w+\(topic=…\)"):
        WorkQueue(MemorySource(records), **options)


async def test_headers_of_copies_are_checked_as_on_a_group() -> None:
    wrong: Any
    async with WorkQueue(MemorySource([b"a"]), retry=True) as queue:
        delivery = await queue.receive()
        for wrong in ([("name", "text")], ["ab"], [1], None, 5):
            with pytest.raises(InvalidRecordError, match="headers="):
                delivery.reconsume_later(1.0, wrong)
        assert await delivery.reconsume_later(1.0, [("name", b"bytes")])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"records": b"abc"}, "records=b'abc'"),
        ({"records": [1]}, "records=1"),
        ({"records": [("k", b"v")]}, "records=('k', b'v')"),
        ({"records": [Record("t", 0, 5), Record("t", 0, 5)]}, "offsets of t-0 that grow: 6 or more"),
        ({"topic": "no/topic"}, "no/topic"),
        ({"partitions": 0}, "partitions=0"),
        ({"subscription": ""}, "group_id=''"),
        ({"close_timeout": "5"}, "close_timeout='5'"),
        ({"close_timeout": -1}, "close_timeout=-1"),
    ],
)
async def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MemorySource(**arguments)
    assert text in str(caught.value)


async def test_what_it_does_not_have() -> None:
    source: Any = MemorySource()
    with pytest.raises(ConfigError, match="given by the source"):
        WorkQueue(source, transactional_copies=True)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="hooks="):
        WorkQueue(source, hooks=[object()])
    assert not isinstance(source, GroupSource)
