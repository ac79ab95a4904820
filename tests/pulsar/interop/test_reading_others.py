"""What the producers of Java's and C++'s clients send, read by ours: compressions, batches, chunks, keys, null values, properties."""

from __future__ import annotations

import asyncio
import random
import subprocess
from pathlib import Path
from typing import Any, Final

import pulsar as pulsar_library
import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.members import packed
from tests.pulsar.interop.messages import CONTENTS, key_of, new_topic
from tests.pulsar.java_client import pulsar_java_command

pytestmark = [pytest.mark.real, pytest.mark.full]

PROGRAM: Final = Path(__file__).with_name("WriteMessages.java")
LIMIT: Final = 60.0
COMPRESSIONS: Final = ("none", "lz4", "zlib", "zstd", "snappy")
LARGE: Final = random.Random(1).randbytes(11_000_000)
"""More than two of a broker's largest messages, also compressed."""


async def read(pulsar: RunningPulsar, topic: str, count: int) -> list[PulsarMessage]:
    """Return the messages of a topic, which has no more than `count`; all are acknowledged."""
    config = PulsarConsumerConfig(initial_position="earliest")
    async with PulsarClient(pulsar.service_url) as client:
        async with client.subscribe(topic, "reads", config=config) as consumer:
            async with asyncio.timeout(LIMIT):
                found = [await consumer.receive() for _ in range(count)]
            for message in found:
                consumer.ack(message)
            await consumer.flush()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await consumer.receive()
            stats = await pulsar.admin.stats(topic)
            assert stats["subscriptions"]["reads"]["msgBacklog"] == 0
    return found


def shown(message: PulsarMessage) -> tuple[Any, ...]:
    return (
        message.value,
        message.key,
        message.ordering_key,
        message.event_time,
        dict(message.properties),
    )


def expected(contents: dict[str, Any]) -> tuple[Any, ...]:
    ordering_key = contents.get("ordering_key")
    return (
        contents["value"],
        key_of(contents),
        ordering_key.encode() if ordering_key else None,
        contents.get("event_time"),
        contents.get("properties", {}),
    )


def line_of(contents: dict[str, Any]) -> str:
    """Return a message as `WriteMessages.java` reads it."""
    key, value = key_of(contents), contents["value"]
    fields = [
        "-" if value is None else packed(value),
        "-" if key is None else packed(key),
        str(isinstance(contents.get("key"), bytes)).lower(),
        packed(contents["ordering_key"].encode()) if "ordering_key" in contents else "-",
        str(contents.get("event_time", 0)),
    ]
    properties = contents.get("properties", {})
    return " ".join(
        [*fields, *(f"{packed(name.encode())}:{packed(text.encode())}" for name, text in properties.items())]
    )


async def write_with_java(
    pulsar: RunningPulsar, compression: str, topics: dict[str, str], messages: list[dict[str, Any]]
) -> dict[str, list[str]]:
    """Send messages to the topic of each batching; return the texts of their ids."""
    command = pulsar_java_command(PROGRAM)
    targets = [f"{batching}={topic}" for batching, topic in topics.items()]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, pulsar.service_url, compression.upper(), *targets],
        input="".join(f"{line_of(each)}\n" for each in messages),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines, count = done.stdout.splitlines(), len(messages)
    return {
        batching: lines[number * count : number * count + count] for number, batching in enumerate(topics)
    }


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_what_java_sends(apache_pulsar: RunningPulsar, compression: str) -> None:
    topics = {batching: new_topic() for batching in ("none", "default", "keys")}
    ids = await write_with_java(apache_pulsar, compression, topics, CONTENTS)
    for batching, topic in topics.items():
        found = await read(apache_pulsar, topic, len(CONTENTS))
        by_id = {str(each.message_id): each for each in found}
        assert by_id.keys() == set(ids[batching])
        for number, text in enumerate(ids[batching]):
            assert shown(by_id[text]) == expected(CONTENTS[number])
            assert by_id[text].sequence_id == number
        if batching != "keys":
            assert [shown(each) for each in found] == [expected(each) for each in CONTENTS]
        assert any(each.message_id.batch_index > 0 for each in found) == (batching != "none")


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_what_java_sends_in_chunks(apache_pulsar: RunningPulsar, compression: str) -> None:
    """Java's id of a value in chunks is that of its first and its last one; here it is known by the last one."""
    topic, messages = new_topic(), [{"value": b"small"}, {"value": LARGE, "key": "k"}, {"value": b"small"}]
    ids = await write_with_java(apache_pulsar, compression, {"none": topic}, messages)
    found = await read(apache_pulsar, topic, 3)
    assert [shown(each) for each in found] == [expected(each) for each in messages]
    assert [str(each.message_id) for each in found] == [text.rpartition(";")[2] for text in ids["none"]]
    assert str(found[1].first_chunk_id) == ids["none"][1].partition(";")[0]


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_what_c_plus_plus_sends(apache_pulsar: RunningPulsar, compression: str) -> None:
    """Its keys are texts, and it has no null values."""
    topics = {batching: new_topic() for batching in ("none", "default", "keys")}
    messages = [
        each for each in CONTENTS if each["value"] is not None and not isinstance(each.get("key"), bytes)
    ]
    large = {"value": LARGE, "key": "k"}

    def write() -> None:
        logger = pulsar_library.ConsoleLogger(pulsar_library.LoggerLevel.Error)
        client = pulsar_library.Client(apache_pulsar.service_url, logger=logger)
        try:
            for batching, topic in topics.items():
                is_single = batching == "none"
                sends = client.create_producer(
                    topic,
                    compression_type=CPP_COMPRESSIONS[compression],
                    batching_enabled=not is_single,
                    batching_max_publish_delay_ms=1000,
                    batching_type=CPP_BATCHING[batching],
                    chunking_enabled=is_single,
                )
                for each in [*messages, large] if is_single else messages:
                    sends.send_async(
                        each["value"],
                        lambda _result, _id: None,
                        properties=each.get("properties"),
                        partition_key=each.get("key"),
                        ordering_key=each.get("ordering_key"),
                        event_timestamp=each.get("event_time"),
                    )
                sends.flush()
        finally:
            client.close()

    await asyncio.to_thread(write)
    for batching, topic in topics.items():
        written = [*messages, large] if batching == "none" else messages
        found = await read(apache_pulsar, topic, len(written))
        by_number = {each.sequence_id: each for each in found}
        assert [shown(by_number[number]) for number in range(len(written))] == [
            expected(each) for each in written
        ]
        assert any(each.message_id.batch_index > 0 for each in found) == (batching != "none")


_KINDS: Final = pulsar_library.CompressionType
CPP_COMPRESSIONS: Final = {
    "none": _KINDS.NONE,
    "lz4": _KINDS.LZ4,
    "zlib": _KINDS.ZLib,
    "zstd": _KINDS.ZSTD,
    "snappy": _KINDS.SNAPPY,
}
CPP_BATCHING: Final = {
    "none": pulsar_library.BatchingType.Default,
    "default": pulsar_library.BatchingType.Default,
    "keys": pulsar_library.BatchingType.KeyBased,
}
