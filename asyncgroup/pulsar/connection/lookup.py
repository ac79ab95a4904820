"""TopicLookup: which broker has a topic, and how many partitions it has.

A lookup also makes that broker load the topic, so its result is never kept: without a lookup before, PRODUCER and
SUBSCRIBE are refused (Pulsar's `BinaryProtoLookupService`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    ConnectError,
    DecodeError,
    ProtocolError,
    TransportError,
)
from asyncgroup.lifecycle import cancel_and_wait, mark_retrieved, start_task
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.net.slots import Slots
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.pool import PulsarConnectionPool, await_unless_closed
from asyncgroup.pulsar.errors import PulsarServerError, Refusal, TooManyRedirects
from asyncgroup.pulsar.service_url import BrokerAddress, ServiceUrl
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)
from asyncgroup.pulsar.wire.enums import LookupType, TopicsMode
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["BrokerOfTopic", "TopicLookup"]

T = TypeVar("T")

MAX_PARTITIONS: Final = 100_000
"""Partitions of a topic; an answer with more is refused, as each of them has a producer or consumer here."""

_FAILED: Final = 1  # of PARTITIONED_METADATA
_NO_SLOT: Final = 0
"""Lookups share the first connection to a broker."""


class BrokerOfTopic(NamedTuple):
    """The broker of a topic, and the address at which it is reached: its own, or that of a proxy."""

    logical: BrokerAddress
    physical: BrokerAddress


class TopicLookup:
    """Asks the brokers of the service URL, in turn, about topics.

    The client connects to the address that an answer names, with its credential, as all clients of Pulsar do: who answers lookups
    decides who gets it. With `pulsar+ssl` that broker's certificate has to match its own name.
    """

    def __init__(
        self,
        service: ServiceUrl,
        pool: PulsarConnectionPool,
        config: PulsarConfig,
        new_backoff: Callable[[], RetryBackoff],
        first: int,
    ) -> None:
        self._service = service
        self._pool = pool
        self._config = config
        self._new_backoff = new_backoff
        self._next = first  # index of the service address that is tried next
        self._asked: PulsarConnection | None = None  # the last connection to it, unless that has failed
        self._slots = Slots(config.max_lookup_requests)
        self._running: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<TopicLookup at {self._service}: {len(self._running)} running>"

    async def broker_of(self, topic: TopicName) -> BrokerOfTopic:
        """Return the broker of a topic; one attempt, which callers of the same time share.

        Raises PulsarServerError, TransportError, TooManyRedirects.
        """
        return await self._shared("broker", str(topic), lambda: self._find_broker(str(topic)))

    async def partitions_of(self, topic: TopicName, *, create: bool = True) -> int:
        """Return the number of a topic's partitions, 0 for one without; `create` it, if the broker is configured for that.

        Retried for `operation_timeout`. Raises PulsarServerError (TopicNotFound), TransportError.
        """
        kind = "partitions" if create else "partitions, not created"
        return await self._shared(
            kind,
            str(topic),
            lambda: self._retried(lambda retry: self._ask_partitions(str(topic), retry, create=create)),
        )

    async def topics_of(
        self,
        namespace: str,
        pattern: str | None = None,
        mode: TopicsMode = TopicsMode.PERSISTENT,
        known_hash: str | None = None,
    ) -> CommandGetTopicsOfNamespaceResponse:
        """Return the topics of `tenant/namespace`, those that match a pattern if the broker filters.

        `known_hash` is that of an answer that is known: if there is no other, `changed` is False.
        """

        def command(request_id: int) -> Command:
            return CommandGetTopicsOfNamespace(
                request_id=request_id,
                namespace=namespace,
                mode=mode,
                topics_pattern=pattern,
                topics_hash=known_hash,
            )

        return await self._shared(
            f"{mode.name.lower()} topics {known_hash or ''}".rstrip(),
            f"{namespace} {pattern or ''}".rstrip(),
            lambda: self._retried(lambda retry: self._ask_topics(namespace, command, retry)),
        )

    async def aclose(self) -> None:
        """End what runs; safe to call twice."""
        self._is_closed = True
        await cancel_and_wait(*self._running.values())

    # --- shared and repeated ------------------------------------------------------------------------------------------

    async def _shared(self, kind: str, topic: str, ask: Callable[[], Awaitable[T]]) -> T:
        if self._is_closed:
            raise ClosedError("the client is closed")
        key = (kind, topic)
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = start_task(self._run(ask), name=f"{kind} of {topic}")
            running.add_done_callback(mark_retrieved)
            running.add_done_callback(lambda _: self._running.pop(key))
        found: T = await await_unless_closed(running)
        return found

    async def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        await self._slots.take()
        try:
            return await ask()
        finally:
            self._slots.release()

    async def _retried(self, ask: Callable[[RetryLoop], Awaitable[T]]) -> T:
        """Repeat what fails and may succeed later, until `operation_timeout` has passed; then raise the last error."""
        retry = RetryLoop(self._new_backoff(), timeout=self._config.operation_timeout)
        while True:
            try:
                return await ask(retry)
            except AsyncGroupError as error:
                if not _may_pass(error):
                    raise
                await retry.pause(error)

    # --- single requests ----------------------------------------------------------------------------------------------

    async def service_connection(self) -> PulsarConnection:
        """Return a connection to an address of the service URL; each is tried once. Raises ConnectError, AuthenticationError."""
        addresses = self._service.addresses
        failures = list[str]()
        first = self._next
        for number in range(first, first + len(addresses)):
            try:
                connection = await self._pool.get(addresses[number % len(addresses)], slot=_NO_SLOT)
            except TransportError as error:
                failures.append(str(error))
                cause = error.__cause__
            else:
                self._next = number % len(addresses)
                self._asked = connection
                return connection
        raise ConnectError("; ".join(failures)) from cause

    async def _ask(
        self, connection: PulsarConnection, about: str, make: Callable[[int], Command], timeout: float
    ) -> Any:
        """Send a request; if the broker does not answer, or is not ready, begin with the next service address from now on."""
        try:
            return await connection.request(about, make, timeout=timeout)
        except (PulsarServerError, TransportError, ProtocolError) as error:
            if isinstance(error, PulsarServerError):
                if error.code == ServerError.SERVICE_NOT_READY:
                    connection.close(ConnectError(f"{connection.physical}: {error}"))
                elif not connection.is_closed:  # by too many refusals
                    raise
            if connection is self._asked:  # once for all requests that fail together
                self._asked = None
                self._next += 1
            raise

    async def _find_broker(self, topic: str) -> BrokerOfTopic:
        now = asyncio.get_running_loop().time
        deadline = now() + self._config.operation_timeout  # of all redirects together
        connection = await self.service_connection()
        authoritative = False
        for _ in range(self._config.max_lookup_redirects + 1):
            answer = await self._look_up(
                connection, topic, max(0.0, deadline - now()), authoritative=authoritative
            )
            broker = self._address_in(answer)
            if answer.response != LookupType.REDIRECT:
                through = connection.physical if answer.proxy_through_service_url else broker
                return BrokerOfTopic(broker, through)
            authoritative = answer.authoritative
            through = connection.physical if answer.proxy_through_service_url else broker
            connection = await self._pool.get(broker, through, _NO_SLOT)
        raise TooManyRedirects(
            f"{topic}: brokers have redirected its lookup {self._config.max_lookup_redirects} times"
        )

    async def _look_up(
        self, connection: PulsarConnection, topic: str, timeout: float, *, authoritative: bool
    ) -> CommandLookupTopicResponse:
        listener = self._config.listener_name
        answer: CommandLookupTopicResponse = await self._ask(
            connection,
            f"lookup of {topic}",
            lambda number: CommandLookupTopic(
                topic=topic,
                request_id=number,
                authoritative=authoritative,
                advertised_listener_name=listener,
            ),
            timeout,
        )
        if answer.response is None or not (answer.broker_service_url or answer.broker_service_url_tls):
            raise PulsarServerError(
                ServerError.UNKNOWN_ERROR, f"lookup of {topic}", "the answer names no broker"
            )
        return answer

    def _address_in(self, answer: CommandLookupTopicResponse) -> BrokerAddress:
        url = answer.broker_service_url_tls if self._service.is_tls else answer.broker_service_url
        if not url:
            kind = "pulsar+ssl" if self._service.is_tls else "pulsar"
            raise ConnectError(f"the broker of the topic has no {kind} address")
        try:
            return BrokerAddress.of_url(url)
        except AsyncGroupError as error:
            raise DecodeError(f"a broker's address is not valid: {error}") from error

    async def _ask_partitions(self, topic: str, retry: RetryLoop, *, create: bool) -> int:
        connection = await self.service_connection()
        can_leave = connection.features.supports_get_partitioned_metadata_without_auto_creation
        answer: CommandPartitionedTopicMetadataResponse = await self._ask(
            connection,
            f"partitions of {topic}",
            lambda number: CommandPartitionedTopicMetadata(
                topic=topic, request_id=number, metadata_auto_creation_enabled=create or not can_leave
            ),
            max(0.0, retry.left),
        )
        if answer.response == _FAILED:
            raise PulsarServerError(
                ServerError.UNKNOWN_ERROR, f"partitions of {topic}", "the answer gives no reason"
            )
        count = answer.partitions or 0
        if count > MAX_PARTITIONS:
            raise DecodeError(
                f"{topic}: the broker names {count} partitions; at most {MAX_PARTITIONS} are used"
            )
        return count

    async def _ask_topics(
        self, namespace: str, command: Callable[[int], Command], retry: RetryLoop
    ) -> CommandGetTopicsOfNamespaceResponse:
        connection = await self.service_connection()
        answer: CommandGetTopicsOfNamespaceResponse = await self._ask(
            connection, f"topics of {namespace}", command, max(0.0, retry.left)
        )
        return answer


def _may_pass(error: AsyncGroupError) -> bool:
    if isinstance(error, PulsarServerError):
        return error.refusal is Refusal.RETRY
    return isinstance(error, TransportError | ProtocolError)
