"""Registration: keeps a consumer registered at the broker of its topic, and sends its requests there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from asyncgroup.errors import AsyncGroupError, ConnectionLost, RequestTimedOut
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.pulsar.attach_history import AttachHistory
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import ConsumerListener
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.commands import Command, CommandCloseConsumer

__all__ = ["RegisteredConsumer", "Registration"]


class RegisteredConsumer(ConsumerListener, Protocol):
    """A consumer, as its registration sees it."""

    def check_broker(self, server_version: str) -> None:
        """Raise ConfigError if the broker cannot be used."""
        ...

    def on_registered(self, connection: PulsarConnection) -> None:
        """The broker has accepted it."""
        ...

    def on_unregistered(self) -> None:
        """The connection has ended, or the broker has closed the consumer; another attempt follows."""
        ...

    def on_refused(self, error: Exception) -> None:
        """The end: no attempt follows."""
        ...

    def on_error(self, error: Exception) -> None:
        """Something failed, and another attempt follows."""
        ...


class Registration:
    """A consumer's place at a broker; `subscribe(request_id)` returns its SUBSCRIBE command."""

    def __init__(
        self,
        core: ClientCore,
        identity: ConsumerIdentity,
        subscribe: Callable[[int], Command],
        consumer: RegisteredConsumer,
    ) -> None:
        self._core = core
        self._name = name = identity.name
        self._id = identity.id
        self._subscribe = subscribe
        self._consumer = consumer
        self._timeout = core.config.operation_timeout
        self._close_limit = max(1.0, min(identity.config.close_timeout, self._timeout))
        self._connection: PulsarConnection | None = None
        self._reconnector = core.new_reconnector(
            name,
            identity.topic,
            self,
            consumer.on_error,
            role="consumer",
            subscription=identity.subscription,
        )
        self._closes: set[asyncio.Future[Any]] = set()  # CLOSE_CONSUMER without an answer
        self._requests: set[asyncio.Timeout] = set()  # until the end
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<Registration of {self._name}: {self.state}>"

    @property
    def state(self) -> str:
        """Where it is: connecting, ready, closed or failed."""
        return self._reconnector.state.value

    @property
    def has_ended(self) -> bool:
        """Whether no attempt follows."""
        return self._reconnector.has_ended

    @property
    def history(self) -> AttachHistory:
        """When it was registered, and when it was not."""
        return self._reconnector.history

    def start(self) -> None:
        """Begin the first attempt."""
        self._reconnector.start()

    async def wait_attached(self) -> None:
        """Wait until the consumer is registered. Raises the error that has ended it, ClosedError."""
        await self._reconnector.wait_ready()

    def lost(self, connection: object, error: Exception, assigned_url: str | None = None) -> None:
        """A connection has ended, or the broker has closed the consumer on it."""
        self._reconnector.lost(connection, error, assigned_url)

    def migrate(self, url: str) -> None:
        """The topic is in the cluster of a service URL from now on."""
        self._reconnector.migrate(url)

    # --- called by the reconnector ----------------------------------------------------------------------------------------

    async def attach(self, connection: PulsarConnection, epoch: int) -> None:  # noqa: ARG002  of producers
        """Register at the connection, then at the broker."""
        self._consumer.check_broker(connection.server_version)
        connection.registered.add_consumer(self._id, self._consumer)
        try:
            await connection.request(f"{self._name}: SUBSCRIBE", self._subscribe, timeout=self._timeout)
        except (RequestTimedOut, asyncio.CancelledError):
            connection.registered.remove_consumer(self._id)
            self._close_at(connection)  # the broker may have it nevertheless
            raise
        except BaseException:
            connection.registered.remove_consumer(self._id)
            raise
        self._connection = connection
        self._consumer.on_registered(connection)

    def detached(self, error: Exception) -> None:  # noqa: ARG002  `on_error` has it
        """Another attempt follows."""
        self._connection = None
        self._consumer.on_unregistered()

    def failed(self, error: Exception) -> None:
        """No attempt follows."""
        self._connection = None
        self._consumer.on_refused(error)

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def request(self, about: str, make: Callable[[int], Command]) -> Any:
        """Send a request where the consumer is registered, again after failures that may pass, until `operation_timeout`.

        `aclose` ends it at once. Raises PulsarServerError, TransportError, ClosedError.
        """
        try:
            async with asyncio.timeout(None) as until_close:
                self._requests.add(until_close)
                return await self._request(about, make)
        except TimeoutError:
            if not until_close.expired():
                raise
            await self.wait_attached()  # raises why it has ended
            raise
        finally:
            self._requests.discard(until_close)

    async def _request(self, about: str, make: Callable[[int], Command]) -> Any:
        retry = RetryLoop(self._core.new_backoff(), timeout=self._timeout)
        while True:
            try:
                connection = await self.attached_within(retry.left)
                return await connection.request(
                    f"{self._name}: {about}", make, timeout=max(retry.left, 0.001)
                )
            except AsyncGroupError as error:
                if not error.retriable or self._is_closing:
                    raise
                await retry.pause(error)

    async def attached_within(self, seconds: float | None = None) -> PulsarConnection:
        """Return the connection at which the consumer is registered; wait for it, by default until `operation_timeout`.

        Raises RequestTimedOut, ConnectionLost, ClosedError.
        """
        limit = self._timeout if seconds is None else seconds
        try:
            async with asyncio.timeout(limit):
                await self.wait_attached()
        except TimeoutError:
            raise RequestTimedOut(f"{self._name}: no broker within {limit:g} s") from self.history.error
        if self._connection is None:
            raise ConnectionLost(f"{self._name}: it is not connected")
        return self._connection

    # --- the end ----------------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """The broker has no such consumer any more: do not close it there."""
        if self._connection is not None:
            self._connection.registered.remove_consumer(self._id)
            self._connection = None

    async def aclose(self) -> None:
        """Leave the broker, and make no more attempts. Safe to call twice."""
        self._is_closing = True
        for request in self._requests:
            request.reschedule(self._core.loop.time())
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                self._close_at(connection)
                connection.registered.remove_consumer(self._id)
        finally:
            await self._reconnector.aclose()
            if self._closes:
                await asyncio.wait(self._closes)

    def _close_at(self, connection: PulsarConnection) -> None:
        """Send CLOSE_CONSUMER; `aclose` waits for the answer, however that is, for a while: the end of the connection does the same."""
        if connection.is_closed:
            return
        answer = connection.start_request(
            f"{self._name}: CLOSE_CONSUMER",
            lambda number: CommandCloseConsumer(consumer_id=self._id, request_id=number),
            timeout=self._close_limit,
        )
        self._closes.add(answer)
        answer.add_done_callback(self._closed)

    def _closed(self, answer: asyncio.Future[Any]) -> None:
        self._closes.discard(answer)
        if not answer.cancelled():
            answer.exception()
