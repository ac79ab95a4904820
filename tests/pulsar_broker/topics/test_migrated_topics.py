"""Topics that move to another cluster: TOPIC_MIGRATED of PIP-188."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar import PulsarClient, PulsarConsumerConfig, PulsarProducer
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.workqueue import PulsarSource, WorkQueue
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

EARLIEST = PulsarConsumerConfig(initial_position="earliest")


@asynccontextmanager
async def two_clusters(partitions: int = 0) -> AsyncIterator[tuple[EmbeddedPulsar, EmbeddedPulsar]]:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as blue,
        EmbeddedPulsar(hosts=["10.0.0.2"], port=6650) as green,
    ):
        for pulsar in (blue, green):
            pulsar.create_topic("t", partitions)
        yield blue, green


@pytest.mark.parametrize("partitions", [0, 2])
async def test_producers_and_consumers_go_on_in_the_other_cluster(partitions: int) -> None:
    async with (
        two_clusters(partitions) as (blue, green),
        PulsarClient(blue.service_url) as client,
        PulsarProducer(client, "t", clock=clock_of_loop()) as producer,
        client.subscribe("t", "s", type="shared", config=EARLIEST) as consumer,
    ):
        await asyncio.gather(*(producer.send(b"%d" % number, key=f"{number}") for number in range(10)))
        blue.migrate("t", green.service_url)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(10, 20)))
        assert not runtime_of(green).topic("t" if not partitions else "t-partition-0").subscriptions, (
            "it has a backlog"
        )
        found = []
        async with asyncio.timeout(10):
            while len(found) < 20:
                message = await consumer.receive()
                found.append(int(message.value or b""))
                consumer.ack(message)
        assert sorted(found) == list(range(20))
        await asyncio.sleep(1)
        assert not consumer.errors()


async def test_those_that_come_later_are_sent_there() -> None:
    async with two_clusters() as (blue, green), PulsarClient(blue.service_url) as client:
        blue.migrate("t", green.service_url)
        async with (
            PulsarProducer(client, "t", clock=clock_of_loop()) as producer,
            client.subscribe("t", "s") as consumer,
        ):
            await producer.send(b"1")
            assert (await consumer.receive()).value == b"1"
            await producer.send(b"2")
        assert len(runtime_of(green).topic("t").log) == 2
        assert len(runtime_of(blue).topic("t").log) == 0


async def moved(blue: EmbeddedPulsar, green: EmbeddedPulsar, client: PulsarClient) -> None:
    """The topic moves to the other cluster, and gets a third partition there."""
    blue.migrate("t", green.service_url)
    await asyncio.sleep(1)
    green.update_partitions("t", 3)
    assert await client.partitions("t") == 3


@pytest.mark.parametrize("is_gone", [False, True])
async def test_partitions_that_are_added_in_the_other_cluster(is_gone: bool) -> None:
    async with (
        two_clusters(2) as (blue, green),
        PulsarClient(blue.service_url) as client,
        PulsarProducer(client, "t", clock=clock_of_loop()) as producer,
        client.subscribe("t", "s", config=EARLIEST) as consumer,
    ):
        await moved(blue, green, client)
        green.produce("t", b"0", partition=2)
        if is_gone:
            await blue.stop_broker(1)
        async with asyncio.timeout(120):
            message = await consumer.receive()
        assert (message.value, message.partition) == (b"0", 2)
        consumer.ack(message)
        for number in range(1, 7):
            await producer.send(b"%d" % number, key=f"{number}")
        assert {message.partition for message in green.messages("t")} == {0, 1, 2}
        found = [int((await consumer.receive()).value or b"") for _ in range(6)]
        assert sorted(found) == list(range(1, 7))
        assert not consumer.errors()


async def test_partitions_that_were_added_in_the_old_cluster_before() -> None:
    async with (
        two_clusters(2) as (blue, green),
        PulsarClient(blue.service_url) as client,
        client.subscribe("t", "s", config=EARLIEST) as consumer,
    ):
        blue.update_partitions("t", 3)
        blue.produce("t", b"old", partition=2)
        await moved(blue, green, client)
        green.produce("t", b"new", partition=2)
        found = [await consumer.receive()]
        consumer.ack(found[0])
        found.append(await consumer.receive())
        assert [message.value for message in found] == [b"old", b"new"]


async def test_a_queue_finds_partitions_in_the_other_cluster() -> None:
    async with (
        two_clusters(2) as (blue, green),
        PulsarClient(blue.service_url) as client,
        WorkQueue(PulsarSource(client, "s", "t"), initial_position="earliest") as queue,
    ):
        await moved(blue, green, client)
        green.produce("t", b"0", partition=2)
        async with asyncio.timeout(120):
            delivery = await queue.receive()
        assert delivery.value == b"0"
        await delivery.ack()


async def test_a_cluster_that_cannot_be_found_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with two_clusters() as (blue, _), PulsarClient(blue.service_url) as client:
        async with client.subscribe("t", "s"):
            blue.migrate("t", "kafka://10.0.0.3")
            await asyncio.sleep(1)
        assert "its topic has moved to a cluster that cannot be found" in caplog.text
