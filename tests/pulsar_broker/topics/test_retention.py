"""What topics keep after it was acknowledged: everything, or by a policy, one ledger after the other."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.wire.message_id import EARLIEST, MessageId
from asyncgroup.pulsar_broker import EmbeddedPulsar
from asyncgroup.pulsar_broker.topics import retention
from asyncgroup.pulsar_broker.topics.policies import RetentionPolicies
from tests.pulsar_broker import support
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.topics.retention_stories import KEPT, read_all, values_kept

pytestmark = pytest.mark.virtual(max_virtual_time=20_000)

embedded = partial(support.embedded, topics="t", policy_interval=10.0)

SINGLE = PulsarProducerConfig(batching=False)
EARLY = PulsarConsumerConfig(initial_position="earliest")


async def send(client: PulsarClient, *values: bytes) -> list[MessageId]:
    async with client.producer("t", SINGLE) as producer:
        return [await producer.send(value) for value in values]


async def ack(client: PulsarClient, count: int) -> None:
    async with client.subscribe("t", "s", config=EARLY) as consumer:
        for _ in range(count):
            consumer.ack(await consumer.receive())
        await consumer.flush()


def kept(pulsar: EmbeddedPulsar) -> list[bytes | None]:
    return [message.value for message in pulsar.messages("t")]


async def test_without_a_policy_everything_is_kept() -> None:
    async with embedded() as (pulsar, client):
        await send(client, b"1", b"2")
        await ack(client, 2)
        pulsar.unload("t")
        await asyncio.sleep(1_000)
        assert kept(pulsar) == await read_all(client, "t") == [b"1", b"2"]


@pytest.mark.parametrize("acked", KEPT)
async def test_what_pulsar_keeps_by_default(acked: int | None) -> None:
    async with embedded(retention_time=0.0, retention_size=0) as (pulsar, client):

        async def unload(topic: str) -> None:
            pulsar.unload(topic)

        assert await values_kept(client, "t", acked, unload, 20.0) == KEPT[acked]


async def test_a_ledger_is_forgotten_when_its_time_has_passed() -> None:
    async with embedded(retention_time=600.0) as (pulsar, client):
        await send(client, b"1", b"2")
        await ack(client, 2)
        await asyncio.sleep(5_000)
        assert kept(pulsar) == [b"1", b"2"], "it is the ledger that is written to"
        pulsar.unload("t")
        await send(client, b"3")
        await asyncio.sleep(580)
        assert kept(pulsar) == await read_all(client, "t") == [b"1", b"2", b"3"], (
            "its time counts from its end"
        )
        await asyncio.sleep(40)
        assert kept(pulsar) == await read_all(client, "t") == [b"3"]
        await ack(client, 1)
        view = pulsar.subscription("t", "s")
        assert (view.backlog, view.acknowledged, pulsar.topic("t").messages) == (0, 1, 3)


async def test_what_a_subscription_has_not_acknowledged_is_kept() -> None:
    async with embedded(retention_time=0.0) as (pulsar, client):
        await send(client, b"1", b"2")
        await ack(client, 1)
        pulsar.unload("t")
        await send(client, b"3")
        await asyncio.sleep(100)
        assert kept(pulsar) == [b"1", b"2", b"3"], "a part of a ledger is not forgotten"
        await ack(client, 1)
        await asyncio.sleep(20)
        assert kept(pulsar) == [b"3"]
        async with client.subscribe("t", "s") as consumer:
            await consumer.seek(EARLIEST)
            assert (await consumer.receive()).value == b"3"


async def test_a_topic_without_subscriptions_forgets_all_ledgers_but_the_last() -> None:
    async with embedded(retention_time=0.0, retention_size=0) as (pulsar, client):
        ids = await send(client, b"1", b"2")
        pulsar.unload("t")
        assert await read_all(client, "t") == [b"1", b"2"]
        await asyncio.sleep(20)
        assert kept(pulsar) == await read_all(client, "t") == []
        assert pulsar.topic("t").last_message_ids[0].entry_id == -1
        [following] = await send(client, b"3")
        assert following.ledger_id > ids[0].ledger_id
        assert await read_all(client, "t") == [b"3"]


async def test_the_oldest_ledgers_are_forgotten_until_the_rest_has_the_size() -> None:
    async with embedded(retention_size=3_000) as (pulsar, client):
        for number in range(5):
            await send(client, b"%d" % number + bytes(999))
            pulsar.unload("t")
        await send(client, b"5")
        await asyncio.sleep(20)
        # as many as leave no less than 3,000 bytes (`isLedgerRetentionOverSizeQuota`)
        assert [value[:1] for value in kept(pulsar) if value] == [b"2", b"3", b"4", b"5"]


async def test_the_time_of_a_ledger_goes_on_when_its_topic_is_loaded_again() -> None:
    async with embedded(retention_time=600.0) as (pulsar, client):
        await send(client, b"1")
        for _ in range(8):
            pulsar.unload("t")
            await read_all(client, "t")
            await asyncio.sleep(100)
        assert kept(pulsar) == []


@pytest.mark.parametrize(("seconds", "ledgers"), [(14_300, 1), (14_500, 2)])
async def test_a_ledger_ends_after_four_hours(seconds: int, ledgers: int) -> None:
    async with embedded(retention_time=1e6) as (_, client):
        first, *_ = await send(client, b"1")
        await asyncio.sleep(seconds)
        [last] = await send(client, b"2")
        assert (last.ledger_id != first.ledger_id) is (ledgers == 2)


@pytest.mark.parametrize(("seconds", "ends"), [(590, False), (700, True)])
async def test_a_long_ledger_ends_after_ten_minutes(
    seconds: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_ENTRIES", 3)
    async with embedded(retention_time=1e6) as (_, client):
        first, *_ = await send(client, b"1", b"2", b"3")
        await asyncio.sleep(seconds)
        [last] = await send(client, b"4")
        assert (last.ledger_id != first.ledger_id) is ends


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_a_subscription_that_is_not_durable_keeps_nothing_and_goes_on(kind: Any) -> None:
    config = PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=2, durable=False)
    async with embedded(retention_time=0.0) as (pulsar, client):
        await send(client, *(b"%d" % number for number in range(6)))
        async with client.subscribe("t", "r", type=kind, config=config) as consumer:
            assert (await consumer.receive()).value == b"0"
            pulsar.unload("t")
            await send(client, b"6", b"7")
            await asyncio.sleep(20)
            assert kept(pulsar) == [b"6", b"7"]
            found: list[bytes | None] = []
            while b"7" not in found:
                message = await consumer.receive()
                found.append(message.value)
                consumer.ack(message)
            await consumer.flush()
            assert found[-2:] == [b"6", b"7"]
            assert pulsar.subscription("t", "r").unacked == 0


async def test_the_policy_of_a_topic_comes_before_that_of_its_namespace_and_the_option() -> None:
    async with embedded(retention_time=0.0) as (pulsar, client):
        runtime = runtime_of(pulsar)
        own = runtime.topic("t").policies.own
        own.retention = RetentionPolicies(None, None)
        runtime.namespaces.policies_changed()
        await send(client, b"1")
        pulsar.unload("t")
        await send(client, b"2")
        await asyncio.sleep(50)
        assert kept(pulsar) == [b"1", b"2"]
        own.retention = None
        runtime.namespaces.policies["public/default"].retention = RetentionPolicies(100.0, None)
        await asyncio.sleep(30)
        assert kept(pulsar) == [b"1", b"2"]
        await asyncio.sleep(50)
        assert kept(pulsar) == [b"2"]


async def test_a_compacted_topic_keeps_everything() -> None:
    async with embedded(retention_time=0.0) as (pulsar, client):
        async with client.producer("t", SINGLE) as producer:
            await producer.send(b"1", key="k")
        runtime_of(pulsar).topic("t").compact()
        pulsar.unload("t")
        await asyncio.sleep(50)
        assert kept(pulsar) == [b"1"]


@pytest.mark.parametrize(
    "options",
    [{"retention_time": -1.0}, {"retention_size": -1}, {"retention_size": 1.5}, {"retention_time": "1"}],
)
async def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        EmbeddedPulsar(**options)
