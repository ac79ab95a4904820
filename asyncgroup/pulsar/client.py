"""PulsarClient: the connections and lookups that producers and consumers share."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Self

from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.memory.buffer_memory import BufferMemory
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.lookup import BrokerOfTopic, TopicLookup
from asyncgroup.pulsar.connection.pool import PulsarConnectionPool
from asyncgroup.pulsar.reconnector import Attached, Reconnector
from asyncgroup.pulsar.service_url import ServiceUrl
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.security import Tls

__all__ = ["ClientCore", "PulsarClient"]


class ClientCore:
    """What the producers and consumers of one client share, while it is open."""

    def __init__(self, service: ServiceUrl, config: PulsarConfig, context: ssl.SSLContext | None) -> None:
        self.config = config
        self.rng = random.Random()
        self.pool = PulsarConnectionPool(config, context, self.rng)
        self.lookup = TopicLookup(
            service, self.pool, config, self.new_backoff, self.rng.randrange(len(service.addresses))
        )
        self.memory = BufferMemory(config.memory_limit, "memory_limit")
        """Bytes of the messages of all producers that have no receipt."""
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
    ) -> Reconnector:
        """Return what keeps a producer or consumer at the broker of its topic."""
        slot = self.pool.new_slot()

        async def open_connection(broker: BrokerOfTopic) -> PulsarConnection:
            return await self.pool.get(broker.logical, broker.physical, slot)

        return Reconnector(
            name,
            attached,
            lambda: self.lookup.broker_of(topic),
            open_connection,
            self.new_backoff(),
            self.config.operation_timeout,
            on_retry,
        )

    async def aclose(self) -> None:
        """End lookups and connections."""
        await self.lookup.aclose()
        await self.pool.aclose()


class PulsarClient:
    """A client of a Pulsar cluster, an async context manager.

        async with PulsarClient("pulsar://localhost:6650") as client:
            ...

    `service_url` names one or several brokers or proxies; `config` is for all producers and consumers of the client. Raises
    ConfigError for a URL or a configuration that is not valid.
    """

    def __init__(self, service_url: str, config: PulsarConfig | None = None) -> None:
        self._service = ServiceUrl.parse(service_url)
        self._config = config or PulsarConfig()
        self._core: ClientCore | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "not open" if self._core is None else "open"
        return f"<PulsarClient {self._service}: {state}>"

    async def __aenter__(self) -> Self:
        """Read the certificates; connections are opened when they are needed."""
        if self._core is not None or self._is_closed:
            raise UsageError("the client was entered before: create a new one")
        context = None
        if self._service.is_tls:
            context = await asyncio.to_thread((self._config.tls or Tls()).make_context)
        self._core = ClientCore(self._service, self._config, context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    @property
    def _inner(self) -> ClientCore:
        if self._core is None or self._is_closed:
            raise ClosedError(
                "the client is closed" if self._is_closed else "enter the client first: `async with`"
            )
        return self._core

    async def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions, 0 for a topic without; the topic is not created.

        Raises PulsarServerError (TopicNotFound), TransportError.
        """
        return await self._inner.lookup.partitions_of(TopicName.parse(topic), create=False)

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the names of the persistent topics in `tenant/namespace`, sorted; each partition is a topic."""
        answer = await self._inner.lookup.topics_of(namespace)
        return sorted(answer.topics)

    async def aclose(self) -> None:
        """Close all connections. Safe to call twice."""
        self._is_closed = True
        if self._core is not None:
            await self._core.aclose()
