"""PulsarClient: creates the producers, consumers and readers of a Pulsar cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from asyncgroup.checks import DURATION, timedelta_hint
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import start_task, wait_shielded
from asyncgroup.named_arguments import NO_ARGUMENT, NamedArguments
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import SUBSCRIPTION_TYPES, PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.multi_topics_consumer import consumer_class
from asyncgroup.pulsar.consumer.reader import PulsarReader
from asyncgroup.pulsar.consumer.table_view import PulsarTableView
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.interceptors import PulsarInterceptor
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.service_url import ServiceUrl
from asyncgroup.pulsar.transactions.coordinators import PulsarCoordinators
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ClientCore", "PulsarClient"]

V = TypeVar("V")

_NAMESPACE: Final = re.compile("[^/]+/[^/]+")


class PulsarClient(NamedArguments):
    """A client of a Pulsar cluster, an async context manager.

        async with PulsarClient("pulsar://localhost:6650") as client:
            ...

    `service_url` names one or several brokers or proxies; `config` is for all producers and consumers of the client, and
    `hooks` (see Hook) get their events, those of connections and requests, and those of work queues that use the client.
    Raises ConfigError for a URL or a configuration that is not valid.
    """

    def __init__(
        self,
        service_url: str,
        config: PulsarConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
    ) -> None:
        self._service = ServiceUrl.parse(service_url)
        self._config = PulsarConfig.of(config)
        if self._config.tls is not None and not self._service.is_tls:
            raise ConfigError("service_url", service_url, "pulsar+ssl://…, as the configuration has tls")
        self.hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        """The hooks of all that uses this client."""
        self._core: ClientCore | None = None
        self._coordinators: PulsarCoordinators | None = None  # with the first transaction
        self._is_closed = False

    @classmethod
    def _argument_hint(cls, key: str, value: object, known: tuple[str, ...]) -> str:  # noqa: ARG003
        # imported here, because its tables of names are needed only for an error
        from asyncgroup.pulsar.client_properties import suggest_client_key

        keys = tuple(each.name for each in fields(PulsarConfig))
        if key in keys:
            return (
                f"{NO_ARGUMENT}; it is a key of the configuration: PulsarClient(url, PulsarConfig({key}=…))"
            )
        found = suggest_client_key(key, keys).partition("; ")[2]
        return f"{NO_ARGUMENT}; of PulsarConfig: {found}" if found else NO_ARGUMENT

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "not open" if self._core is None else "open"
        return f"<PulsarClient {self._service}: {state}>"

    async def __aenter__(self) -> Self:
        """Read the certificates; connections are opened when they are needed."""
        if self._core is not None or self._is_closed:
            raise UsageError("the client was entered before: create a new one")
        self._core = await ClientCore.open(self._service, self._config, self.hooks)
        self.hooks.emit("on_open", self)
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
        if self._core.loop is not asyncio.get_running_loop():
            raise UsageError("the client belongs to another event loop, perhaps of another thread")
        return self._core

    async def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions, 0 for a topic without; the topic is not created.

        Raises PulsarServerError (TopicNotFound), TransportError.
        """
        return await self._inner.clusters.partitions_of(TopicName.parse(topic), create=False)

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the names of the persistent topics in `tenant/namespace`, sorted; each partition is a topic. Raises ConfigError."""
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ConfigError("namespace", namespace, "tenant/namespace, such as public/default")
        answer = await self._inner.lookup.topics_of(namespace)
        return sorted(answer.topics)

    def producer(
        self,
        topic: str,
        config: PulsarProducerConfig | None = None,
        *,
        interceptors: Iterable[PulsarInterceptor] = (),
    ) -> PulsarProducer:
        """Return a producer of messages to a topic, to be entered with `async with`. Raises ConfigError."""
        return PulsarProducer(self, topic, config, interceptors=interceptors)

    def subscribe(
        self,
        topic: str | Collection[str] | re.Pattern[str],
        subscription: str,
        *,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,  # noqa: A002  Pulsar's name
        config: PulsarConsumerConfig | None = None,
    ) -> PulsarTopicConsumer:
        """Return a consumer of a topic, to be entered with `async with`.

        `topic` may be several names, or a compiled pattern: all topics of a namespace that match it as a whole, such as
        `re.compile("public/default/orders-.*")`, also those that are created later. `type` is `exclusive`, `shared`, `failover` or `key_shared`. Raises ConfigError.
        """
        kind = SUBSCRIPTION_TYPES.get(type.lower()) if isinstance(type, str) else type
        if not isinstance(kind, SubscriptionType):
            raise ConfigError("type", type, "one of " + ", ".join(SUBSCRIPTION_TYPES))
        settings = PulsarConsumerConfig.of(config)
        return consumer_class(topic)(lambda: self._inner, topic, subscription, kind, settings)

    def reader(
        self,
        topic: str | Collection[str] | re.Pattern[str],
        start: str | MessageId | datetime | Iterable[MessageId] = "latest",
        *,
        inclusive: bool = False,
        config: PulsarConsumerConfig | None = None,
    ) -> PulsarReader:
        """Return a reader of a topic, to be entered with `async with`: it has no subscription that stays.

        `topic` may be several names, or a compiled pattern, as in `subscribe`. `start` is `earliest`, `latest`, a time of publication (a
        datetime with a time zone), a MessageId of a topic without partitions, or a list with an id for each partition, of several
        topics a TopicMessageId; the partitions without one are read from their first message on. The messages with these ids are
        read themselves if `inclusive`. Raises ConfigError.
        """
        return PulsarReader(
            lambda: self._inner, topic, start, PulsarConsumerConfig.of(config), inclusive=inclusive
        )

    @overload
    def table_view(
        self, topic: str, decode: None = None, *, config: PulsarConsumerConfig | None = None
    ) -> PulsarTableView[bytes]: ...

    @overload
    def table_view(
        self, topic: str, decode: Callable[[bytes], V], *, config: PulsarConsumerConfig | None = None
    ) -> PulsarTableView[V]: ...

    def table_view(
        self,
        topic: str,
        decode: Callable[[bytes], Any] | None = None,
        *,
        config: PulsarConsumerConfig | None = None,
    ) -> PulsarTableView[Any]:
        """Return the newest value of each key of a topic, a mapping that follows it, to be entered with `async with`.

        `decode` returns the value of a message's bytes; without it, values are bytes. Raises ConfigError.
        """
        settings = PulsarConsumerConfig.of(config)
        return PulsarTableView(lambda: self._inner, topic, bytes if decode is None else decode, settings)

    def transaction(self, timeout: float = 60.0) -> PulsarTransaction:
        """Return a transaction, an async context manager: it is committed at the end of the block, and aborted after an exception.

            async with client.transaction() as txn:
                await producer.send(b"one dozen", transaction=txn)
                consumer.ack(message, transaction=txn)

        Its coordinator aborts it `timeout` seconds after its begin. Raises ConfigError.
        """
        if not DURATION[0](timeout):
            raise ConfigError("timeout", timeout, DURATION[1] + timedelta_hint(timeout, DURATION[1]))
        return PulsarTransaction(self._find_coordinators, timeout)

    def _find_coordinators(self) -> PulsarCoordinators:
        core = self._inner
        if self._coordinators is None:
            self._coordinators = PulsarCoordinators(core)
        return self._coordinators

    async def aclose(self) -> None:
        """Abort open transactions, and close all connections. Safe to call twice; runs to its end even if the caller is cancelled."""
        self._is_closed = True
        if self._coordinators is not None:
            await wait_shielded(
                start_task(self._coordinators.aclose(), name="close transaction coordinators")
            )
        if self._core is not None:
            await self._core.aclose()


_READER: Final = "async with client.reader(topic, start) as reader"
_TABLE: Final = "async with client.table_view(topic) as view"
_PRODUCER: Final = "async with client.producer(topic, config) as producer"
_CONSUMER: Final = "async with client.subscribe(topic, subscription, type=…, config=…) as consumer"
_PARTITIONS: Final = "await client.partitions(topic), their number"
_TRANSACTION: Final = "async with client.transaction(timeout=60) as txn"
_CLOSE: Final = "await client.aclose(), or the end of `async with`"

add_foreign_names(
    PulsarClient,
    {
        "create_producer": _PRODUCER,
        "new_producer": _PRODUCER,
        "consumer": _CONSUMER,
        "new_consumer": _CONSUMER,
        "create_reader": _READER,
        "new_reader": _READER,
        "create_table_view": _TABLE,
        "new_table_view": _TABLE,
        "new_transaction": _TRANSACTION,
        "begin_transaction": _TRANSACTION,
        "get_topic_partitions": _PARTITIONS,
        "get_partitions_for_topic": _PARTITIONS,
        "close": _CLOSE,
        "close_async": _CLOSE,
        "shutdown": _CLOSE,
    },
)
