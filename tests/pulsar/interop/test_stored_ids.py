"""Ids that are stored as bytes here, used by Pulsar's Java client: it acknowledges one message of a batch, and seeks to chunks."""

from __future__ import annotations

import asyncio
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

import pytest

from asyncgroup.pulsar import MessageId, PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.messages import new_topic, producer
from tests.pulsar.java_client import pulsar_java_command

pytestmark = [pytest.mark.real, pytest.mark.full]

PROGRAM: Final = Path(__file__).with_name("UseStoredId.java")


async def used_by_java(pulsar: RunningPulsar, topic: str, how: str, found: MessageId) -> list[str]:
    """Return what the program prints after the id, which must be the same."""
    command = pulsar_java_command(PROGRAM)
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, pulsar.service_url, topic, "s", how, b64encode(bytes(found)).decode()],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    stored, *more = done.stdout.splitlines()
    again = MessageId.from_bytes(b64decode(stored))
    assert (again, again.batch_size, again.first_chunk_id) == (found, found.batch_size, found.first_chunk_id)
    return more


async def test_one_message_of_a_batch_is_acknowledged(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with producer(apache_pulsar, topic, batching_max_messages=4, batching_max_delay=5) as sends:
        ids = await asyncio.gather(*(sends.send(b"%d" % number) for number in range(4)))
    assert {each.batch_size for each in ids} == {4}
    assert await used_by_java(apache_pulsar, topic, "ack", ids[1]) == []
    config = PulsarConsumerConfig(initial_position="earliest")
    async with (
        PulsarClient(apache_pulsar.service_url) as client,
        client.subscribe(topic, "s", config=config) as consumer,
        asyncio.timeout(60),
    ):
        assert [(await consumer.receive()).value for _ in range(3)] == [b"0", b"2", b"3"]


async def test_a_seek_to_a_value_in_chunks(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    options = {"batching": False, "chunking": True, "chunk_max_size": 1000}
    async with producer(apache_pulsar, topic, **options) as sends:
        await sends.send(b"before")
        found = await sends.send(bytes(3000))
    assert found.first_chunk_id is not None
    assert found.first_chunk_id.entry_id == 1
    assert await used_by_java(apache_pulsar, topic, "seek", found) == ["3000"]


@pytest.mark.parametrize("client_kind", ["java", "own"])
async def test_after_a_seek_into_a_batch_no_consumer_gets_what_is_before(
    apache_pulsar: RunningPulsar, client_kind: str
) -> None:
    """Java's client names the messages that are left in its SEEK, and so does this one."""
    topic = new_topic()
    async with producer(apache_pulsar, topic, batching_max_messages=4, batching_max_delay=5) as sends:
        ids = await asyncio.gather(*(sends.send(b"x" * number) for number in range(4)))
    config = PulsarConsumerConfig(initial_position="earliest")
    async with PulsarClient(apache_pulsar.service_url) as client, asyncio.timeout(150):
        if client_kind == "java":
            assert await used_by_java(apache_pulsar, topic, "seek", ids[2]) == ["2"]
        else:
            async with client.subscribe(topic, "s", type="shared", config=config) as first:
                await first.seek(MessageId.from_bytes(bytes(ids[2])))
        async with client.subscribe(topic, "s", type="shared", config=config) as consumer:
            assert [(await consumer.receive()).value for _ in range(2)] == [b"xx", b"xxx"]
