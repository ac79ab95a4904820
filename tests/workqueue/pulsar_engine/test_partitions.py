"""Partitions of a work queue on scripted Pulsar brokers, in virtual time: each begins alone, and is refused alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncgroup import AsyncGroupError, Delivery, WorkQueue
from asyncgroup.errors import ClosedError, ConsumerBusy
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.workqueue import AckOutcome
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.scripted import Call, ScriptedPulsar, no_answer, refuse
from tests.stories.virtual import now

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"

NOT_ALLOWED, TOPIC_NOT_FOUND, AUTHORIZATION, CONSUMER_BUSY = 22, 11, 4, 5


@pytest.fixture
async def pulsar() -> AsyncIterator[ScriptedPulsar]:
    """Brokers of a topic with three partitions."""
    async with ScriptedPulsar("10.0.0.1") as brokers:
        brokers.set_partitions("orders", 3)
        yield brokers


def queue_on(pulsar: ScriptedPulsar, **settings: Any) -> WorkQueue:
    config = PulsarConfig(partitions_update_interval=10)
    return WorkQueue(PulsarSource(pulsar.url, "billing", "orders", config=config), **settings)


def answers(pulsar: ScriptedPulsar, by_partition: dict[int, Callable[[Call], Any]]) -> None:
    """Answer SUBSCRIBE of these partitions in another way."""

    def answer(call: Call) -> None:
        number = int(call.command.topic.rpartition("-")[2])
        by_partition.get(number, Call.default)(call)

    pulsar.script[c.CommandSubscribe] = answer


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.05)


def subscribed(pulsar: ScriptedPulsar) -> list[int]:
    """Return the partitions of all SUBSCRIBE commands, in order."""
    return [int(each.topic.rpartition("-")[2]) for each in pulsar.commands(c.CommandSubscribe)]


def consumer_of(pulsar: ScriptedPulsar, number: int) -> int:
    """Return the id of the last consumer of a partition."""
    found = [
        each for each in pulsar.commands(c.CommandSubscribe) if each.topic == f"{TOPIC}-partition-{number}"
    ]
    consumer: int = found[-1].consumer_id
    return consumer


def push(pulsar: ScriptedPulsar, number: int, value: bytes, entry_id: int = 0) -> None:
    consumer = consumer_of(pulsar, number)
    pulsar.connection_of(consumer=consumer).push_entry(consumer, value, entry_id=entry_id)


async def received(queue: WorkQueue, count: int) -> list[bytes | None]:
    async with asyncio.timeout(60):
        found = [await queue.receive() for _ in range(count)]
    for each in found:
        await each.ack()
    return sorted(each.value for each in found)  # type: ignore[type-var]


async def test_a_partition_that_is_refused_stops_no_other(pulsar: ScriptedPulsar) -> None:
    answers(pulsar, {1: refuse(NOT_ALLOWED)})
    async with queue_on(pulsar) as queue:
        errors = queue.errors()
        assert now() < 0.1
        for number in (0, 2):
            push(pulsar, number, b"%d" % number)
        assert await received(queue, 2) == [b"0", b"2"]
        (problem,) = (each for each in queue.health().problems if "orders-1" in str(each))
        assert "refused" in str(problem)
        assert "NotAllowedError" in str(problem)
        assert [each.tp.partition for each in queue.statistics().partitions] == [0, 2]
        # it is tried again with the next look-up
        error = await anext(errors)
        assert isinstance(error, PulsarServerError)
        assert error.code == NOT_ALLOWED
        assert now() == pytest.approx(10, abs=0.1)
        del pulsar.script[c.CommandSubscribe]
        await until(lambda: subscribed(pulsar).count(1) == 3)
        assert {each.initial_position for each in pulsar.commands(c.CommandSubscribe)} == {0}
        push(pulsar, 1, b"1")
        assert await received(queue, 1) == [b"1"]
        assert queue.health().problems == ()
        await errors.aclose()


@pytest.mark.parametrize("code", [NOT_ALLOWED, AUTHORIZATION, TOPIC_NOT_FOUND, CONSUMER_BUSY])
async def test_if_all_are_refused_the_queue_does_not_open(pulsar: ScriptedPulsar, code: int) -> None:
    pulsar.script[c.CommandSubscribe] = refuse(code)
    kind = ConsumerBusy if code == CONSUMER_BUSY else PulsarServerError
    with pytest.raises(kind):
        async with queue_on(pulsar):
            pass
    assert now() < 0.1


async def test_in_exclusive_another_consumer_of_one_partition_is_enough(pulsar: ScriptedPulsar) -> None:
    answers(pulsar, {2: refuse(CONSUMER_BUSY)})
    with pytest.raises(ConsumerBusy, match="billing"):
        async with queue_on(pulsar, mode="exclusive"):
            pass
    assert [type(each) for each in pulsar.commands(c.CommandCloseConsumer)] == [c.CommandCloseConsumer] * 2


async def test_a_partition_without_an_answer_does_not_keep_the_others_waiting(pulsar: ScriptedPulsar) -> None:
    held: list[Call] = []
    answers(pulsar, {0: held.append})
    async with queue_on(pulsar) as queue:
        assert now() == pytest.approx(10, abs=0.1)
        push(pulsar, 1, b"1")
        assert await received(queue, 1) == [b"1"]
        assert any("orders-0 is not connected" in str(each) for each in queue.health().problems)
        held[0].default()
        await asyncio.sleep(0.1)
        push(pulsar, 0, b"0")
        assert await received(queue, 1) == [b"0"]


async def test_a_queue_that_is_closed_while_it_opens(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandSubscribe] = no_answer
    queue = queue_on(pulsar)
    opening = asyncio.create_task(queue.__aenter__())
    await asyncio.sleep(1)
    await queue.aclose()
    with pytest.raises(ClosedError):
        await opening


async def test_a_partition_that_is_deleted_later_stops_no_other(pulsar: ScriptedPulsar) -> None:
    async with queue_on(pulsar) as queue:
        for number in range(3):
            push(pulsar, number, b"%d" % number)
        open_: dict[bytes | None, Delivery] = {}
        for _ in range(3):
            delivery = await queue.receive()
            open_[delivery.value] = delivery
        answers(pulsar, {1: refuse(TOPIC_NOT_FOUND)})
        pulsar.connection_of(consumer=consumer_of(pulsar, 1)).close_attached(f"{TOPIC}-partition-1")
        await until(lambda: len(queue.statistics().partitions) == 2)
        assert [await open_[value].ack() for value in (b"0", b"1", b"2")] == [
            AckOutcome.ACKED,
            AckOutcome.LOST,
            AckOutcome.ACKED,
        ]
        push(pulsar, 2, b"2", entry_id=1)
        assert await received(queue, 1) == [b"2"]
        receiving = asyncio.create_task(queue.receive())
        pulsar.script[c.CommandSubscribe] = refuse(TOPIC_NOT_FOUND)
        for number in (0, 2):
            pulsar.connection_of(consumer=consumer_of(pulsar, number)).close_attached(
                f"{TOPIC}-partition-{number}"
            )
        with pytest.raises(AsyncGroupError, match="TopicNotFound"):
            await receiving
        assert queue.health().fatal is not None


async def test_an_added_partition_that_is_refused_stops_no_other(pulsar: ScriptedPulsar) -> None:
    async with queue_on(pulsar) as queue:
        errors = queue.errors()
        answers(pulsar, {3: refuse(NOT_ALLOWED)})
        pulsar.set_partitions("orders", 5)
        assert isinstance(await anext(errors), PulsarServerError)
        assert sorted(subscribed(pulsar)) == [0, 1, 2, 3, 4]
        for number in (0, 1, 2, 4):
            push(pulsar, number, b"%d" % number)
        assert await received(queue, 4) == [b"0", b"1", b"2", b"4"]
        del pulsar.script[c.CommandSubscribe]
        await until(lambda: subscribed(pulsar).count(3) == 2)
        assert [each.initial_position for each in pulsar.commands(c.CommandSubscribe)] == [0, 0, 0, 1, 1, 1]
        await errors.aclose()


async def test_partitions_that_are_added_get_a_share_of_the_limits_from_the_others(
    pulsar: ScriptedPulsar,
) -> None:
    def granted(number: int) -> int:
        consumer = consumer_of(pulsar, number)
        flows = pulsar.commands(c.CommandFlow)
        return sum(flow.message_permits for flow in flows if flow.consumer_id == consumer)

    async with queue_on(pulsar, receiver_queue_total=24, receive_buffer_bytes=1 << 30) as queue:
        await until(lambda: [granted(number) for number in range(3)] == [8, 8, 8])
        pulsar.set_partitions("orders", 6)
        await until(lambda: len(subscribed(pulsar)) == 6)
        await until(lambda: granted(5) == 4)
        for entry in range(6):
            push(pulsar, 0, b"0", entry_id=entry)
        await received(queue, 6)
        await asyncio.sleep(1)
        assert granted(0) == 8 + 2, "4 of its 8 permits were above its new share"


async def test_without_a_receiver_queue_a_partition_is_asked_once() -> None:
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        pulsar.set_partitions("orders", 50)
        async with queue_on(pulsar, receiver_queue=0) as queue:
            receiving = asyncio.create_task(queue.receive())
            await until(lambda: len(pulsar.commands(c.CommandFlow)) == 50)
            for entry in range(20):
                push(pulsar, 7 * entry % 50, b"a", entry_id=entry)
                await (await receiving).ack()
                receiving = asyncio.create_task(queue.receive())
                await asyncio.sleep(0.1)
                assert len(pulsar.commands(c.CommandFlow)) == 50 + entry + 1
            push(pulsar, 3, b"a", entry_id=99)
            await (await receiving).ack()
            await asyncio.sleep(1)
            flows = len(pulsar.commands(c.CommandFlow))
            pulsar.connection_of(consumer=consumer_of(pulsar, 5)).close_attached(f"{TOPIC}-partition-5")
            await until(lambda: len(subscribed(pulsar)) == 51)
            await asyncio.sleep(1)
            assert len(pulsar.commands(c.CommandFlow)) == flows
            receiving = asyncio.create_task(queue.receive())
            await asyncio.sleep(1)
            assert len(pulsar.commands(c.CommandFlow)) == flows + 2, (
                "the one of the last message, and the new one"
            )
            push(pulsar, 5, b"b", entry_id=0)
            assert (await receiving).value == b"b"


# --- several topics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "is_refused"),
    [(refuse(TOPIC_NOT_FOUND, "none"), True), (no_answer, False)],
    ids=["refused", "silent"],
)
async def test_a_topic_that_is_not_found_stops_no_other(
    pulsar: ScriptedPulsar, answer: Callable[[Call], Any], is_refused: bool
) -> None:
    """It is looked for again, and read from its first message on when it is there."""
    is_there = False

    def partitions(call: Call) -> None:
        is_bad = call.command.topic.endswith("others") and not is_there
        (answer if is_bad else Call.default)(call)

    pulsar.script[c.CommandPartitionedTopicMetadata] = partitions
    config = PulsarConfig(partitions_update_interval=10, operation_timeout=30)
    queue = WorkQueue(PulsarSource(pulsar.url, "billing", ["orders", "others"], config=config))
    errors = []
    async with queue:
        assert now() < 11, "the others have at most ten seconds"
        assert len(pulsar.commands(c.CommandSubscribe)) == 3

        async def read_errors() -> None:
            errors.extend([error async for error in queue.errors()])

        reading = asyncio.create_task(read_errors())
        await asyncio.sleep(60)
        is_there = True
        await until(lambda: len(pulsar.commands(c.CommandSubscribe)) == 4)
        found = pulsar.commands(c.CommandSubscribe)[-1]
        assert (found.topic, found.initial_position) == ("persistent://public/default/others", 1)
    await reading
    assert errors
    assert all("others" in str(error) for error in errors)
    assert (PulsarServerError in map(type, errors)) is is_refused


async def test_topics_that_are_all_refused_end_the_queue(pulsar: ScriptedPulsar) -> None:
    pulsar.script[c.CommandPartitionedTopicMetadata] = refuse(AUTHORIZATION, "no")
    queue = WorkQueue(PulsarSource(pulsar.url, "billing", ["orders", "others"]))
    with pytest.raises(PulsarServerError, match="AuthorizationError"):
        async with queue:
            pass
    assert pulsar.commands(c.CommandSubscribe) == []
