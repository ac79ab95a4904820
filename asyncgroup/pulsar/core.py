"""ClientCore: the connections and lookups that the producers and consumers of a client share."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Protocol

from asyncgroup.hooks import AttachRole, Hooks
from asyncgroup.lifecycle import start_task, wait_shielded
from asyncgroup.memory.memory_budget import MemoryBudget
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.pulsar.attach_history import AttachHistory, attach_reports
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.cluster_lookups import ClusterLookups
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.lookup import BrokerOfTopic, TopicLookup
from asyncgroup.pulsar.connection.pool import PulsarConnectionPool
from asyncgroup.pulsar.reconnector import Attached, Reconnector
from asyncgroup.pulsar.service_url import ServiceUrl
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.security import Tls

__all__ = ["ClientCore", "CountedConsumer"]


class CountedConsumer(Protocol):
    """The consumer of one partition, as metrics read it."""

    subscription: str
    topic: TopicName

    @property
    def is_attached(self) -> bool:
        """Whether it is registered at a broker."""
        ...

    @property
    def open_permits(self) -> int:
        """The number of messages that the broker may push now."""
        ...


class ClientCore:
    """What the producers and consumers of one client share, while it is open."""

    def __init__(
        self,
        service: ServiceUrl,
        config: PulsarConfig,
        context: ssl.SSLContext | None,
        hooks: Hooks | None = None,
    ) -> None:
        self.config = config
        self.hooks = hooks or Hooks()
        self.loop = asyncio.get_running_loop()
        """Everything of the client belongs to it."""
        self.is_closed = False
        self.rng = random.Random()
        self.pool = PulsarConnectionPool(config, context, self.rng, self.hooks)
        self.lookup = TopicLookup(
            service, self.pool, config, self.new_backoff, self.rng.randrange(len(service.addresses))
        )
        self.clusters = ClusterLookups(self.lookup, self._open_lookup)
        """The lookups of all clusters that its topics are in; `lookup` is that of the service URL."""
        self.memory = MemoryBudget(config.memory_limit, "memory_limit")
        """Bytes of the messages of all producers that have no receipt."""
        self.consumers: dict[int, CountedConsumer] = {}
        """The consumers that are open, by their ids."""
        self._ids = count()

    def __repr__(self) -> str:
        return f"<ClientCore {self.pool!r}>"

    def new_id(self) -> int:
        """Return the id of a new producer, consumer or watcher."""
        return next(self._ids)

    def new_backoff(self) -> RetryBackoff:
        """Return the pauses of one series of attempts."""
        return RetryBackoff(self.config.retry_backoff, self.config.retry_backoff_max, self.rng)

    def new_reconnector(
        self,
        name: str,
        topic: TopicName,
        attached: Attached,
        on_retry: Callable[[Exception], object] = lambda _: None,
        *,
        role: AttachRole | None = "consumer",
        subscription: str | None = None,
    ) -> Reconnector:
        """Return what keeps a producer or consumer at the broker of its topic; hooks get no events of a role of None."""
        slot = self.pool.new_slot()
        lookup = self.clusters.of(topic)

        async def open_connection(broker: BrokerOfTopic) -> PulsarConnection:
            return await self.pool.get(broker.logical, broker.physical, slot)

        def to_cluster(url: str) -> None:
            nonlocal lookup
            lookup = self.clusters.move(topic, url)

        made = Reconnector(
            name,
            attached,
            lambda: lookup.broker_of(topic),
            open_connection,
            self.new_backoff(),
            self.config.operation_timeout,
            on_retry,
            AttachHistory(
                name,
                TopicPartition(str(topic.whole), topic.partition),
                subscription,
                None if role is None else attach_reports(self.hooks, role, topic),
            ),
        )
        made.to_cluster = to_cluster
        return made

    async def connection_to(self, topic: TopicName) -> PulsarConnection:
        """Return a connection to the broker of a topic, for single requests; one attempt. Raises PulsarServerError, TransportError."""
        broker = await self.clusters.of(topic).broker_of(topic)
        return await self.pool.get(broker.logical, broker.physical)

    def _open_lookup(self, url: str) -> TopicLookup:
        return TopicLookup(ServiceUrl.parse(url), self.pool, self.config, self.new_backoff, 0)

    def new_watch_reconnector(self, name: str, attached: Attached) -> Reconnector:
        """Return what keeps a watcher of topics at a broker of the service URL; it has no time limit."""

        async def find() -> BrokerOfTopic:
            connection = await self.lookup.service_connection()
            return BrokerOfTopic(connection.logical, connection.physical)

        async def open_connection(broker: BrokerOfTopic) -> PulsarConnection:
            return await self.pool.get(broker.logical, broker.physical)

        return Reconnector(name, attached, find, open_connection, self.new_backoff(), inf)

    @classmethod
    async def open(cls, service: ServiceUrl, config: PulsarConfig, hooks: Hooks | None = None) -> ClientCore:
        """Return one after its certificates were read; connections are opened when they are needed."""
        context = None
        if service.is_tls:
            context = await asyncio.to_thread((config.tls or Tls()).make_context)
        return cls(service, config, context, hooks)

    async def aclose(self) -> None:
        """End lookups and connections. Safe to call twice; runs to its end even if the caller is cancelled."""
        self.is_closed = True
        await wait_shielded(start_task(self._close(), name="close a client"))

    async def _close(self) -> None:
        await self.clusters.aclose()
        await self.pool.aclose()
