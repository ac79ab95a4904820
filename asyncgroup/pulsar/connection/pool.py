"""PulsarConnectionPool: the connections of a client, by broker, by where it is reached, and by slot.

Attempts are shared: callers that want the same connection wait for one. What fails or closes is removed; what nothing
uses is closed after `connections_max_idle`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from itertools import count
from typing import NamedTuple, TypeVar

from asyncgroup.errors import ClosedError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import await_shared, cancel_and_wait, mark_retrieved, start_task
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.connecting import connect
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.service_url import BrokerAddress

__all__ = ["PulsarConnectionPool", "await_unless_closed"]

T = TypeVar("T")


class _Key(NamedTuple):
    logical: BrokerAddress
    physical: BrokerAddress
    slot: int


class PulsarConnectionPool:
    """The connections of one client."""

    def __init__(
        self,
        config: PulsarConfig,
        context: ssl.SSLContext | None,
        rng: random.Random,
        hooks: Hooks | None = None,
    ) -> None:
        self._config = config
        self._hooks = hooks
        self._context = context
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._request_ids = count()
        self._connections: dict[_Key, PulsarConnection] = {}
        self._attempts: dict[_Key, asyncio.Task[PulsarConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<PulsarConnectionPool {len(self._connections)} connections>"

    @property
    def connections(self) -> list[PulsarConnection]:
        """The connections that are open."""
        return [each for each in self._connections.values() if not each.is_closed]

    def new_slot(self) -> int:
        """Return the slot of a new producer or consumer."""
        return self._rng.randrange(self._config.connections_per_broker)

    async def get(
        self, logical: BrokerAddress, physical: BrokerAddress | None = None, slot: int = 0
    ) -> PulsarConnection:
        """Return an open connection to a broker. Raises what `connect` raises, ClosedError."""
        if self._is_closed:
            raise ClosedError("the client is closed")
        key = _Key(logical, physical or logical, slot)
        found = self._connections.get(key)
        if found is not None and not found.is_closed:
            found.last_used = self._loop.time()
            return found
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = self._attempts[key] = start_task(self._connect(key), name=f"connect to {key.physical}")
            attempt.add_done_callback(mark_retrieved)
        return await await_unless_closed(attempt)

    async def _connect(self, key: _Key) -> PulsarConnection:
        try:
            connection = await connect(
                key.logical, key.physical, self._config, self._context, self._request_ids, self._hooks
            )
        finally:
            del self._attempts[key]
        connection.last_used = self._loop.time()
        self._connections[key] = connection
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._config.connections_max_idle, self._close_idle)
        return connection

    def _close_idle(self) -> None:
        """Close what was not used, and forget what is closed."""
        now, idle = self._loop.time(), self._config.connections_max_idle
        for key, connection in list(self._connections.items()):
            if connection.is_closed or (connection.is_idle and now - connection.last_used >= idle):
                del self._connections[key]
                self._close(connection)
        self._sweep = self._loop.call_later(idle, self._close_idle) if self._connections else None

    def _close(self, connection: PulsarConnection) -> None:
        closing = start_task(connection.aclose(), name=f"close {connection.physical}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all connections. Safe to call twice."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        await cancel_and_wait(*self._attempts.values())
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            self._close(connection)
        if self._closing:
            await asyncio.wait(list(self._closing))


async def await_unless_closed(task: asyncio.Task[T]) -> T:
    """Wait for a task that several callers share. Raises ClosedError if it was cancelled, as by the client's end."""
    try:
        return await await_shared(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if not task.cancelled() or (current is not None and current.cancelling()):
            raise  # the caller was cancelled
        raise ClosedError("the client is closed") from None
