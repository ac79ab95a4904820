"""PulsarReader of several topics, and of patterns, on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.model import now_ms
from asyncgroup.pulsar import (
    EARLIEST,
    LATEST,
    MessageId,
    PulsarMessage,
    PulsarReader,
    TopicMessageId,
)
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.support import embedded

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPICS = {"a": 0, "b": 2}
"""A topic without partitions, and one with two."""

A, B = ("persistent://public/default/a", "persistent://public/default/b")


def produce(pulsar: EmbeddedPulsar, *numbers: int) -> list[TopicMessageId]:
    """Write each number to a partition: `a`, `b-partition-0`, `b-partition-1`, in turn."""
    places: list[tuple[str, int | None]] = [("a", None), ("b", 0), ("b", 1)]
    found = []
    for number in numbers:
        topic, partition = places[number % 3]
        [message_id] = pulsar.produce(topic, b"%d" % number, partition=partition)
        found.append(TopicMessageId(topic, message_id))
    return found


def number_of(message: PulsarMessage) -> int:
    return int(message.value or b"-1")


async def read_all(reader: PulsarReader) -> list[int]:
    found = []
    while await reader.has_message_available():
        found.append(number_of(await reader.read()))
    return sorted(found)


async def test_everything_from_the_first_message_on_and_what_comes() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        produce(pulsar, *range(30))
        async with client.reader(["a", "b"], "earliest") as reader:
            assert reader.topics == [A, B]
            assert await read_all(reader) == list(range(30))
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(10)
            produce(pulsar, 31)
            assert number_of(await waiting) == 31
            assert not await reader.has_message_available()
            produce(pulsar, 32)
            assert await reader.has_message_available()
            assert [each.value for each in await reader.read_batch()] == [b"32"]
            assert not reader.is_at_end
            for topic in ("a", "b"):
                pulsar.terminate(topic)
            await asyncio.sleep(1)
            assert reader.is_at_end
        assert not any(pulsar.topic(name).subscriptions for name in ("a", "b")), "nothing stays"


async def test_a_message_of_any_topic_is_available() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client), client.reader(["a", "b"]) as reader:
        for number in range(6):
            assert not await reader.has_message_available()
            produce(pulsar, number)
            assert await reader.has_message_available()
            assert number_of(await reader.read()) == number


async def test_times_and_ends() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        produce(pulsar, *range(6))
        await asyncio.sleep(10)
        time = datetime.fromtimestamp(now_ms() / 1000, UTC)
        await asyncio.sleep(10)
        produce(pulsar, *range(6, 12))
        async with client.reader(["a", "b"], time) as reader:
            assert await read_all(reader) == list(range(6, 12))
            await reader.seek("earliest")
            assert await read_all(reader) == list(range(12))
            await reader.seek(time)
            assert await read_all(reader) == list(range(6, 12))
            await reader.seek(LATEST)
            assert await read_all(reader) == []
            await reader.seek(EARLIEST)
            assert len(await read_all(reader)) == 12


@pytest.mark.parametrize("inclusive", [True, False])
async def test_it_goes_on_at_stored_ids(inclusive: bool) -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        ids = produce(pulsar, *range(30))
        stored = [
            (each.topic, bytes(each)) for each in (ids[9], ids[13])
        ]  # of a, and of the first partition of b
        positions = [TopicMessageId(topic, MessageId.from_bytes(data)) for topic, data in stored]
        rest = [
            *range(9 if inclusive else 12, 30, 3),
            *range(13 if inclusive else 16, 30, 3),
            *range(2, 30, 3),  # the partition that is not among them is read from its first message on
        ]
        async with client.reader(["a", "b"], positions, inclusive=inclusive) as reader:
            assert await read_all(reader) == sorted(rest)
            await reader.seek([ids[21]], inclusive=inclusive)
            assert await read_all(reader) == list(range(21 if inclusive else 24, 30, 3)), "the others stay"
            await reader.seek(ids[29], inclusive=inclusive)
            assert await read_all(reader) == ([29] if inclusive else [])
            await reader.seek([ids[29], ids[27]], inclusive=False)
            assert await read_all(reader) == []
            assert await reader.last_message_ids() == [ids[27], ids[28], ids[29]]


async def test_where_it_was_by_the_last_ids() -> None:
    """What is stored of an empty partition is a position, too."""
    async with embedded(topics=TOPICS) as (pulsar, client):
        produce(pulsar, 0, 3, 1)
        async with client.reader(["a", "b"], "earliest") as reader:
            ends = await reader.last_message_ids()
        produce(pulsar, 2, 4)
        async with client.reader(["a", "b"], ends) as reader:
            assert await read_all(reader) == [2, 4]


async def test_ids_of_the_partitions_of_one_topic() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        ids = [each.message_id for each in produce(pulsar, *(n for n in range(30) if n % 3))]
        async with client.reader("b", ids[10:12]) as reader:  # 16 and 17
            assert await read_all(reader) == [n for n in range(18, 30) if n % 3]
            await reader.seek(ids[2:4], inclusive=True)
            assert await read_all(reader) == [n for n in range(4, 30) if n % 3]
            with pytest.raises(UsageError, match="a list with an id for each partition"):
                await reader.seek(ids[0])
        async with client.reader("b-partition-1", ids[11]) as reader:
            assert await read_all(reader) == [20, 23, 26, 29]


async def test_it_goes_on_where_it_was_after_reconnects() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        produce(pulsar, *range(30))
        async with client.reader(["a", "b"], "earliest") as reader:
            found = [number_of(await reader.read()) for _ in range(7)]
            pulsar.cut(1)
            await asyncio.sleep(5)
            found += [number_of(await reader.read()) for _ in range(7)]
            pulsar.unload("b")
            await asyncio.sleep(5)
            found += await read_all(reader)
            assert sorted(found) == list(range(30))


async def test_a_pattern_with_topics_that_are_created_and_deleted() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        ids = produce(pulsar, *range(6))
        gone = TopicMessageId("z", MessageId(1, 2))
        async with client.reader(re.compile("[a-z]"), [ids[3], gone]) as reader:
            assert await read_all(reader) == [1, 2, 4, 5]
            pulsar.create_topic("c")
            pulsar.produce("c", b"7")
            assert number_of(await reader.read()) == 7
            assert reader.topics == [A, B, A[:-1] + "c"]
            pulsar.delete_topic("a")
            assert await read_all(reader) == []
            await asyncio.sleep(1)
            assert reader.topics == [B, A[:-1] + "c"]
            await reader.seek("earliest")
            assert await read_all(reader) == [1, 2, 4, 5, 7]
            assert not reader.is_at_end


async def test_positions_that_are_none() -> None:
    async with embedded(topics=TOPICS) as (pulsar, client):
        ids = produce(pulsar, *range(3))
        plain = ids[0].message_id
        wrong: list[tuple[Any, str]] = [
            (plain, "TopicMessageIds for several topics"),
            ([ids[0], plain], "TopicMessageIds for several topics"),
            ([], "a list with an id for each partition"),
            ([1], "a list with an id for each partition"),
            ({"a": plain}, "a list with an id for each partition"),
        ]
        for start, text in wrong:
            with pytest.raises(ConfigError, match=text):
                client.reader(["a", "b"], start)
        with pytest.raises(ConfigError, match=f"an id of {A}"):
            client.reader("a", TopicMessageId("b", plain))
        with pytest.raises(ConfigError, match=f"not -1 of {A[:-1]}c"):
            async with client.reader(["a", "b"], [TopicMessageId("c", plain)]):
                pass
        reader = client.reader(["a", "b"], "earliest")
        with pytest.raises(ClosedError, match="the reader is not open"):
            await reader.seek(ids)
        async with reader:
            for target, text in [*wrong, ([ids[0], ids[0]], "one id for each partition")]:
                with pytest.raises(ConfigError, match=text):
                    await reader.seek(target)
            with pytest.raises(ConfigError, match="not 2 of"):
                await reader.seek([TopicMessageId("b", MessageId(1, 2, 2))])
            assert await read_all(reader) == [0, 1, 2]
        with pytest.raises(ClosedError, match="the reader is not open"):
            await reader.seek(ids)
