"""PulsarCoordinator: a coordinator of transactions at its broker, and requests to it (Java's `TransactionMetaStoreHandler`).

A coordinator is a partition of `persistent://pulsar/system/transaction_coordinator_assign`: the broker that owns the partition is
the coordinator's. A client connects to it by TC_CLIENT_CONNECT_REQUEST, and again when the coordinator has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from asyncgroup.errors import AsyncGroupError, ConnectionLost, RequestTimedOut
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import SendsCommands
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.reconnector import Reconnector, ReconnectState
from asyncgroup.pulsar.wire.commands import Command, CommandTcClientConnectRequest
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["PulsarCoordinator", "SentRequests"]

_GONE: Final = (ServerError.TRANSACTION_COORDINATOR_NOT_FOUND, ServerError.SERVICE_NOT_READY)
"""Answers of a broker at which the coordinator is not, or not yet: its topic is looked up again."""


class SentRequests:
    """Counts the attempts of a request that were written: after the first one it may have been processed before."""

    def __init__(self) -> None:
        self.count = 0

    def __repr__(self) -> str:
        return f"<SentRequests {self.count}>"


class PulsarCoordinator:
    """The coordinator with a number; it connects with the first request."""

    def __init__(self, core: ClientCore, number: int, topic: TopicName) -> None:
        self.number = number
        self.name = f"transaction coordinator {number}"
        self._core = core
        self._topic = topic
        self._reconnector: Reconnector | None = None
        self._connection: PulsarConnection | None = None

    def __repr__(self) -> str:
        state = "not used" if self._reconnector is None else self._reconnector.state.value
        return f"<PulsarCoordinator {self.number}: {state}>"

    @property
    def is_connected(self) -> bool:
        """Whether requests are written at once."""
        return self._connection is not None

    @property
    def is_failing(self) -> bool:
        """Whether it was looked for, and is not connected."""
        return self._reconnector is not None and self._connection is None

    async def request(
        self,
        about: str,
        make: Callable[[int], Command],
        *,
        timeout: float | None = None,
        sent: SentRequests | None = None,
    ) -> Any:
        """Send a request, again after failures that may pass, for `timeout` seconds (None: `operation_timeout`).

        `sent` counts the attempts. Raises PulsarServerError, TransportError, ClosedError.
        """
        limit = self._core.config.operation_timeout if timeout is None else timeout
        retry = RetryLoop(self._core.new_backoff(), timeout=limit)
        while True:
            connection: PulsarConnection | None = None
            try:
                connection = await self._connected_within(retry.left)
                if sent is not None:
                    sent.count += 1
                return await connection.request(f"{self.name}: {about}", make, timeout=max(retry.left, 0.001))
            except AsyncGroupError as error:
                if connection is not None and isinstance(error, PulsarServerError) and error.code in _GONE:
                    self._leave(connection, error)
                if not error.retriable or self._core.is_closed:
                    raise
                await retry.pause(error)

    async def _connected_within(self, seconds: float) -> PulsarConnection:
        try:
            async with asyncio.timeout(seconds):
                await self._reconnecting().wait_ready()
        except TimeoutError:
            raise RequestTimedOut(f"{self.name}: no broker within {seconds:g} s") from None
        if self._connection is None:
            raise ConnectionLost(f"{self.name}: it is not connected")
        return self._connection

    def _reconnecting(self) -> Reconnector:
        """Return what keeps it connected: a new one after the last one has given up."""
        reconnector = self._reconnector
        if reconnector is None or reconnector.state is ReconnectState.FAILED:
            reconnector = self._reconnector = self._core.new_reconnector(
                self.name, self._topic, self, role=None
            )
            reconnector.start()
        return reconnector

    def _leave(self, connection: PulsarConnection, error: Exception) -> None:
        connection.registered.remove_coordinator(self.number)
        if self._reconnector is not None:
            self._reconnector.lost(connection, error)

    async def aclose(self) -> None:
        """Connect no more. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.registered.remove_coordinator(self.number)
        if self._reconnector is not None:
            await self._reconnector.aclose()

    # --- what the connection calls: ConnectionListener ------------------------------------------------------------------

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None:
        """No broker closes a coordinator: it answers requests with TransactionCoordinatorNotFound."""

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None:
        """The connection has ended."""
        if self._reconnector is not None:
            self._reconnector.lost(connection, error)

    # --- what the reconnector calls: Attached ---------------------------------------------------------------------------

    async def attach(self, connection: PulsarConnection, epoch: int) -> None:  # noqa: ARG002  of producers
        """Connect to the coordinator at its broker."""
        connection.registered.add_coordinator(self.number, self)
        try:
            await connection.request(
                f"{self.name}: TC_CLIENT_CONNECT",
                lambda number: CommandTcClientConnectRequest(request_id=number, tc_id=self.number),
                timeout=self._core.config.operation_timeout,
            )
        except BaseException:
            connection.registered.remove_coordinator(self.number)
            raise
        self._connection = connection

    def detached(self, error: Exception) -> None:  # noqa: ARG002  the reconnector's history has it
        """Another attempt follows."""
        self._connection = None

    def failed(self, error: Exception) -> None:  # noqa: ARG002  the callers get it
        """No attempt follows, until the next request."""
        self._connection = None
