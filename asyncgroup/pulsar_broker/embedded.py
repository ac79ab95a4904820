"""EmbeddedPulsar: a Pulsar in this process, for tests of programs that use Pulsar."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Final, Self

from asyncgroup.broker.traffic.injection import Injection, Injector
from asyncgroup.broker.traffic.recorder import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_LIMIT
from asyncgroup.errors import UsageError
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin_server import AdminServer
from asyncgroup.pulsar_broker.namespaces import Namespaces
from asyncgroup.pulsar_broker.node import PulsarNode
from asyncgroup.pulsar_broker.server_connection import Traffic
from asyncgroup.pulsar_broker.subscription import Timing, TopicSubscription
from asyncgroup.pulsar_broker.topic import BrokerTopic
from asyncgroup.pulsar_broker.traffic import PulsarFaults, PulsarHistory, PulsarRecorder

__all__ = ["EmbeddedPulsar"]

FAILOVER_DELAY: Final = 1.0
"""Seconds until the next consumer of a Failover subscription gets messages (`activeConsumerFailoverDelayTimeMillis`)."""


class EmbeddedPulsar:
    """One or more brokers that speak Pulsar's protocol, with all data in memory.

        async with EmbeddedPulsar() as pulsar:
            pulsar.create_topic("orders", partitions=3)
            async with PulsarProducer(pulsar.service_url, "orders") as producer:
                await producer.send(b"one dozen", key="eggs")

    It listens on loopback at any free port, on an event loop in virtual time at the hosts `10.1.0.1` and following. Topics that do
    not exist are created when they are used.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        hosts: Sequence[str] | None = None,
        port: int = 0,
        creates_topics: bool = True,
        default_partitions: int = 0,
        admin: bool = False,
        failover_delay: float = FAILOVER_DELAY,
        history_limit: int = DEFAULT_HISTORY_LIMIT,
        history_bytes: int = DEFAULT_HISTORY_BYTES,
    ) -> None:
        """`admin`: whether `admin_url` serves requests of Pulsar's admin API (see `admin_server`), which has no virtual time.

        `failover_delay`: seconds until the next consumer of a Failover subscription gets messages.

        `default_partitions` is what a topic gets that is created by its use; 0: none. `history_limit`: exchanges that are kept in
        `history`, `history_bytes`: memory that they may take.
        """
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of_loop()
        self._failover_delay = failover_delay
        self._timers: set[asyncio.TimerHandle] = set()
        timing = Timing(self._clock, self._wake, self._after_change)
        self.namespaces = Namespaces(
            timing, creates_topics=creates_topics, default_partitions=default_partitions
        )
        """Which topics there are."""
        recorder, injector = PulsarRecorder(history_limit, history_bytes), Injector[Injection]()
        self._injector = injector
        traffic, numbers = Traffic(recorder, injector), count(1).__next__
        self.history = PulsarHistory(recorder)
        """The requests of clients, and their answers: see PulsarHistory."""
        self.faults = PulsarFaults(injector)
        """Injected faults, `pulsar.faults.on("Send", topic="orders").error("TopicTerminatedError")`: see PulsarFaults."""
        names = hosts if hosts is not None else ["127.0.0.1"] * brokers
        self.nodes: Mapping[int, PulsarNode] = {
            number: PulsarNode(self.namespaces, self.owner_of, traffic, numbers, number, host, port)
            for number, host in enumerate(names, 1)
        }
        """The brokers, by number."""
        self._owners: dict[TopicName, int] = {}
        self._admin = AdminServer(self, "127.0.0.1", 0) if admin else None
        self._is_open = False

    def __repr__(self) -> str:
        return f"<EmbeddedPulsar {self.service_url}, {len(self.namespaces.topics)} topics>"

    async def __aenter__(self) -> Self:
        """Start the brokers."""
        if self._is_open:
            raise UsageError("this EmbeddedPulsar is open already")
        self._is_open = True
        for node in self.nodes.values():
            await node.start()
        if self._admin is not None:
            await self._admin.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the brokers. Raises UnusedFaults, and errors of functions that faults have called."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        stops = [node.stop() for node in self.nodes.values()]
        if self._admin is not None:
            stops.append(self._admin.stop())
        await wait_shielded(asyncio.gather(*stops))
        if kind is None:
            self._injector.check()

    @property
    def service_url(self) -> str:
        """The addresses of all brokers, for clients."""
        return "pulsar://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes.values())

    @property
    def admin_url(self) -> str:
        """The address of the admin API. Raises UsageError without one."""
        if self._admin is None:
            raise UsageError("this EmbeddedPulsar has no admin API: EmbeddedPulsar(admin=True)")
        return self._admin.url

    # --- topics -----------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 0) -> None:
        """Create a topic; 0 partitions is one without any."""
        self.namespaces.create(TopicName.parse(topic), partitions)

    def topic(self, topic: str) -> BrokerTopic:
        """Return a topic without partitions, or a partition."""
        return self.namespaces.topic(TopicName.parse(topic), creates=False)

    def subscription(self, topic: str, name: str) -> TopicSubscription:
        """Return a subscription."""
        return self.topic(topic).subscriptions[name]

    def create_subscription(self, topic: str, name: str, *, position: str = "latest") -> None:
        """Create a subscription of a topic, with its partitions."""
        start = InitialPosition.EARLIEST if position == "earliest" else InitialPosition.LATEST
        for each in self._parts(TopicName.parse(topic)):
            self.namespaces.topic(each).subscription(name, start)

    def unload(self, topic: str, to: int | None = None) -> None:
        """Move a topic, with its partitions, to another broker, or have it loaded again by the same one."""
        for name in self._parts(TopicName.parse(topic)):
            for node in self.nodes.values():
                node.unload(name)
            if to is not None:
                self._owners[name] = to

    def close_consumers(self, subscription: TopicSubscription) -> None:
        """Close the consumers of a subscription; they come back."""
        for node in self.nodes.values():
            node.close_consumers(subscription)

    def set_deduplication(self, *, enabled: bool) -> None:
        """Whether topics drop messages whose sequence ids of their producer are stored (`brokerDeduplicationEnabled`)."""
        for node in self.nodes.values():
            node.deduplicates = enabled

    def terminate(self, topic: str) -> None:
        """Let a topic accept no message any more."""
        self.topic(topic).terminate()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its partitions, its producers and its consumers."""
        for found in self.namespaces.delete(TopicName.parse(topic)):
            for node in self.nodes.values():
                node.unload(found.name)
                node.evict(found)

    def _parts(self, name: TopicName) -> list[TopicName]:
        partitions = self.namespaces.partitions_of(name, creates=True)
        return [name.of_partition(number) for number in range(partitions)] if partitions else [name]

    def owner_of(self, name: TopicName) -> PulsarNode:
        """Return the broker that owns a topic: the first one that runs, from a number on that depends on its name."""
        running = [number for number, node in self.nodes.items() if node.is_running]
        number = self._owners.get(name)
        if number is None or number not in running:
            number = running[hash(name.local_name) % len(running)] if len(running) > 1 else running[0]
            self._owners[name] = number
        return self.nodes[number]

    # --- time -------------------------------------------------------------------------------------------------------------

    def _wake(self, time: int, call: Callable[[], None]) -> None:
        self._after(max(time - self._clock(), 0) / 1000, call)

    def _after_change(self, call: Callable[[], None]) -> None:
        self._after(self._failover_delay, call)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            call()

        timer = self._loop.call_later(seconds, due)
        self._timers.add(timer)
