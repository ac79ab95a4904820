"""Nine wrong inputs on a real Pulsar: each is one clear error, of the client, of a work queue and of a command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import WorkQueue
from asyncgroup.pulsar.authentication import TokenAuthentication
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.workqueue import PulsarSource
from tests.cli.programs import run
from tests.pulsar.real.secured import Secured

pytestmark = [pytest.mark.real, pytest.mark.full]

Texts = dict[str, str]
"""What each face says: `producer`, `consumer`, `queue` the class and text of the error, a command its exit code and errors."""


class Faces:
    """The client, a work queue and commands, with one URL and one token."""

    def __init__(self, secured: Secured, url: str | None = None, token: str | None = None) -> None:
        self.pulsar = secured.pulsar
        self.url = url or self.pulsar.service_url
        self.token = token or self.pulsar.token("admin")
        self.config = PulsarConfig(authentication=TokenAuthentication(self.token), operation_timeout=5.0)
        self.name = f"t-{uuid4().hex[:8]}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[PulsarClient]:
        async with PulsarClient(self.url, self.config) as client:
            yield client

    async def produce(self, topic: str, value: bytes = b"x", **config: Any) -> MessageId:
        async with (
            self.client() as client,
            client.producer(topic, PulsarProducerConfig(**config)) as producer,
        ):
            return await producer.send(value)

    async def consume(self, topic: str, subscription: str = "s", **options: Any) -> None:
        async with self.client() as client, client.subscribe(topic, subscription, **options):
            pass

    def queue(self, topic: str, subscription: str = "s", **settings: Any) -> WorkQueue:
        return WorkQueue(PulsarSource(self.url, subscription, topic, config=self.config), **settings)

    async def open_queue(self, topic: str, subscription: str = "s", **settings: Any) -> None:
        async with self.queue(topic, subscription, **settings):
            pass

    async def command(self, *words: str, stdin: str = "") -> str:
        options = ("-b", self.url, "-X", "authPlugin=token", "-X", f"authParams=token:{self.token}")
        ended = await asyncio.to_thread(run, *words, *options, "-X", "operationTimeoutMs=5000", stdin=stdin)
        return f"{ended.returncode}: {ended.stderr}"

    async def every(self, topic: str, *words: str) -> Texts:
        """Return what each face says of a topic; `words` are the command."""
        return {
            "producer": await error_of(self.produce(topic)),
            "consumer": await error_of(self.consume(topic)),
            "queue": await error_of(self.open_queue(topic)),
            words[0]: await self.command(*words),
        }


async def error_of(work: Awaitable[object]) -> str:
    try:
        return f"no error: {await work!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- the inputs -------------------------------------------------------------------------------------------------------


async def wrong_service_url(secured: Secured) -> Texts:
    faces = Faces(secured, secured.pulsar.admin_url.replace("http", "pulsar"))
    texts = await faces.every("orders", "produce", "-t", "orders")
    faces.url = "http://127.0.0.1:8080"
    return {**texts, "scheme": await error_of(faces.produce("orders"))}


async def plain_to_tls(secured: Secured) -> Texts:
    faces = Faces(secured, secured.pulsar.service_url_tls.replace("+ssl", ""))
    return await faces.every("orders", "consume", "-t", "orders")


async def expired_token(secured: Secured) -> Texts:
    return await Faces(secured, token=secured.pulsar.token("admin", -60.0)).every(
        "orders", "dlq", "list", "orders"
    )


async def missing_namespace(secured: Secured) -> Texts:
    return await Faces(secured).every("public/none/orders", "consume", "-t", "public/none/orders")


async def terminated_topic(secured: Secured) -> Texts:
    """Reading it is no error."""
    faces = Faces(secured)
    admin = secured.pulsar.admin
    await admin.create_topic("ended")
    async with faces.client() as client, client.producer("ended") as producer:
        await producer.send(b"last")
        await admin.terminate("ended")
        later = await error_of(producer.send(b"x"))
    return {"open producer": later, **await faces.every("ended", "produce", "-t", "ended")}


async def incompatible_subscription_type(secured: Secured) -> Texts:
    faces = Faces(secured)
    async with faces.client() as client, client.subscribe("kinds", "s", type="shared"):
        return {
            "consumer": await error_of(faces.consume("kinds", type="failover")),
            "queue": await error_of(faces.open_queue("kinds", mode="key_shared")),
            "consume": await faces.command("consume", "-t", "kinds", "--group", "s"),
        }


async def too_large_message(secured: Secured) -> Texts:
    faces, value = Faces(secured), b"x" * (6 << 20)
    return {
        "producer": await error_of(faces.produce("large", value)),
        "alone": await error_of(faces.produce("large", value, batching=False)),
        "produce": re.sub(
            r" in .*\n", "…\n", await faces.command("produce", "-t", "large", stdin=value.decode()), count=1
        ),
    }


async def fenced_producer(secured: Secured) -> Texts:
    faces = Faces(secured)
    named = PulsarProducerConfig(producer_name="first", access_mode="exclusive")
    fencing = PulsarProducerConfig(producer_name="second", access_mode="exclusive_with_fencing")
    # a connection for each: Pulsar closes that of a producer that sends before it knows that it is fenced (`ServerCnx.handleSend`)
    async with faces.client() as client, faces.client() as other, client.producer("fenced", named) as first:
        async with other.producer("fenced", fencing):
            return {
                # it depends on the time of its reconnect which of two texts it gets
                "producer": re.sub(r"\(25\): Topic .*", "(25): …", await error_of(first.send(b"x"))),
                "exclusive": await error_of(faces.produce("fenced", access_mode="exclusive")),
                "shared": await error_of(faces.produce("fenced")),
                "produce": await faces.command("produce", "-t", "fenced", stdin="x\n"),
            }


async def foreign_message_id(secured: Secured) -> Texts:
    """Of another topic, with or without partitions."""
    faces, foreign = Faces(secured), MessageId(7_000_000, 3)
    await faces.produce("single")
    async with faces.client() as client, client.subscribe("orders", "f") as consumer:
        texts = {
            "consumer": await error_of(consumer.seek(foreign)),
            "partition": await error_of(consumer.seek(foreign._replace(partition=1))),
        }
        with pytest.raises(ValueError, match="one of a partition"):
            consumer.ack(foreign)
    async with faces.queue("single", "f") as queue, faces.queue("orders", "f") as several:
        texts["queue"] = await error_of(queue.seek(foreign))
        texts["queue of partitions"] = await error_of(sought(several, foreign))
    texts["dlq"] = await faces.command("dlq", "show", "single", str(foreign))
    return texts


async def sought(queue: WorkQueue, target: MessageId) -> None:
    await queue.seek(target)


INPUTS: dict[str, Callable[[Secured], Awaitable[Texts]]] = {
    "wrong service URL": wrong_service_url,
    "plain to TLS": plain_to_tls,
    "expired token": expired_token,
    "missing namespace": missing_namespace,
    "terminated topic": terminated_topic,
    "incompatible subscription type": incompatible_subscription_type,
    "too large message": too_large_message,
    "fenced producer": fenced_producer,
    "foreign message id": foreign_message_id,
}

HTTP = "BROKER: this is an HTTP server, not a Pulsar broker (received a frame size of 1213486160 bytes; 0 to 5253120 are allowed)"
TLS = "BROKER: the broker closed the connection (is it a TLS port? Then use pulsar+ssl://, by default with port 6651)"
EXPIRED = "BROKER: CONNECT: AuthenticationError (3): Failed to authenticate (by this machine's clock the token has expired at TIME UTC)"
NO_TOPIC = "partitions of persistent://public/none/orders: TopicNotFound (11)"
ENDED = (
    "producer of persistent://public/default/ended: TopicTerminatedError (15): Topic was already terminated"
)
KIND = "Subscription is of different type. Active subscription type of 'Shared' is different than the connecting consumer's type"
KINDS = "consumer 0 of persistent://public/default/kinds in s: SUBSCRIBE: ConsumerBusy (5)"
LARGE = (
    "size=6291486 is not allowed: at most 5242880 bytes with metadata, the broker's limit; or chunking=True"
)
FENCED = "producer of persistent://public/default/fenced"
HELD = "Topic has an existing exclusive producer: second"

EXPECTED: dict[str, Texts] = {
    "wrong service URL": {
        "producer": f"ConnectError: {HTTP}",
        "consumer": f"ConnectError: {HTTP}",
        "queue": f"ConnectError: {HTTP}",
        "produce": f"1: asyncgroup produce: {HTTP}\n",
        "scheme": "ConfigError: service_url='http://BROKER' is not allowed: pulsar://host[:port][,host…] or "
        "pulsar+ssl://host[:port][,host…]; the ports are 6650 and 6651 by default",
    },
    "plain to TLS": {
        "producer": f"ConnectError: {TLS}",
        "consumer": f"ConnectError: {TLS}",
        "queue": f"ConnectError: {TLS}",
        "consume": f"1: asyncgroup consume: {TLS}\n",
    },
    "expired token": {
        "producer": f"AuthenticationError: {EXPIRED}",
        "consumer": f"AuthenticationError: {EXPIRED}",
        "queue": f"AuthenticationError: {EXPIRED}",
        "dlq": f"1: asyncgroup dlq: {EXPIRED}\n",
    },
    "missing namespace": {
        "producer": f"PulsarServerError: {NO_TOPIC}: Namespace not found",
        "consumer": f"PulsarServerError: {NO_TOPIC}: Namespace not found",
        "queue": f"PulsarServerError: {NO_TOPIC}: Namespace not found",
        "consume": f"1: asyncgroup consume: {NO_TOPIC}: the topic or its namespace does not exist\n",
    },
    "terminated topic": {
        "open producer": f"PulsarServerError: {ENDED}",
        "producer": f"PulsarServerError: {ENDED}",
        "consumer": "no error: None",
        "queue": "no error: None",
        "produce": f"1: asyncgroup produce: {ENDED}\n",
    },
    "incompatible subscription type": {
        "consumer": f"PulsarServerError: {KINDS}: {KIND} 'Failover'.",
        "queue": f"ConsumerBusy: another consumer holds the group 's': {KIND} 'Key_Shared'.",
        "consume": f"1: asyncgroup consume: {KINDS}: {KIND} 'Failover'.\n",
    },
    "too large message": {
        "producer": f"InvalidRecordError: {LARGE}",
        "alone": f"InvalidRecordError: {LARGE}",
        "produce": f"1: 0 records (0 B)…\nasyncgroup produce: {LARGE}\n",
    },
    "fenced producer": {
        "producer": f"PulsarServerError: {FENCED}: ProducerFenced (25): …",
        "exclusive": f"PulsarServerError: {FENCED}: ProducerFenced (25): {HELD}",
        "shared": f"PulsarServerError: {FENCED}: ProducerBusy (16): {HELD}",
        "produce": f"1: asyncgroup produce: {FENCED}: ProducerBusy (16): {HELD}\n",
    },
    "foreign message id": {
        "consumer": "ConfigError: message='7000000:3:-1' is not allowed: one of a partition of persistent://public/default/orders",
        "partition": "ConfigError: target='7000000:3:1' is not allowed: "
        "a message of persistent://public/default/orders-partition-1; it is empty",
        "queue": "ConfigError: target='7000000:3:-1' is not allowed: a message of persistent://public/default/single; "
        "the last one is LAST",
        "queue of partitions": "ConfigError: position='7000000:3:-1' is not allowed: 'earliest', 'latest' or a time: "
        "a message id is of one partition",
        "dlq": "1: asyncgroup dlq: single@7000000:3:-1: no message has this id, and none follows\n",
    },
}


@pytest.mark.parametrize("name", INPUTS)
async def test_bad_input(secured: Secured, name: str) -> None:
    found = await INPUTS[name](secured)
    assert {face: with_placeholders(text) for face, text in found.items()} == EXPECTED[name]


def with_placeholders(text: str) -> str:
    """Return the text without ports, times and ledgers."""
    text = re.sub(r"127\.0\.0\.1:\d+", "BROKER", text)
    text = re.sub(r"the last one is \d+:0:-1", "the last one is LAST", text)
    return re.sub(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
