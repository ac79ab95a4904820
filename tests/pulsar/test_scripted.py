"""The scripted brokers: default answers, scripts, topics that move."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.service_url import BrokerAddress
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.entry import decode_entry
from asyncgroup.pulsar.wire.frames import encode_send
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from tests.pulsar.scripted import PORT, ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.pulsar.support import HOST, TOPIC, RecordingListener, core_of, last_id, producer, subscribe


async def test_a_client_finds_partitions_and_topics(pulsar: ScriptedPulsar) -> None:
    pulsar.set_partitions("orders", 3)
    pulsar.topics = [str(TOPIC)]
    async with PulsarClient(pulsar.url) as client:
        assert await client.partitions("orders") == 3
        assert await client.topics() == [str(TOPIC)]
    await asyncio.sleep(0.1)
    assert pulsar.connections == []


async def test_sends_are_stored_and_acknowledged(pulsar: ScriptedPulsar) -> None:
    listener = RecordingListener()
    async with core_of(pulsar) as core:
        broker = await core.lookup.broker_of(TOPIC)
        connection = await core.pool.get(*broker)
        connection.registered.add_producer(1, listener)
        await connection.request(
            "PRODUCER",
            producer,
            timeout=5,
        )
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        connection.send(
            *encode_send(c.CommandSend(producer_id=1, sequence_id=0), metadata.encode(), b"value")
        )
        await asyncio.sleep(0.1)
    (call,) = listener.calls[:1]
    assert call[0] == "on_receipt"
    assert call[1].message_id.entry_id == 0
    (stored,) = pulsar.stored[str(TOPIC)]
    assert (stored.body, stored.metadata.producer_name) == (b"value", "p")


async def test_a_topic_that_was_not_looked_up_is_refused(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        connection = await core.pool.get(BrokerAddress(HOST, PORT))
        with pytest.raises(PulsarServerError, match="ServiceNotReady"):
            await connection.request("SUBSCRIBE", subscribe, timeout=5)


async def test_entries_are_pushed_and_permits_counted(pulsar: ScriptedPulsar) -> None:
    listener = RecordingListener()
    async with core_of(pulsar) as core:
        connection = await core.pool.get(*await core.lookup.broker_of(TOPIC))
        connection.registered.add_consumer(5, listener)
        await connection.request("SUBSCRIBE", subscribe, timeout=5)
        connection.send_command(c.CommandFlow(consumer_id=5, message_permits=10))
        await asyncio.sleep(0.1)
        end = pulsar.connection_of(consumer=5)
        assert end.permits[5] == 10
        end.push_entry(5, b"one", entry_id=4, partition_key="k")
        end.push_entry(5, b"a", b"b", entry_id=5)
        await asyncio.sleep(0.1)
        assert end.permits[5] == 7
        entries = [decode_entry(command, frame, at, 0, 1000) for _, _, command, frame, at in listener.calls]
        values = [[message.value for message in entry.messages()] for entry in entries]
        assert values == [[b"one"], [b"a", b"b"]]


async def test_a_moved_topic_closes_what_is_attached(two_brokers: ScriptedPulsar) -> None:
    listener = RecordingListener()
    async with core_of(two_brokers) as core:
        connection = await core.pool.get(*await core.lookup.broker_of(TOPIC))
        connection.registered.add_consumer(5, listener)
        await connection.request("SUBSCRIBE", subscribe, timeout=5)
        two_brokers.move("orders", "10.0.0.2", assigned=True)
        await asyncio.sleep(0.1)
        assert listener.calls == [("on_broker_close", connection, "pulsar://10.0.0.2:6650")]
        assert (await core.lookup.broker_of(TOPIC)).logical.host == "10.0.0.2"


async def test_scripts_answer_instead(pulsar: ScriptedPulsar) -> None:
    loop = asyncio.get_running_loop()
    pulsar.first.script[c.CommandSubscribe] = in_turn(
        no_answer, refuse(5, "busy"), late(3.0, lambda call: call.succeed())
    )
    async with core_of(pulsar) as core:
        connection = await core.pool.get(BrokerAddress(HOST, PORT))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.request("SUBSCRIBE", subscribe, timeout=None), 1)
        with pytest.raises(PulsarServerError, match="busy"):
            await connection.request("SUBSCRIBE", subscribe, timeout=1)
        started = loop.time()
        await connection.request("SUBSCRIBE", subscribe, timeout=5)
        assert loop.time() - started == pytest.approx(3.0)


async def test_a_frozen_broker_answers_when_it_thaws(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        connection = await core.pool.get(BrokerAddress(HOST, PORT))
        pulsar.first.freeze()
        asking = asyncio.create_task(connection.request("GET_LAST", last_id, timeout=10))
        await asyncio.sleep(5)
        assert not asking.done()
        pulsar.first.thaw()
        answer = await asking
        assert answer.last_message_id.entry_id == c.NO_REQUEST
