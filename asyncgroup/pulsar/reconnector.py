"""Reconnector: keeps one producer, consumer or watcher at the broker of its topic (Pulsar's `ConnectionHandler`).

One task looks up the broker, connects and attaches, again and again; so there are never two attempts at once. The end of
a connection that is not the current one is ignored; the end of that of an attempt is the end of the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from math import inf
from typing import Final, Protocol

from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    ClosedError,
    ConfigError,
    ProtocolError,
    TransportError,
)
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import cancel_and_wait, copy_error, start_task
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.pulsar.attach_history import AttachHistory
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.lookup import BrokerOfTopic
from asyncgroup.pulsar.errors import PulsarServerError, Refusal
from asyncgroup.pulsar.service_url import BrokerAddress

__all__ = ["Attached", "ReconnectState", "Reconnector"]

_log = escaping_logger("asyncgroup.pulsar")

_BETWEEN_MOVES: Final = 1.0
"""Seconds: a broker that closes what it was assigned shortly before is tried after a pause, as two may assign to each other."""


class ReconnectState(Enum):
    """Where a reconnector is."""

    CONNECTING = "connecting"
    READY = "ready"
    CLOSED = "closed"
    FAILED = "failed"


class Attached(Protocol):
    """A producer, consumer or watcher, as its reconnector sees it."""

    async def attach(self, connection: PulsarConnection, epoch: int) -> None:
        """Register at the connection, then at the broker; `epoch` counts the attempts from 0.

        Raises what the broker answers; then nothing is registered any more, neither here nor there. So it is when this is
        cancelled: after a request without an answer it sends CLOSE_PRODUCER or CLOSE_CONSUMER, as the broker may have done it.
        """
        ...

    def detached(self, error: Exception) -> None:
        """The connection of a success is lost; another attempt follows."""
        ...

    def failed(self, error: Exception) -> None:
        """The end: no attempt follows."""
        ...


Find = Callable[[], Awaitable[BrokerOfTopic]]
"""Looks up the broker."""
Open = Callable[[BrokerOfTopic], Awaitable[PulsarConnection]]
"""Returns a connection to it."""


class Reconnector:
    """Attaches `attached` to the broker of its topic, as often as needed, until `aclose` or an error that ends it.

    `on_retry(error)` is called for each failure that another attempt follows, `history` has all of them.
    """

    def __init__(
        self,
        name: str,
        attached: Attached,
        find: Find,
        open_connection: Open,
        backoff: RetryBackoff,
        first_attempt_limit: float,
        on_retry: Callable[[Exception], object] = lambda _: None,
        history: AttachHistory | None = None,
    ) -> None:
        self.name = name
        self.state = ReconnectState.CONNECTING
        self.connection: PulsarConnection | None = None
        """The connection to which it is attached; None without one."""
        self.epoch = 0
        """The number of the next attempt."""
        self.was_ready = False
        """Whether an attempt has succeeded."""
        self.attempt_at: Callable[[], float] = lambda: inf
        """Returns the loop time of an attempt that no pause may leave out; infinity for none."""
        self.to_cluster: Callable[[str], object] = lambda _: None
        """Makes the next attempts look the topic up in the cluster of a service URL. Raises ConfigError."""
        self.history = history or AttachHistory(name)
        """When it was attached, and when it was not."""
        self._attached = attached
        self._find = find
        self._open = open_connection
        self._retry = RetryLoop(backoff)
        self._limit = first_attempt_limit
        self._on_retry = on_retry
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._assigned: BrokerOfTopic | None = None  # where the broker has sent it
        self._moved_at = float("-inf")  # loop time of the last attempt there without a pause
        self._attempting: PulsarConnection | None = None  # the connection of the attempt that runs
        self._attempt_end: asyncio.Timeout | None = None  # of the attempt that runs, for `lost`
        self._lost_early: Exception | None = None  # it ended before the attempt did
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<Reconnector {self.name}: {self.state.value}, {self.epoch} attempts>"

    def start(self) -> None:
        """Begin the first attempt."""
        self.history.started()
        self._task = start_task(self._run(), name=self.name)

    async def wait_ready(self) -> None:
        """Wait until it is attached. Raises the error that has ended it, ClosedError."""
        while self.state is ReconnectState.CONNECTING:  # it may be lost again before this task runs
            await self._ready.wait()
        if self._error is not None:
            raise copy_error(self._error)

    def lost(self, connection: object, error: Exception, assigned_url: str | None = None) -> None:
        """A connection has ended, or the broker has closed what was attached to it; connect again, first to `assigned_url`."""
        current = self.connection or self._attempting
        if current is None or connection is not current or self.has_ended:
            return
        if assigned_url is not None:
            self._assigned = _assigned(current, assigned_url)
        if current is self._attempting:
            self._end_attempt(error)
            return
        self.connection = None
        self.state = ReconnectState.CONNECTING
        self._ready.clear()
        self._lost.set()
        self._attached.detached(error)
        self._retries(error)

    def migrate(self, url: str) -> None:
        """The topic is in another cluster from now on; the connection of now ends next (PIP-188)."""
        self._assigned = None
        try:
            self.to_cluster(url)
        except ConfigError as error:
            _log.warning("%s: its topic has moved to a cluster that cannot be found: %s", self.name, error)
        else:
            _log.info("%s: its topic has moved to the cluster %s", self.name, url)

    def _retries(self, error: Exception) -> None:
        self.history.detached(error)
        self._on_retry(error)

    def fail(self, error: Exception) -> None:
        """End it for good, as an error of the broker demands; an attempt that runs is cancelled."""
        if self.has_ended:
            return
        self.state = ReconnectState.FAILED
        self._error = error
        self.connection = None
        self._ready.set()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self.history.detached(error, is_final=True)
        self._attached.failed(error)

    @property
    def has_ended(self) -> bool:
        """Whether no attempt follows."""
        return self.state in (ReconnectState.CLOSED, ReconnectState.FAILED)

    async def aclose(self) -> None:
        """Make no more attempts. Safe to call twice."""
        if self.state is not ReconnectState.FAILED:
            self.state = ReconnectState.CLOSED
            self._error = self._error or ClosedError(f"{self.name}: it is closed")
        self._ready.set()
        if self._task is not None and self._task is not asyncio.current_task():
            await cancel_and_wait(self._task)

    # --- attempts -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._repeat()
        except Exception as error:  # noqa: BLE001  raised to the callers
            _log.exception("%s: it ends", self.name)
            self.fail(error)

    async def _repeat(self) -> None:
        started = self._loop.time()
        while self.state is ReconnectState.CONNECTING:
            try:
                await self._attempt()
            except (AsyncGroupError, OSError) as error:
                if self._is_final(error, started):
                    self.fail(error)
                    return
                self._retries(error)
            else:
                if self.connection is not None:
                    await self._lost.wait()
            if self.state is ReconnectState.CONNECTING and not self._moves_at_once():
                await self._retry.wait(attempt_at=self.attempt_at())

    def _moves_at_once(self) -> bool:
        now = self._loop.time()
        if self._assigned is None or now - self._moved_at < _BETWEEN_MOVES:
            return False
        self._moved_at = now
        return True

    async def _attempt(self) -> None:
        assigned, self._assigned = self._assigned, None  # it is tried once
        connection = await self._open(assigned or await self._find())
        epoch, self.epoch = self.epoch, self.epoch + 1
        self._attempting, self._lost_early = connection, None
        try:
            async with asyncio.timeout(None) as self._attempt_end:
                await self._attached.attach(connection, epoch)
        except TimeoutError:
            if self._lost_early is None:
                raise
            raise self._lost_early from None
        finally:
            self._attempting = self._attempt_end = None
        if self.has_ended:  # by something that `attach` has called
            return
        self._check_lost_early()
        self._lost.clear()
        self.connection = connection
        self.state = ReconnectState.READY
        self.was_ready = True
        self._retry.reset()
        self._ready.set()
        self.history.attached()

    def _end_attempt(self, error: Exception) -> None:
        """Make the attempt fail: after a close by the broker no answer may come, and a request may have no time limit."""
        if self._lost_early is None and self._attempt_end is not None:
            self._attempt_end.reschedule(self._loop.time())
        self._lost_early = error

    def _check_lost_early(self) -> None:
        if self._lost_early is not None:
            self._attached.detached(self._lost_early)
            raise self._lost_early

    def _is_final(self, error: Exception, started: float) -> bool:
        if isinstance(error, AuthenticationError | ConfigError | ClosedError):
            return not self.was_ready or not isinstance(error, AuthenticationError)
        if isinstance(error, PulsarServerError):
            if error.refusal is Refusal.RAISE:
                return True
            if error.refusal is Refusal.RAISE_AT_FIRST and not self.was_ready:
                return True
        elif not isinstance(error, TransportError | ProtocolError | OSError):
            return True
        return not self.was_ready and self._loop.time() - started >= self._limit


def _assigned(connection: PulsarConnection, url: str) -> BrokerOfTopic | None:
    try:
        logical = BrokerAddress.of_url(url)
    except ConfigError:
        return None  # a lookup finds it
    is_proxied = connection.physical != connection.logical
    return BrokerOfTopic(logical, connection.physical if is_proxied else logical)
