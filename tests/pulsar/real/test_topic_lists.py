"""Lists of topics and their watchers at a broker; `tests/pulsar_broker` runs the same on the embedded one: equal field by field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from asyncgroup import WorkQueue
from asyncgroup.pulsar import PulsarClient, PulsarConsumerConfig, PulsarServerError
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import SendsCommands
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import topics_hash
from tests.apache_pulsar import RunningPulsar

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.full]

NAMESPACE = "public/default"
LIMIT = 60


class Watcher:
    """Keeps the updates that a connection gives it."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[c.CommandWatchTopicUpdate] = asyncio.Queue()

    def on_topics_changed(self, update: c.CommandWatchTopicUpdate) -> None:
        self.updates.put_nowait(update)

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None: ...

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None: ...


@asynccontextmanager
async def connected(server: RunningPulsar) -> AsyncIterator[PulsarConnection]:
    async with PulsarClient(server.service_url) as client:
        yield await client._inner.lookup.service_connection()


async def listed(
    connection: PulsarConnection, pattern: str | None = None, known: str | None = None
) -> c.CommandGetTopicsOfNamespaceResponse:
    found: c.CommandGetTopicsOfNamespaceResponse = await connection.request(
        "topics",
        lambda number: c.CommandGetTopicsOfNamespace(
            request_id=number, namespace=NAMESPACE, topics_pattern=pattern, topics_hash=known
        ),
        timeout=LIMIT,
    )
    return found


async def watched(
    connection: PulsarConnection, pattern: str, known: str | None = None
) -> c.CommandWatchTopicListSuccess:
    found: c.CommandWatchTopicListSuccess = await connection.request(
        "watch",
        lambda number: c.CommandWatchTopicList(
            request_id=number, watcher_id=7, namespace=NAMESPACE, topics_pattern=pattern, topics_hash=known
        ),
        timeout=LIMIT,
    )
    return found


async def test_lists_with_pattern_and_hash(apache_pulsar: RunningPulsar) -> None:
    start = f"l{uuid4().hex[:6]}"
    await apache_pulsar.admin.create_topic(f"{start}-a")
    await apache_pulsar.admin.create_partitioned_topic(f"{start}-p", 2)
    names = [f"persistent://{NAMESPACE}/{start}-{end}" for end in ("a", "p-partition-0", "p-partition-1")]
    async with connected(apache_pulsar) as connection:
        assert connection.features == c.FeatureFlags(
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_repl_dedup_by_lid_and_eid=True,
            supports_topic_watcher_reconcile=True,
        )
        whole = await listed(connection)
        assert set(names) <= set(whole.topics)
        assert (whole.filtered, whole.changed, whole.topics_hash) == (False, True, topics_hash(whole.topics))
        for pattern in (f"{NAMESPACE}/{start}-.*", f"persistent://{NAMESPACE}/{start}-.*"):
            found = await listed(connection, pattern)
            if not found.filtered:
                continue  # too long with the scheme
            assert (sorted(found.topics), found.changed) == (names, True)
            assert found.topics_hash == topics_hash(names)
            same = await listed(connection, pattern, found.topics_hash)
            assert (list(same.topics), same.filtered, same.changed) == ([], True, False)
            assert same.topics_hash == found.topics_hash
        longer = await listed(connection, f"{NAMESPACE}/{start}-(.*|{'x' * 50})")
        assert (longer.filtered, set(names) <= set(longer.topics)) == (False, True)
        none = await listed(connection, f"{NAMESPACE}/{start}-none")
        assert (list(none.topics), none.filtered, none.changed) == ([], True, True)
        assert none.topics_hash == topics_hash([]) == "00000000"
        whole_names = await listed(connection, f"{NAMESPACE}/{start}-p")  # without the number of a partition
        assert sorted(whole_names.topics) == names[1:]


