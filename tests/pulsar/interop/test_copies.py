"""Copies in retry and dead letter topics: Java's and C++'s read by ours, and ours by Java's, with the same names and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import pulsar as pulsar_library
import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.workqueue import DeadLetter
from asyncgroup.workqueue.copies import (
    DELAY_TIME,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_LEGACY,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
)
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.members import CppMember, JavaMember, Received, until
from tests.pulsar.interop.messages import new_topic, producer
from tests.pulsar.interop.test_producer_and_java import read_with_java

pytestmark = [pytest.mark.real, pytest.mark.full]

MAX_REDELIVERIES: Final = 3
DEFAULTS: Final = "persistent://public/default/"
MESSAGE: Final[dict[str, Any]] = {
    "value": b"poison",
    "key": "eggs",
    "properties": {"color": "red"},
    "event_time": 1_700_000_000_123,
}
ORDERED: Final = {**MESSAGE, "ordering_key": "order-1"}


async def topic_of(server: RunningPulsar) -> str:
    """Return a new topic whose copies are kept: without a subscription a broker drops them."""
    topic = new_topic()
    for name in (topic, f"{topic}-s-DLQ", f"{topic}-s-RETRY"):
        await server.admin.create_topic(name)
    await server.admin.create_subscription(topic, "s", "earliest")
    await server.admin.create_subscription(f"{topic}-s-RETRY", "s", "earliest")
    await server.admin.create_subscription(f"{topic}-s-DLQ", "java", "earliest")
    return topic


async def settled(server: RunningPulsar, *topics: str) -> None:
    """Wait until everything in the topics is acknowledged."""
    async with asyncio.timeout(60):
        for topic in topics:
            while (await server.admin.stats(topic))["subscriptions"]["s"]["msgBacklog"]:
                await asyncio.sleep(0.1)


def queue_on(server: RunningPulsar, topic: str) -> WorkQueue:
    return WorkQueue(
        PulsarSource(server.service_url, "s", topic),
        initial_position="earliest",
        nack_backoff=0.1,
        retry=True,
        dead_letter=DeadLetter(MAX_REDELIVERIES),
    )


async def run_until(
    queue: WorkQueue, handle: Callable[[Delivery], Awaitable[None]], condition: Callable[[], object]
) -> None:
    async with queue:
        running = start_task(queue.run(handle))
        try:
            await until(condition, "the deliveries of the queue")
        finally:
            await queue.aclose()
            await cancel_and_wait(running)


# --- dead letters after negative acknowledgements -------------------------------------------------------------------------


async def fail_with_java(server: RunningPulsar, topic: str) -> int:
    received: list[Received] = []
    member = JavaMember(server, topic, "shared", received.append, maxRedeliver=MAX_REDELIVERIES)
    await member.start()
    try:
        for number in range(MAX_REDELIVERIES + 1):
            await until(lambda number=number: len(received) > number, "the next delivery")
            await member.nack(MESSAGE["value"])
        await settled(server, topic)
    finally:
        await member.close()
    return len(received)


async def fail_with_cpp(server: RunningPulsar, topic: str) -> int:
    received: list[Received] = []
    policy = pulsar_library.ConsumerDeadLetterPolicy(MAX_REDELIVERIES)
    member = CppMember(server, topic, "shared", received.append, dead_letter_policy=policy)
    await member.start()
    try:
        for number in range(MAX_REDELIVERIES + 1):
            await until(lambda number=number: len(received) > number, "the next delivery")
            await member.nack(MESSAGE["value"])
        await settled(server, topic)
    finally:
        await member.close()
    return len(received)


async def fail_with_ours(server: RunningPulsar, topic: str) -> int:
    attempts: list[int] = []

    async def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ValueError("it fails")

    await run_until(queue_on(server, topic), handle, lambda: len(attempts) > MAX_REDELIVERIES)
    await settled(server, topic)
    return len(attempts)


WRITERS: Final = {"java": fail_with_java, "cpp": fail_with_cpp, "ours": fail_with_ours}


@pytest.mark.parametrize("writer", WRITERS)
async def test_a_dead_letter_has_the_message_and_its_origin(
    apache_pulsar: RunningPulsar, writer: str
) -> None:
    """Java's client reads it, and ours: all writers deliver as often."""
    topic = await topic_of(apache_pulsar)
    async with producer(apache_pulsar, topic) as sends:
        sent = await sends.send(**ORDERED)
    assert await WRITERS[writer](apache_pulsar, topic) == MAX_REDELIVERIES + 1
    (found,) = await read_with_java(apache_pulsar, f"{topic}-s-DLQ", 1)
    assert (found.value, found.key) == (b"poison", b"eggs")
    wanted = {"color": "red", REAL_TOPIC: f"{DEFAULTS}{topic}"}
    wanted[ORIGIN_MESSAGE_ID] = f"{sent.ledger_id}:{sent.entry_id}:-1"
    if writer != "cpp":
        assert (found.event_time, found.ordering_key) == (1_700_000_000_123, b"order-1")
        wanted[ORIGIN_MESSAGE_ID_LEGACY] = wanted[ORIGIN_MESSAGE_ID]
        wanted[REAL_SUBSCRIPTION] = "s"
    else:  # it has its own form of ids, and two of the properties
        wanted[ORIGIN_MESSAGE_ID] = f"({sent.ledger_id},{sent.entry_id},-1,-1)"
    shown = {name: text for name, text in found.properties.items() if not name.startswith("__dlq.")}
    assert _without_batch(shown) == wanted


