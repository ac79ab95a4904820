"""What PulsarProducer sends, read by Pulsar's Java client: compressions, batches, keys, null values, properties, chunks."""

from __future__ import annotations

import asyncio
import subprocess
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from asyncgroup.pulsar.wire.message_id import MessageId
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.messages import CONTENTS, key_of, new_topic, producer
from tests.pulsar.java_client import pulsar_java_command

pytestmark = [pytest.mark.real, pytest.mark.full]

PROGRAM: Final = Path(__file__).with_name("ReadMessages.java")


class Shown(NamedTuple):
    """What Java's client sees of a message."""

    value: bytes | None
    key: bytes | None
    is_key_bytes: bool
    ordering_key: bytes | None
    event_time: int
    sequence_id: int
    entry_id: int
    batch_index: int
    properties: dict[str, str]


async def read_with_java(pulsar: RunningPulsar, topic: str, count: int) -> list[Shown]:
    """Return the messages of a topic, which has no more than `count`."""
    (found,) = await read_topics_with_java(pulsar, [topic], count)
    return found


async def read_topics_with_java(
    pulsar: RunningPulsar, topics: Sequence[str], count: int
) -> list[list[Shown]]:
    """Return the messages of each topic, which has no more than `count`."""
    command = pulsar_java_command(PROGRAM)
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, pulsar.service_url, str(count), *topics],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines, size = done.stdout.splitlines(), count + 1
    assert lines[count::size] == ["end"] * len(topics)
    return [[parsed(line.split(" ")) for line in lines[at : at + count]] for at in range(0, len(lines), size)]


def parsed(fields: list[str]) -> Shown:
    value, key, is_base64, ordering_key, *numbers = fields[:8]
    properties = dict(tuple(unpacked(part) for part in each.split(":")) for each in fields[8:])
    return Shown(
        unpacked(value),
        unpacked(key),
        is_base64 == "true",
        unpacked(ordering_key),
        *map(int, numbers),
        {name.decode(): text.decode() for name, text in properties.items()},
    )


def unpacked(text: str) -> Any:
    return None if text == "-" else b64decode(text.removeprefix("b"))


def sees(contents: dict[str, Any], *, base64_keys: bool) -> tuple[Any, ...]:
    key = key_of(contents)
    ordering_key = contents.get("ordering_key")
    is_bytes = (
        key is not None and isinstance(contents["key"], bytes) and (base64_keys or key == b"\xff\x00\xfe")
    )
    return (
        contents["value"],
        key,
        is_bytes,
        ordering_key.encode() if ordering_key else None,
        contents.get("event_time", 0),
        contents.get("properties", {}),
    )


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
async def test_java_reads_every_kind_of_message(apache_pulsar: RunningPulsar, compression: str) -> None:
    values = [*CONTENTS, {"value": bytes(range(251)) * 60_000}]
    kinds: list[dict[str, Any]] = [{"batching": False}, {"base64_keys": True}, {"key_based_batching": True}]
    topics, sent = [new_topic() for _ in kinds], list[list[MessageId]]()
    for topic, options in zip(topics, kinds, strict=True):
        async with producer(
            apache_pulsar, topic, compression=compression, compression_min_size=0, chunking=True, **options
        ) as sends:
            futures = [sends.send_nowait(**each) for each in values]
            sent.append([await each for each in futures])
    read = await read_topics_with_java(apache_pulsar, topics, len(values))
    for messages, ids, options in zip(read, sent, kinds, strict=True):
        found = {each.sequence_id: each for each in messages}
        for number, (contents, message_id) in enumerate(zip(values, ids, strict=True)):
            shown = found[number]
            base64_keys = options.get("base64_keys", False)
            assert (*shown[:5], shown.properties) == sees(contents, base64_keys=base64_keys)
            assert (shown.entry_id, shown.batch_index) == (message_id.entry_id, message_id.batch_index)
        assert any(each.batch_index > 0 for each in messages) == options.get("batching", True)