async def test_a_watcher_gets_what_is_created_and_deleted(apache_pulsar: RunningPulsar) -> None:
    start, watcher = f"w{uuid4().hex[:6]}", Watcher()
    names = [f"persistent://{NAMESPACE}/{start}-{end}" for end in "ab"]
    await apache_pulsar.admin.create_topic(f"{start}-a")
    async with connected(apache_pulsar) as connection, asyncio.timeout(LIMIT):
        connection.registered.add_watcher(7, watcher)
        begun = await watched(connection, f"{NAMESPACE}/{start}-.*")
        assert (begun.watcher_id, list(begun.topic), begun.topics_hash) == (
            7,
            names[:1],
            topics_hash(names[:1]),
        )
        await apache_pulsar.admin.create_topic(f"x{start}")
        await apache_pulsar.admin.create_topic(f"{start}-b")
        created = await watcher.updates.get()
        assert (created.watcher_id, list(created.new_topics), list(created.deleted_topics)) == (
            7,
            names[1:],
            [],
        )
        assert created.topics_hash == topics_hash(names)
        await apache_pulsar.admin.delete_topic(f"{start}-a")
        deleted = await watcher.updates.get()
        assert (list(deleted.new_topics), list(deleted.deleted_topics)) == ([], names[:1])
        assert deleted.topics_hash == topics_hash(names[1:])
        await connection.request(
            "close",
            lambda number: c.CommandWatchTopicListClose(request_id=number, watcher_id=7),
            timeout=LIMIT,
        )
        await apache_pulsar.admin.create_topic(f"{start}-c")
        await asyncio.sleep(0.5)
        assert watcher.updates.empty()


async def test_a_pattern_that_is_too_long_is_not_watched(apache_pulsar: RunningPulsar) -> None:
    async with connected(apache_pulsar) as connection:
        with pytest.raises(PulsarServerError) as error:
            await watched(connection, f"{NAMESPACE}/{'x' * 50}")
        assert error.value.code == ServerError.NOT_ALLOWED_ERROR
        assert error.value.text == "Unable to create topic list watcher: Pattern longer than maximum: 50"


async def test_a_consumer_of_a_pattern(apache_pulsar: RunningPulsar) -> None:
    start = f"c{uuid4().hex[:6]}"
    config = PulsarConsumerConfig(initial_position="earliest")
    await apache_pulsar.admin.create_topic(f"{start}-a")
    async with (
        asyncio.timeout(LIMIT),
        PulsarClient(apache_pulsar.service_url) as client,
        client.subscribe(re.compile(f"{start}-.*"), "s", config=config) as consumer,
    ):
        assert consumer.topics == [f"persistent://{NAMESPACE}/{start}-a"]
        await apache_pulsar.admin.create_partitioned_topic(f"{start}-b", 2)
        found = set()
        for topic in ("a", "b"):
            async with client.producer(f"{start}-{topic}") as producer:
                await producer.send(topic.encode(), key="k")
        while len(found) < 2:
            message = await consumer.receive()
            consumer.ack(message)
            found.add(message.value)
        await consumer.flush()
        await apache_pulsar.admin.delete_topic(f"{start}-a")
        while len(consumer.topics) > 1:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert consumer.topics == [f"persistent://{NAMESPACE}/{start}-b"]
        assert not consumer.errors()
        assert f"persistent://{NAMESPACE}/{start}-a" not in await client.topics()


async def test_a_work_queue_of_a_pattern(apache_pulsar: RunningPulsar) -> None:
    start = f"q{uuid4().hex[:6]}"
    queue = WorkQueue(apache_pulsar.service_url, "s", re.compile(f"{start}-.*"), mode="key_shared")
    async with asyncio.timeout(LIMIT), PulsarClient(apache_pulsar.service_url) as client, queue:
        assert queue.health().ready
        for number in range(2):
            await apache_pulsar.admin.create_partitioned_topic(f"{start}-{number}", number + 1)
            async with client.producer(f"{start}-{number}") as producer:
                await asyncio.gather(*(producer.send(b"%d" % each, key=f"k{each}") for each in range(10)))
        found = set()
        while len(found) < 20:
            delivery = await queue.receive()
            found.add((delivery.record.topic, delivery.value))
            await delivery.ack()
        await apache_pulsar.admin.delete_topic(f"{start}-1")
        while any(each.tp.topic.endswith("-1") for each in queue.statistics().partitions):
            await asyncio.sleep(0.1)
        async with client.producer(f"{start}-0") as producer:
            await producer.send(b"last")
        assert (await queue.receive()).value == b"last"
        assert not queue.health().problems
        assert not any(f"{start}-1" in topic for topic in await client.topics())