def _without_batch(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties whose origin is the id of the entry: messages were sent in a batch of one."""
    return {
        name: ":".join(text.split(":")[:3]) if name in (ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID_LEGACY) else text
        for name, text in properties.items()
    }


# --- retry letters --------------------------------------------------------------------------------------------------------


async def test_a_retry_letter_of_java_goes_on_in_a_queue(apache_pulsar: RunningPulsar) -> None:
    topic = await topic_of(apache_pulsar)
    async with producer(apache_pulsar, topic) as sends:
        await sends.send(**MESSAGE)
    received: list[Received] = []
    member = JavaMember(
        apache_pulsar, topic, "shared", received.append, retry="true", maxRedeliver=MAX_REDELIVERIES
    )
    await member.start()
    await until(lambda: received, "the message")
    await member.later(b"poison", 0.2)
    await until(lambda: len(received) > 1, "the first copy")
    await member.close()
    assert received[1].properties[RECONSUMETIMES] == "1"
    seen: list[tuple[int, dict[str, bytes | None]]] = []

    async def handle(delivery: Delivery) -> None:
        seen.append((delivery.attempt, dict(delivery.headers)))
        await delivery.reconsume_later(0.2)

    await run_until(queue_on(apache_pulsar, topic), handle, lambda: len(seen) >= MAX_REDELIVERIES)
    assert [attempt for attempt, _ in seen] == [2, 3, 4]
    assert [headers[RECONSUMETIMES] for _, headers in seen] == [b"1", b"2", b"3"]
    assert seen[1][1][DELAY_TIME] == b"200"
    origin = {name: text.encode() for name, text in received[1].properties.items()}
    for _, headers in seen:
        assert {**headers, RECONSUMETIMES: b"1", DELAY_TIME: b"200"} == origin
    await settled(apache_pulsar, topic, f"{topic}-s-RETRY")
    (dead,) = await read_with_java(apache_pulsar, f"{topic}-s-DLQ", 1)
    assert (dead.value, dead.key, dead.event_time) == (b"poison", b"eggs", 1_700_000_000_123)
    assert {
        name: dead.properties[name].encode() for name in origin.keys() - {RECONSUMETIMES, DELAY_TIME}
    } == {name: text for name, text in origin.items() if name not in (RECONSUMETIMES, DELAY_TIME)}


async def test_a_retry_letter_of_a_queue_goes_on_in_java(apache_pulsar: RunningPulsar) -> None:
    topic = await topic_of(apache_pulsar)
    async with producer(apache_pulsar, topic) as sends:
        await sends.send(**MESSAGE)
    seen: list[int] = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        if len(seen) == 1:
            await delivery.reconsume_later(0.2)
        else:
            await asyncio.sleep(60)  # it is not acknowledged when the queue closes

    await run_until(queue_on(apache_pulsar, topic), handle, lambda: len(seen) == 1)
    received: list[Received] = []
    member = JavaMember(
        apache_pulsar, topic, "shared", received.append, retry="true", maxRedeliver=MAX_REDELIVERIES
    )
    await member.start()
    try:
        for number in range(MAX_REDELIVERIES):
            await until(lambda number=number: len(received) > number, "the next copy")
            await member.later(b"poison", 0.2)
        await settled(apache_pulsar, topic, f"{topic}-s-RETRY")
    finally:
        await member.close()
    assert [each.properties[RECONSUMETIMES] for each in received] == ["1", "2", "3"]
    assert all(each.topic.endswith("-RETRY") for each in received)
    (dead,) = await read_with_java(apache_pulsar, f"{topic}-s-DLQ", 1)
    assert (dead.value, dead.key) == (b"poison", b"eggs")
    assert dead.properties[REAL_TOPIC] == f"{DEFAULTS}{topic}"
    assert dead.properties[RECONSUMETIMES] == str(MAX_REDELIVERIES + 1)
