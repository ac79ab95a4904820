"""Clients of the embedded Pulsar that send anything: their connections end, others are served, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import SubType
from asyncgroup.pulsar.wire.fields import FieldOfMessage, fields_of
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame, encode_send
from asyncgroup.pulsar.wire.message import ProtoMessage
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin.messages import entry_answer
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.virtual.loop import current_network
from tests.profiles import examples
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.net.hostile_stories import CONNECT as CONNECTING, STORIES, heard
from tests.pulsar_broker.wire_client import WireClient, outcome

pytestmark = [pytest.mark.virtual(max_virtual_time=36_000), pytest.mark.usefixtures("no_asyncio_errors")]

HOST, PORT = "10.0.0.1", 6650
SILENT = 65.0
"""Seconds until the connection of a silent client has ended."""
CONNECT = encode_frame(c.CommandConnect(client_version="hostile", protocol_version=21))
TOPIC = "persistent://public/default/t"


@asynccontextmanager
async def embedded(**options: Any) -> AsyncIterator[EmbeddedPulsar]:
    """Run a broker, and look at the end whether it serves others, and whether anything is left."""
    before = asyncio.all_tasks()
    async with EmbeddedPulsar(hosts=[HOST], port=PORT, **options) as pulsar:
        yield pulsar
        pulsar.slow_broker(1, 0)
        async with PulsarClient(pulsar.service_url) as client, client.producer("good") as producer:
            await asyncio.wait_for(producer.send(b"v"), 5)
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == before


async def answer_to(*data: bytes, seconds: float = SILENT) -> bytes:
    """Write to a broker, and return all that it sends until it ends the connection."""
    reader, writer = await asyncio.open_connection(HOST, PORT)
    for each in data:
        writer.write(each)
    try:
        async with asyncio.timeout(seconds):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


# --- bytes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x04\0\0\0\0",
        b"\0\0\0\x04\xff\xff\xff\xff",
        b"\0\0\0\x06\0\0\0\x02\x08\x02",
        CONNECT[:-1],
        CONNECT + b"\0\0\0\x08\0\0\0\x04\x08\x06\x32\x7f",
    ],
)
async def test_bytes_that_are_no_commands(data: bytes) -> None:
    async with embedded() as pulsar:
        await answer_to(data)
        assert pulsar.brokers[1].connections == 0


async def test_random_bytes() -> None:
    rng = random.Random(43)
    async with embedded() as pulsar:
        await asyncio.gather(
            *(
                answer_to(*([CONNECT] if rng.random() < 0.7 else []), damaged(rng))
                for _ in range(examples(300))
            )
        )
        assert pulsar.brokers[1].connections == 0


def damaged(rng: random.Random) -> bytes:
    """Return a frame with wrong bytes, or with others after it."""
    frame = bytearray(encode_frame(any_command(rng)))
    for _ in range(rng.randrange(4)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    if rng.random() < 0.3:
        del frame[rng.randrange(len(frame)) :]
    return bytes(frame)


async def test_half_open_connections_end_and_disturb_no_client() -> None:
    count = examples(1_000)
    async with embedded() as pulsar, PulsarClient(pulsar.service_url) as client:
        waiting = [asyncio.create_task(answer_to()) for _ in range(count)]
        await asyncio.sleep(1)
        assert pulsar.brokers[1].connections == count
        async with client.producer("t") as producer:
            await producer.send(b"v")
        await asyncio.gather(*waiting)
        assert pulsar.brokers[1].connections == 1


async def test_a_client_that_connects_while_others_are_pinged() -> None:
    """Its connection is open and CONNECT on its way: it is not a silent one."""
    async with embedded() as pulsar:
        current_network().latency = 0.2
        await asyncio.sleep(29.9 - asyncio.get_running_loop().time())
        async with PulsarClient(pulsar.service_url) as client:
            assert await client.topics() == []
        assert len(pulsar.history.of("Connect")) == 1


# --- commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORIES)
async def test_answers_are_those_of_apache_pulsar(name: str) -> None:
    """The same stories run on a real one: `tests/pulsar/real/test_hostile_parity.py`."""
    story = STORIES[name]
    async with embedded() as pulsar:
        written = [*([CONNECTING] if story.connects else []), *story.commands(TOPIC)]
        assert await heard(pulsar.service_url, written) == story.expected


@pytest.mark.parametrize("kind", c.COMMANDS.values(), ids=lambda kind: kind.__name__)
async def test_a_command_before_connect_ends_the_connection(kind: type[c.Command]) -> None:
    async with embedded() as pulsar:
        if kind not in (c.CommandConnect, c.CommandPong):  # the second one is no sign of life
            assert await answer_to(encode_frame(any_command(random.Random(1), kind)), seconds=1) == b""
            assert pulsar.brokers[1].connections == 0


EDGES: dict[str, list[Any]] = {
    "bool": [False, True],
    "int32": [0, 1, 2, 3, 9, -1, (1 << 31) - 1, -(1 << 31)],
    "int64": [0, 1, -1, (1 << 63) - 1, -(1 << 63)],
    "uint32": [0, 1, 2, (1 << 32) - 1],
    "uint64": [0, 1, 2, 5, (1 << 63), (1 << 64) - 1],
    "string": [
        "",
        TOPIC,
        "t",
        "x" * 300,
        "persistent://a",
        "persistent://public/default/t-partition-99999",
        "(((",
        "\x1b[31m\n",
        "é",
    ],
    "bytes": [b"", b"{}", b'{"type": "record", "fields": [{}]}', b"[" * 100_000, bytes(range(256))],
    "properties": [{}, {"a": "b"}, {"": ""}],
}
"""Values of fields, by their kinds."""


def any_value(rng: random.Random, field: FieldOfMessage, depth: int) -> Any:
    if field.kind == "message":
        assert field.message is not None
        found: Any = [
            any_message(rng, field.message, depth - 1)
            for _ in range(rng.randrange(3) if field.repeated else 1)
        ]
        return tuple(found) if field.repeated else found[0]
    if field.kind == "properties":
        return rng.choice(EDGES["properties"])
    if field.repeated:
        return tuple(rng.choice(EDGES[field.kind]) for _ in range(rng.randrange(3)))
    return rng.choice(EDGES[field.kind])


def any_message(rng: random.Random, cls: type[ProtoMessage], depth: int = 2) -> ProtoMessage:
    chosen = [
        field
        for field in fields_of(cls)
        if field.required or (rng.random() < 0.5 and not (field.kind == "message" and depth <= 0))
    ]
    return cls(**{field.name: any_value(rng, field, depth) for field in chosen})


def any_command(rng: random.Random, kind: type[c.Command] | None = None) -> c.Command:
    """Return a command whose fields have any values."""
    found = any_message(rng, kind or rng.choice(list(c.COMMANDS.values())))
    assert isinstance(found, c.Command)
    return found


def any_send(rng: random.Random) -> bytes:
    """Return a SEND with any metadata."""
    command = any_command(rng, c.CommandSend)
    assert isinstance(command, c.CommandSend)
    body = rng.choice([b"", b"v", bytes(300)])
    command.producer_id = 1
    return b"".join(encode_send(command, any_message(rng, MessageMetadata).encode(), body))


@pytest.mark.parametrize("delay", [0.0, 0.01])
async def test_commands_with_any_values(delay: float) -> None:
    """Each is answered, or ignored, or ends its connection, at a slow broker as at another one."""
    rng = random.Random(int(delay * 100))
    lookup = encode_frame(c.CommandLookupTopic(topic=TOPIC, request_id=1))
    opening = (
        CONNECT,
        lookup,
        encode_frame(c.CommandProducer(topic=TOPIC, producer_id=1, request_id=2)),
        *(
            encode_frame(
                c.CommandSubscribe(
                    topic=TOPIC, subscription=kind.name, sub_type=kind, consumer_id=kind, request_id=3 + kind
                )
            )
            for kind in SubType
        ),
        *(encode_frame(c.CommandFlow(consumer_id=kind, message_permits=1000)) for kind in SubType),
    )
    async with embedded() as pulsar:
        pulsar.slow_broker(1, delay)
        for _ in range(examples(30)):
            commands = [
                any_send(rng) if rng.random() < 0.3 else encode_frame(any_command(rng)) for _ in range(20)
            ]
            await answer_to(*opening, *commands)
            assert pulsar.brokers[1].connections == 0
        for topic in runtime_of(pulsar).namespaces.topics.values():  # what was stored can be shown
            topic.compact()
            pulsar.messages(str(topic.name))
            for name in topic.subscriptions:
                pulsar.subscription(str(topic.name), name)
            for entry in topic.log:
                entry_answer(entry)


@pytest.mark.parametrize("delay", [0.0, 0.01])
async def test_a_command_that_cannot_be_served_ends_its_connection(
    delay: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded() as pulsar:
        pulsar.slow_broker(1, delay)
        wrong = c.CommandSubscribe(topic=TOPIC, subscription="s", sub_type=9, consumer_id=1, request_id=2)
        began = asyncio.get_running_loop().time()
        await answer_to(
            CONNECT, encode_frame(c.CommandLookupTopic(topic=TOPIC, request_id=1)), encode_frame(wrong)
        )
        assert asyncio.get_running_loop().time() - began < 1
        assert [record.message for record in caplog.records if "cannot be served" in record.message]


async def test_a_function_of_a_fault_that_raises_ends_the_connection() -> None:
    """Its client waits for no answer, and the test gets the exception."""

    def fail(_: Any) -> None:
        raise KeyError("of the test")

    with pytest.raises(KeyError, match="of the test"):
        async with embedded() as pulsar:
            pulsar.faults.on("Subscribe").answer(fail)
            async with PulsarClient(pulsar.service_url) as client:
                began = asyncio.get_running_loop().time()
                async with client.subscribe("t", "s"):
                    assert asyncio.get_running_loop().time() - began < 5


CREDENTIALS: dict[str, dict[str, Any]] = {
    "none": {},
    "without data": {"auth_method_name": "token"},
    "an unknown method": {"auth_method_name": "\x00", "auth_data": b"first"},
    "bytes": {"auth_method_name": "token", "auth_data": bytes(range(256))},
    "a method of the other": {"auth_method_name": "basic", "auth_data": b"first"},
    "no password": {"auth_method_name": "basic", "auth_data": b"ann"},
    "a wrong password": {"auth_method_name": "basic", "auth_data": b"ann:x:y"},
    "large": {"auth_method_name": "token", "auth_data": b"x" * 10_000},
}


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_credentials_that_are_none(name: str) -> None:
    """One error, and the end of the connection; what follows CONNECT is not served."""
    async with EmbeddedPulsar(
        hosts=[HOST], port=PORT, tokens={"first": "a"}, users={"ann": "secret"}
    ) as pulsar:
        connect = c.CommandConnect(client_version="hostile", protocol_version=21, **CREDENTIALS[name])
        lookup = c.CommandLookupTopic(topic=TOPIC, request_id=1)
        response = c.CommandAuthResponse(response=c.AuthData(auth_method_name="token", auth_data=b"first"))
        for follows in (lookup, response):
            heard_before_end = await answer_to(encode_frame(connect), encode_frame(follows), seconds=1)
            command, _ = decode_frame(heard_before_end[4:])
            assert isinstance(command, c.CommandError)
            assert command.error == ServerError.AUTHENTICATION_ERROR
            assert len(heard_before_end) == int.from_bytes(heard_before_end[:4], "big") + 4
        assert pulsar.brokers[1].connections == 0


async def test_answers_to_no_challenge() -> None:
    """A client that was not asked for a credential may renew its own, but not become another one."""
    tokens = {"first": "a", "second": "b"}
    async with EmbeddedPulsar(hosts=[HOST], port=PORT, tokens=tokens) as pulsar:
        connect = encode_frame(
            c.CommandConnect(
                client_version="hostile", protocol_version=21, auth_method_name="token", auth_data=b"first"
            )
        )
        for data in (b"second", b"none", None):
            response = c.CommandAuthResponse(response=c.AuthData(auth_method_name="token", auth_data=data))
            await answer_to(connect, encode_frame(response), seconds=1)
            assert pulsar.brokers[1].connections == 0


# --- ids ------------------------------------------------------------------------------------------------------------------


async def test_a_second_producer_with_the_same_id_is_the_first_one() -> None:
    """As in `ServerCnx.handleProducer`: the answer names the first one, and with its connection all of them have left."""
    async with embedded() as pulsar:
        async with WireClient.of(pulsar.service_url) as wire:
            first = await wire.produce_to("t", "p")
            for topic in ("t", "u"):
                await wire.lookup(TopicName.parse(topic))
                again = await wire.request(
                    c.CommandProducer, topic=topic, producer_id=first.id, producer_name="other"
                )
                assert (outcome(again), again.producer_name) == ("ok", "p")
            assert await first.send(b"v") == 0
            waiting: dict[str, Any] = {"topic": "t", "producer_id": 77, "producer_access_mode": 2}
            assert not (await wire.request(c.CommandProducer, **waiting)).producer_ready
            refused = await wire.request(c.CommandProducer, **waiting)
            assert refused.error == ServerError.SERVICE_NOT_READY
        await asyncio.sleep(1)
        assert pulsar.topic("t").producers == ()
        async with PulsarClient(pulsar.service_url) as client, client.producer("t") as producer:
            await producer.send(b"v")


async def test_a_second_consumer_with_the_same_id_is_the_first_one() -> None:
    async with embedded() as pulsar:
        async with WireClient.of(pulsar.service_url) as wire:
            first = await wire.subscribe("t", "s", SubType.EXCLUSIVE, permits=10)
            again = await wire.request(
                c.CommandSubscribe,
                topic="t",
                subscription="other",
                sub_type=SubType.SHARED,
                consumer_id=first.id,
            )
            assert outcome(again) == "ok"
            pulsar.produce("t", b"v")
            assert await first.received(1) == ["0:v"]
            assert pulsar.topic("t").subscriptions == ("s",)
        await asyncio.sleep(1)
        assert pulsar.subscription("t", "s").consumers == ()


async def test_names_that_no_topic_has() -> None:
    async with embedded() as pulsar, WireClient.of(pulsar.service_url) as wire:
        for topic in ("", "persistent://a", "x://a/b/c"):
            subscribing = {"topic": topic, "subscription": "s", "sub_type": 0, "consumer_id": 1}
            for answer in (
                await wire.request(c.CommandLookupTopic, topic=topic),
                await wire.request(c.CommandSubscribe, **subscribing),
                await wire.request(c.CommandProducer, topic=topic, producer_id=1),
            ):
                assert outcome(answer) == "InvalidTopicName"


# --- clients that do not read, or do not wait -----------------------------------------------------------------------------


async def test_a_client_that_stops_reading_is_closed_and_disturbs_no_other() -> None:
    async with embedded(topics="t") as pulsar:
        pulsar.produce("t", *([bytes(10_000)] * 500))
        early = c.CommandSubscribe(
            topic=TOPIC,
            subscription="slow",
            sub_type=SubType.SHARED,
            consumer_id=1,
            request_id=2,
            initial_position=1,
        )
        _, writer = await asyncio.open_connection(HOST, PORT, limit=1)  # it reads no more than a few bytes
        for command in (
            c.CommandLookupTopic(topic=TOPIC, request_id=1),
            early,
            c.CommandFlow(consumer_id=1, message_permits=1000),
        ):
            writer.write(encode_frame(command))
        writer.transport.abort()
        _, writer = await asyncio.open_connection(HOST, PORT, limit=1)
        writer.write(CONNECT + encode_frame(c.CommandLookupTopic(topic=TOPIC, request_id=1)))
        writer.write(encode_frame(early) + encode_frame(c.CommandFlow(consumer_id=1, message_permits=1000)))
        await asyncio.sleep(1)
        assert pulsar.subscription("t", "slow").consumers[0].unacked == 500
        config = PulsarConsumerConfig(initial_position="earliest")
        async with (
            PulsarClient(pulsar.service_url) as client,
            client.subscribe("t", "slow", type="shared", config=config) as consumer,
        ):
            await asyncio.sleep(SILENT)
            async with asyncio.timeout(5):
                for _ in range(500):
                    consumer.ack(await consumer.receive())
        writer.transport.abort()


async def test_a_producer_that_does_not_wait_for_receipts() -> None:
    count = examples(5_000)
    sends = [
        b"".join(
            encode_send(
                c.CommandSend(producer_id=1, sequence_id=number),
                MessageMetadata(producer_name="p", sequence_id=number, publish_time=1).encode(),
                b"v",
            )
        )
        for number in range(count)
    ]
    async with embedded(topics="t") as pulsar:
        lookup = encode_frame(c.CommandLookupTopic(topic=TOPIC, request_id=1))
        register = encode_frame(c.CommandProducer(topic=TOPIC, producer_id=1, request_id=2))
        await answer_to(CONNECT, lookup, register, *sends)
        assert pulsar.topic("t").messages == count
        assert runtime_of(pulsar).topic("t").producers.everyone == []


async def test_a_batch_of_more_messages_than_there_can_be() -> None:
    async with embedded() as pulsar, WireClient.of(pulsar.service_url) as wire:
        producer = await wire.produce_to("t", "p")
        consumer = await wire.subscribe("t", "s", SubType.SHARED)
        for count in ((1 << 31) - 1, 1 << 21, -1):
            metadata = MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count
            )
            command = c.CommandSend(producer_id=producer.id, sequence_id=abs(count))
            wire._writer.write(b"".join(encode_send(command, metadata.encode(), b"x")))
            refused = await wire.wait(("send", producer.id, abs(count)))
            assert refused.error == ServerError.NOT_ALLOWED_ERROR
        assert await producer.send(b"v") == 0
        assert await consumer.received(1) == ["0:v"]


async def test_no_broker_runs() -> None:
    """A request that arrives while the last broker stops has an error, or its connection ends."""
    async with embedded() as pulsar:
        async with PulsarClient(pulsar.service_url) as client, client.producer("t") as producer:
            sending = [asyncio.create_task(producer.send(b"v")) for _ in range(50)]
            looking = [asyncio.create_task(client.partitions("t")) for _ in range(50)]
            await pulsar.stop_broker(1)
            await asyncio.sleep(1)
            await pulsar.start_broker(1)
            await asyncio.gather(*sending)
            for each in await asyncio.gather(*looking, return_exceptions=True):
                assert each == 0 or isinstance(each, AsyncGroupError)
