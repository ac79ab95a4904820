"""Helpers of the tests of the Pulsar client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from asyncgroup.pulsar.client import ClientCore
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.connecting import connect
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.service_url import BrokerAddress, ServiceUrl
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.topic_name import TopicName
from tests.pulsar.scripted import PORT, ScriptedPulsar

HOST = "10.0.0.1"
TOPIC = TopicName.parse("orders")


def now() -> float:
    """Return loop time."""
    return asyncio.get_running_loop().time()


class RecordingListener:
    """Records what a connection calls of a producer, consumer or watcher."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *values: self.calls.append((name, *values))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Return the calls of one method."""
        return [call for call in self.calls if call[0] == name]


@asynccontextmanager
async def core_of(pulsar: ScriptedPulsar, url: str | None = None, **config: Any) -> AsyncIterator[ClientCore]:
    """Return the inner part of a client, closed at the end."""
    core = ClientCore(ServiceUrl.parse(url or pulsar.url), PulsarConfig(**config), None)
    try:
        yield core
    finally:
        await core.aclose()


@asynccontextmanager
async def connected(
    host: str = HOST, *, logical: BrokerAddress | None = None, **config: Any
) -> AsyncIterator[PulsarConnection]:
    """Return a connection to a broker, closed at the end."""
    address = BrokerAddress(host, PORT)
    connection = await connect(logical or address, address, PulsarConfig(**config), None, count())
    try:
        yield connection
    finally:
        await connection.aclose()


def subscribe(number: int) -> c.CommandSubscribe:
    """Return a SUBSCRIBE of consumer 5 with this request id."""
    return c.CommandSubscribe(
        topic=str(TOPIC), subscription="s", sub_type=1, consumer_id=5, request_id=number
    )


def producer(number: int) -> c.CommandProducer:
    """Return a PRODUCER of producer 1 with this request id."""
    return c.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=number)


def last_id(number: int) -> c.CommandGetLastMessageId:
    """Return a GET_LAST_MESSAGE_ID of consumer 5 with this request id."""
    return c.CommandGetLastMessageId(consumer_id=5, request_id=number)
