"""ProducerRegistration: keeps a producer registered at the broker of its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from asyncgroup.errors import ConnectionLost, RequestTimedOut
from asyncgroup.escaping import escaping_logger
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import ProducerListener
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import ACCESS_MODES, PulsarProducerConfig
from asyncgroup.pulsar.wire.commands import (
    NO_REQUEST,
    Command,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
)
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ProducerRegistration", "RegisteredProducer"]

_log = escaping_logger("asyncgroup.pulsar")


class RegisteredProducer(ProducerListener, Protocol):
    """A producer, as its registration sees it."""

    def on_registered(self, connection: PulsarConnection, answer: CommandProducerSuccess) -> None:
        """The broker has accepted it."""
        ...

    def on_unregistered(self, error: Exception) -> None:
        """The connection has ended, or the broker has closed the producer; another attempt follows."""
        ...

    def on_refused(self, error: Exception) -> None:
        """The end: no attempt follows."""
        ...

    def on_error(self, error: Exception) -> None:
        """Something failed, and another attempt follows."""
        ...

    def fail_pending(self, error: Exception) -> None:
        """The broker accepts nothing at present: fail what it has not confirmed."""
        ...


class ProducerRegistration:
    """A producer's place at a broker.

    `attempt_at` returns the loop time of an attempt to connect that no pause may leave out.
    """

    def __init__(
        self,
        core: ClientCore,
        topic: TopicName,
        producer_id: int,
        config: PulsarProducerConfig,
        producer: RegisteredProducer,
        *,
        name: str | None,
        attempt_at: Callable[[], float],
    ) -> None:
        self.name = name
        """Unique among the producers of the topic; None until the broker has chosen it."""
        self._topic = topic
        self._id = producer_id
        self._config = config
        self._producer = producer
        self._timeout = core.config.operation_timeout
        self._topic_epoch: int | None = None
        self._loop = asyncio.get_running_loop()
        self._reconnector = core.new_reconnector(
            f"producer of {topic}", topic, self, producer.on_error, role="producer"
        )
        self._reconnector.attempt_at = attempt_at

    def __repr__(self) -> str:
        return f"<ProducerRegistration of {self._topic}: {self.state}>"

    @property
    def state(self) -> str:
        """Where it is: connecting, ready, closed or failed."""
        return self._reconnector.state.value

    def start(self) -> None:
        """Begin the first attempt."""
        self._reconnector.start()

    async def wait_ready(self) -> None:
        """Wait until the producer is registered. Raises the error that has ended it, ClosedError."""
        await self._reconnector.wait_ready()

    def lost(self, connection: object, error: Exception, assigned_url: str | None = None) -> None:
        """A connection has ended, or the broker has closed the producer on it."""
        self._reconnector.lost(connection, error, assigned_url)

    def migrate(self, url: str) -> None:
        """The topic is in the cluster of a service URL from now on."""
        self._reconnector.migrate(url)

    def register_again(self, error: Exception) -> None:
        """Leave the connection, and begin another attempt."""
        if (connection := self._forget()) is not None:
            self._reconnector.lost(connection, error)

    def fail(self, error: Exception) -> None:
        """The broker has ended the producer: make no more attempts."""
        self._forget()
        self._reconnector.fail(error)

    def _forget(self) -> PulsarConnection | None:
        connection = self._reconnector.connection
        if connection is not None:
            connection.registered.remove_producer(self._id)
        return connection

    # --- called by the reconnector ----------------------------------------------------------------------------------------

    async def attach(self, connection: PulsarConnection, epoch: int) -> None:
        """Register at the connection, then at the broker."""
        started = self._loop.time()
        connection.registered.add_producer(self._id, self._producer)
        try:
            answer: CommandProducerSuccess = await connection.request(
                f"producer of {self._topic}",
                lambda number: self._command(number, epoch),
                timeout=self._timeout,
            )
        except BaseException as error:
            connection.registered.remove_producer(self._id)
            if isinstance(error, RequestTimedOut | asyncio.CancelledError):
                # it may have been registered nevertheless, and a second producer of this name would be refused
                connection.send_command(CommandCloseProducer(producer_id=self._id, request_id=NO_REQUEST))
            if (
                isinstance(error, PulsarServerError)
                and error.code == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
            ):
                self._producer.fail_pending(error)
            if isinstance(error, ConnectionLost) and self._loop.time() > started + self._timeout:
                self._reconnector.was_ready = True  # the broker has let it wait for its turn: it queues again
            raise
        if self.name is None:
            self.name = answer.producer_name
        self._topic_epoch = answer.topic_epoch
        self._producer.on_registered(connection, answer)

    def _command(self, request_id: int, epoch: int) -> Command:
        config = self._config
        return CommandProducer(
            topic=str(self._topic),
            producer_id=self._id,
            request_id=request_id,
            producer_name=self.name,
            metadata=config.properties,
            epoch=epoch,
            user_provided_producer_name=config.producer_name is not None,
            producer_access_mode=ACCESS_MODES[config.access_mode],
            topic_epoch=self._topic_epoch,
            initial_subscription_name=config.initial_subscription,
        )

    def detached(self, error: Exception) -> None:
        """Another attempt follows."""
        self._producer.on_unregistered(error)

    def failed(self, error: Exception) -> None:
        """No attempt follows."""
        self._producer.on_refused(error)

    # --- the end ----------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Have the broker forget the producer; failures are logged only."""
        connection = self._reconnector.connection
        if connection is None or connection.is_closed:
            return
        try:
            await connection.request(
                f"close producer of {self._topic}",
                lambda number: CommandCloseProducer(producer_id=self._id, request_id=number),
                timeout=max(1.0, min(self._config.close_timeout, self._timeout)),
            )
        except (PulsarServerError, RequestTimedOut, ConnectionLost) as error:
            _log.debug("producer of %s: the broker did not confirm its end: %s", self._topic, error)
        finally:
            connection.registered.remove_producer(self._id)

    async def aclose(self) -> None:
        """Make no more attempts. Safe to call twice."""
        await self._reconnector.aclose()
