"""A client that is reconnected by random events: brokers that are cut, frozen, stopped, slow, and topics that move.

In the end the consumer is registered once, at the broker of its topic, and nothing else is.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncgroup.errors import ConnectionLost, RequestTimedOut
from asyncgroup.pulsar.client import ClientCore
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.reconnector import ReconnectState
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.testing import Network
from tests.pulsar.scripted import (
    Call,
    ScriptedPulsar,
    ScriptedPulsarBroker,
    in_turn,
    late,
    no_answer,
    refuse,
)
from tests.pulsar.support import TOPIC, RecordingListener, core_of, subscribe

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


class SubscribedConsumer(RecordingListener):
    """Keeps consumer 5 subscribed, as a consumer does."""

    def __init__(self, core: ClientCore) -> None:
        super().__init__()
        self.is_registered = False
        self.attempts = 0
        self.errors: list[Exception] = []
        self.reconnector = core.new_reconnector("consumer 5", TOPIC, self, self.errors.append)
        self.reconnector.start()

    async def attach(self, connection: PulsarConnection, epoch: int) -> None:
        assert not self.is_registered
        self.attempts += 1
        connection.registered.add_consumer(5, self)
        try:
            await connection.request("SUBSCRIBE", subscribe, timeout=10)
        except (RequestTimedOut, asyncio.CancelledError):
            connection.registered.remove_consumer(5)
            connection.send_command(c.CommandCloseConsumer(consumer_id=5, request_id=c.NO_REQUEST))
            raise
        except BaseException:
            connection.registered.remove_consumer(5)
            raise
        self.is_registered = True

    def detached(self, error: Exception) -> None:
        assert self.is_registered
        self.is_registered = False

    def failed(self, error: Exception) -> None:
        raise AssertionError(error)

    def on_broker_close(self, connection: PulsarConnection, url: str | None) -> None:
        self.reconnector.lost(connection, ConnectionLost("the broker has closed the consumer"), url)

    def on_connection_lost(self, connection: PulsarConnection, error: Exception) -> None:
        self.reconnector.lost(connection, error)


class Events:
    """Random events at three brokers."""

    def __init__(self, pulsar: ScriptedPulsar, network: Network, rng: random.Random) -> None:
        self.pulsar = pulsar
        self.network = network
        self.rng = rng
        self.stopped: set[ScriptedPulsarBroker] = set()

    @property
    def _broker(self) -> ScriptedPulsarBroker:
        return self.pulsar[self.rng.choice(HOSTS)]

    async def one(self) -> None:
        await getattr(self, self.rng.choice([name for name in dir(self) if name.startswith("do_")]))()

    async def do_cut(self) -> None:
        self._broker.cut()

    async def do_move(self) -> None:
        self.pulsar.move("orders", self.rng.choice(HOSTS), assigned=self.rng.random() < 0.5)

    async def do_unload(self) -> None:
        self.pulsar.unload("orders")

    async def do_close_with_a_wrong_url(self) -> None:
        for connection in self.pulsar.connections:
            connection.close_attached(str(TOPIC), self.rng.choice(["pulsar://10.0.0.9:6650", "x", ""]))

    async def do_freeze(self) -> None:
        self._broker.freeze()

    async def do_thaw(self) -> None:
        self._broker.thaw()

    async def do_silence(self) -> None:
        self.network.blackhole(self.rng.choice(HOSTS), connect=self.rng.choice(["hang", "accept"]))

    async def do_heal(self) -> None:
        self.network.heal()

    async def do_stop(self) -> None:
        broker = self._broker
        self.stopped.add(broker)
        await broker.stop()

    async def do_start(self) -> None:
        if self.stopped:
            await self.stopped.pop().start()

    async def do_answer_badly(self) -> None:
        kinds: list[Any] = [c.CommandSubscribe, c.CommandLookupTopic, c.CommandConnect]
        answers = [refuse(6), refuse(0), late(3.0), late(15.0), no_answer, Call.cut]
        self._broker.script[self.rng.choice(kinds)] = in_turn(self.rng.choice(answers), Call.default)

    async def do_redirect(self) -> None:
        self._broker.redirects[str(TOPIC)] = self.rng.choice(HOSTS)

    async def end(self) -> None:
        """Undo everything."""
        self.network.heal()
        for broker in self.stopped:
            await broker.start()
        for broker in self.pulsar.brokers.values():
            broker.redirects.clear()
            broker.script.clear()
            broker.thaw()


@pytest.mark.parametrize("seed", range(40))
async def test_random_events(network: Network, seed: int) -> None:
    rng = random.Random(seed)
    network.latency = rng.choice([0.0, 0.001, 0.3])
    async with ScriptedPulsar(*HOSTS) as pulsar:
        async with core_of(
            pulsar, connections_per_broker=2, connect_timeout=5.0, operation_timeout=10.0
        ) as core:
            consumer = SubscribedConsumer(core)
            await consumer.reconnector.wait_ready()
            events = Events(pulsar, network, rng)
            for _ in range(60):
                await events.one()
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.05, 0.5, 3.0, 20.0]))
                assert consumer.is_registered is (consumer.reconnector.state is ReconnectState.READY)
            await events.end()
            await asyncio.sleep(300)
            await consumer.reconnector.wait_ready()
            assert consumer.attempts > 1
            end = pulsar.connection_of(consumer=5)
            assert end.broker.host == pulsar.owner_of(str(TOPIC))
            assert [len(each.consumers) for each in pulsar.connections].count(1) == 1
            end.push(c.CommandReachedEndOfTopic(consumer_id=5))
            await asyncio.sleep(1)
            assert consumer.named("on_end_of_topic"), "it is the connection that the consumer has"
            await consumer.reconnector.aclose()
        await asyncio.sleep(10)
        assert pulsar.connections == []
