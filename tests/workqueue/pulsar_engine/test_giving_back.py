"""In Mode.SHARED a message that has failed goes back to the broker: queues on a model of one, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.wire.commands import CommandRedeliverUnacknowledgedMessages
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.profiles import thinned
from tests.pulsar.consumer.broker import Broker
from tests.stories.virtual import now

pytestmark = pytest.mark.virtual(max_virtual_time=100_000)

TOPIC = "orders"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as found:
        yield found


def queue_on(broker: Broker, *, index_acks: bool = True, **settings: Any) -> WorkQueue:
    source = PulsarSource(
        broker.url, "s", TOPIC, index_acks=index_acks, config=PulsarConfig(retry_backoff_max=1)
    )
    return WorkQueue(source, **{"initial_position": "earliest"} | settings)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.05)


def requests(broker: Broker) -> list[list[int]]:
    """Return the entries of each request for redelivery."""
    found = broker.of(CommandRedeliverUnacknowledgedMessages)
    return [[one.entry_id for one in each.message_ids] for each in found]


async def test_another_consumer_gets_a_message_that_has_failed(broker: Broker) -> None:
    broker.add(TOPIC, b"a")
    async with queue_on(broker, receiver_queue=0) as first, queue_on(broker, receiver_queue=0) as second:
        delivery = await first.receive()
        began = now()
        waiting = asyncio.create_task(second.receive())
        await delivery.nack(delay=7)
        again = await waiting
        assert 7.0 <= now() - began < 7.1
        assert (again.value, again.attempt, again.redelivery_count) == (b"a", 2, 1)
        await again.nack(delay=0)
        third = await first.receive()
        assert third.attempt == 3
        await third.ack()
    assert requests(broker) == [[0], [0]]


@pytest.mark.parametrize("mode", ["key_shared", "exclusive", "failover"])
async def test_with_an_order_it_stays_here(broker: Broker, mode: str) -> None:
    broker.add(TOPIC, b"a")
    async with queue_on(broker, mode=mode, nack_backoff=1) as queue:
        for attempt in range(1, 4):
            delivery = await queue.receive()
            assert delivery.attempt == attempt
            await delivery.nack()
        await (await queue.receive()).ack()
    assert requests(broker) == []


async def test_it_does_not_wait_for_the_other_messages_of_a_full_receiver_queue(broker: Broker) -> None:
    """One delivery makes room for it, not those of half of the queue."""
    for number in range(100):
        broker.add(TOPIC, b"%d" % number)
    async with queue_on(broker, receiver_queue=20) as queue:
        taken = [await queue.receive() for _ in range(12)]
        await asyncio.sleep(1)
        for each in taken[:3]:
            await each.nack(delay=5)
        await asyncio.sleep(4.9)
        assert requests(broker) == []
        await asyncio.sleep(0.2)
        assert requests(broker) == [[0, 1, 2]]
        found = []
        for _ in range(14):
            found.append(await queue.receive())
            await asyncio.sleep(0.01)
        again = [(each.value, each.attempt) for each in found if each.attempt > 1]
        assert again == [(b"0", 2), (b"1", 2), (b"2", 2)]


async def test_messages_that_come_again_take_no_more_permits_than_others(broker: Broker) -> None:
    for number in range(200):
        broker.add(TOPIC, b"%d" % number)
    async with queue_on(broker, receiver_queue=8, nack_backoff=1) as queue:
        most, done = 0, 0
        while done < 200:
            delivery = await queue.receive()
            if delivery.attempt < 3:
                await delivery.nack()
            else:
                await delivery.ack()
                done += 1
            (partition,) = queue.statistics().partitions
            most = max(most, partition.queued + broker.consumer(TOPIC).permits)
            await asyncio.sleep(0.1)
        assert most <= 8


async def test_a_message_of_a_batch_stays_here_while_others_of_it_are_open(broker: Broker) -> None:
    """Another consumer would get these as well, also those that have a handler."""
    broker.add(TOPIC, b"a", b"b", b"c")
    async with queue_on(broker, nack_backoff=1) as queue:
        first, second, third = [await queue.receive() for _ in range(3)]
        await first.nack()
        again = await queue.receive()
        assert (again.value, again.attempt, requests(broker)) == (b"a", 2, [])
        await second.ack()
        await again.nack()
        again = await queue.receive()
        assert (again.value, again.attempt, requests(broker)) == (b"a", 3, [])
        await third.ack()
        await again.nack()
        again = await queue.receive()
        assert (again.value, again.attempt, requests(broker)) == (b"a", 4, [])
        await again.ack(durable=True)
    assert broker.subscription(TOPIC).acked == {0}


async def test_without_index_acks_a_message_of_a_batch_stays_here(broker: Broker) -> None:
    broker.add(TOPIC, b"a", b"b")
    broker.add(TOPIC, b"c", batch=True)
    async with queue_on(broker, nack_backoff=1, index_acks=False) as queue:
        first, second, third = [await queue.receive() for _ in range(3)]
        await second.ack()
        await first.nack()
        first = await queue.receive()
        assert (first.value, first.attempt, requests(broker)) == (b"a", 2, [])
        await third.nack()
        third = await queue.receive()
        assert (third.value, third.attempt, requests(broker)) == (b"c", 2, [[1]])
        for each in (first, third):
            await each.ack()


async def test_a_closing_queue_gives_back_what_waits(broker: Broker) -> None:
    """So the broker has counted it, also when nothing else has."""
    for value in (b"a", b"b"):
        broker.add(TOPIC, value)
    async with queue_on(broker, receiver_queue=0) as second:
        async with queue_on(broker, receiver_queue=0) as first:
            taken = [await first.receive() for _ in range(2)]
            await taken[0].nack(delay=100)
        found = sorted([((await second.receive()).value), (await second.receive()).value])  # type: ignore[type-var]
        assert found == [b"a", b"b"]
        assert dict(broker.subscription(TOPIC).redeliveries) == {0: 1, 1: 0}


async def test_after_the_ack_timeout_another_consumer_gets_it(broker: Broker) -> None:
    broker.add(TOPIC, b"a")
    async with (
        queue_on(broker, receiver_queue=0, ack_timeout=5) as first,
        queue_on(broker, receiver_queue=0) as second,
    ):
        delivery = await first.receive()
        again = await second.receive()
        assert (again.value, again.attempt) == (b"a", 2)
        assert not await delivery.ack()
        await again.ack()


async def test_a_handler_that_goes_on_after_its_nack_keeps_the_message_until_it_has_returned(
    broker: Broker,
) -> None:
    nacked, goes_on = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await delivery.nack(delay=1)
        nacked.set()
        await goes_on.wait()

    broker.add(TOPIC, b"a")
    async with queue_on(broker, receiver_queue=0) as first, queue_on(broker, receiver_queue=0) as second:
        run = asyncio.create_task(first.run(handle))
        await nacked.wait()
        waiting = asyncio.create_task(second.receive())
        await asyncio.sleep(30)
        assert requests(broker) == []
        goes_on.set()
        await until(lambda: requests(broker))
        await first.aclose()
        await run
        again = await waiting
        assert again.value == b"a"
        await again.ack()


async def test_a_connection_that_ends_before_the_request_loses_no_message(broker: Broker) -> None:
    broker.add(TOPIC, b"a")
    async with queue_on(broker, nack_backoff=5) as queue:
        for attempt in range(1, 8):
            delivery = await queue.receive()
            assert delivery.attempt == attempt
            await delivery.nack()
            await asyncio.sleep([4.999, 5.0, 5.001, 0, 2][attempt % 5])
            broker.cut()
        await (await queue.receive()).ack()


class Story:
    """Queues on one subscription whose handlers fail at random, while connections end."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.rng = random.Random(seed)
        self.count = 0
        self.index_acks = self.rng.random() < 0.7
        self.cuts = self.rng.random() < 0.6
        self.handling: Counter[bytes] = Counter()
        self.deliveries: Counter[bytes] = Counter()
        self.acked: Counter[bytes] = Counter()
        self.problems: list[str] = []
        self.is_smaller = False
        """Whether a queue has closed: what failed in its last seconds is not counted."""

    def write(self) -> None:
        count = self.rng.choice([1, 1, 1, 2, 5])
        values = [b"%d" % (self.count + index) for index in range(count)]
        self.count += count
        self.broker.add(TOPIC, *values, batch=self.rng.random() < 0.3)

    async def handle(self, delivery: Delivery) -> None:
        value, rng = delivery.value, self.rng
        assert value is not None
        self.handling[value] += 1
        self.deliveries[value] += 1
        # without index acks the whole batches of a queue that closes come again
        is_alone = not self.cuts and (self.index_acks or not self.is_smaller)
        if is_alone and (self.handling[value] > 1 or self.acked[value] > 0):
            self.problems.append(f"{delivery!r} while another consumer has it, or after its acknowledgement")
        is_exact = not self.cuts and self.index_acks and not self.is_smaller
        if delivery.attempt > self.deliveries[value] or (
            is_exact and delivery.attempt < self.deliveries[value]
        ):
            self.problems.append(f"{delivery!r} is number {self.deliveries[value]}")
        try:
            await asyncio.sleep(rng.choice([0, 0.1, 3]))
            if rng.random() < 0.4:
                await delivery.nack(delay=rng.choice([0, 0.5, 4]))
                return
        finally:
            self.handling[value] -= 1
        await delivery.ack()
        self.acked[value] += 1

    async def disturb(self) -> None:
        for _ in range(self.rng.randrange(10, 40)):
            await asyncio.sleep(self.rng.choice([0, 0.1, 1]))
            if self.cuts and self.rng.random() < 0.2:
                self.broker.cut()
            else:
                self.write()

    async def close(self, queues: list[WorkQueue]) -> None:
        for queue in queues:
            await asyncio.sleep(self.rng.choice([0.5, 2, 5, 9]))
            self.is_smaller = True
            await queue.aclose()

    @property
    def is_done(self) -> bool:
        return len(self.broker.subscription(TOPIC).acked) == len(self.broker.topics[TOPIC])


@pytest.mark.parametrize("seed", thinned(range(120), 12))
async def test_every_message_is_acknowledged_in_the_end(broker: Broker, seed: int) -> None:
    story = Story(broker, seed)
    rng = story.rng
    async with AsyncExitStack() as stack:
        tasks, queues = [], list[WorkQueue]()
        for _ in range(rng.randrange(1, 4)):
            queue = queue_on(
                broker,
                index_acks=story.index_acks,
                receiver_queue=rng.choice([0, 1, 3, 20]) if story.index_acks else 20,
                concurrency=rng.choice([1, 3, 10]),
            )
            await stack.enter_async_context(queue)
            tasks.append(asyncio.create_task(queue.run(story.handle)))
            queues.append(queue)
        closing = asyncio.create_task(story.close(queues[1:] if rng.random() < 0.4 else []))
        await story.disturb()
        await until(lambda: story.is_done)
        await closing
        assert story.problems == []
        assert story.acked.keys() == {b"%d" % number for number in range(story.count)}
        await asyncio.sleep(10)
        assert all(consumer.permits <= 20 for consumer in broker.subscription(TOPIC).consumers)
        await stack.aclose()
        await asyncio.gather(*tasks)
