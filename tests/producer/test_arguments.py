"""Invalid arguments, and callers that are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import InvalidRecordError
from tests.producer.support import TOPIC, fill_memory, produced, stored, writing

# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": "text"}, r"value='text' is not allowed: bytes or None; .*value\.encode"),
        ({"key": 5}, "key=5"),
        ({"headers": {"a": b"b"}}, "headers="),
        ({"headers": None}, "headers=None"),
        ({"headers": [("\udcff", b"a name of surrogateescape")]}, "headers="),
        ({"partition": -1}, "partition=-1"),
        ({"timestamp": 1.5}, "timestamp=1.5"),
        ({"topic": "a b"}, "topic='a b'"),
        ({"topic": None}, "topic=None"),
        (
            {"value": b"x" * 2_000_000},
            "size=2000021 is not allowed: a record of at most max_request_size=1048576",
        ),
        ({"headers": [("h", b"x" * 2_000_000)]}, "size=2"),
    ],
)
async def test_invalid_arguments_are_named_and_reserve_no_memory(
    arguments: dict[str, Any], message: str
) -> None:
    async with writing() as (cluster, producer):
        record = {"topic": TOPIC, "value": b"x", **arguments}
        with pytest.raises(InvalidRecordError, match=message):
            await producer.send(**record)
        with pytest.raises(InvalidRecordError, match=message):
            producer.send_nowait(**record)
        with pytest.raises(InvalidRecordError, match=message):
            await producer.enqueue(**record)
        assert "0 of 33554432 bytes" in repr(producer)
        await producer.flush()
        assert not produced(cluster)


async def test_headers_of_other_types_than_tuples_of_str_and_bytes() -> None:
    class Name(str):
        __slots__ = ()

    class Content(bytes):
        __slots__ = ()

    async with writing() as (cluster, producer):
        pairs: Any = [["list", b"1"], (Name("own"), Content(b"2")), ("ä", None)]
        for headers in (pairs, tuple(pairs)):
            await producer.send(TOPIC, b"x", headers=headers)
        for record in cluster.records(TOPIC):
            assert list(record.headers) == [("list", b"1"), ("own", b"2"), ("ä", None)]


# --- cancelled callers ---------------------------------------------------------------------------------------------


async def test_cancelling_the_caller_does_not_withdraw_an_appended_record() -> None:
    async with writing(linger=1.0) as (cluster, producer):
        sending = asyncio.create_task(producer.send(TOPIC, b"goes on", partition=0))
        await asyncio.sleep(0)
        future = producer.send_nowait(TOPIC, b"too", partition=0)
        await asyncio.sleep(0.5)
        sending.cancel()
        future.cancel()
        other = await producer.send(TOPIC, b"other", partition=0)
        assert sending.cancelled()
        assert other.offset == 2
        assert stored(cluster, 0) == [b"goes on", b"too", b"other"]


async def test_a_caller_cancelled_while_it_waits_for_memory_sends_nothing() -> None:
    async with writing(buffer_bytes=400) as (cluster, producer):
        first, waiting = await fill_memory(cluster, producer, delay=5.0)
        await asyncio.sleep(1)
        waiting.cancel()
        await first
        await producer.flush()
        assert len(stored(cluster, 1)) == 1
        assert "0 of 400 bytes" in repr(producer)
