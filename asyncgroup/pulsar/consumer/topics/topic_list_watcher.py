"""TopicListWatcher: asks a broker for the topics that are created and deleted (PIP-145, Java's class of this name)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.errors import ConnectionLost, RequestTimedOut
from asyncgroup.escaping import escaping_logger
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import SendsCommands
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.commands import (
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicUpdate,
)
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["TopicListWatcher"]

_log = escaping_logger("asyncgroup.pulsar")


class TopicListWatcher:
    """Keeps a watch at a broker of the service URL: `start`, at the end `aclose`.

    `on_attached()` is called when a broker has begun to watch, at first and again: topics may have come and gone before, so a list
    is due. `on_update(update)` gets what it sends.
    """

    def __init__(
        self,
        core: ClientCore,
        namespace: str,
        pattern: str,
        on_attached: Callable[[], object],
        on_update: Callable[[CommandWatchTopicUpdate], object],
    ) -> None:
        self.id = core.new_id()
        self.name = f"watcher {self.id} of topics {pattern}"
        self.is_attached = False
        """Whether a broker watches now. One that cannot ends it: `is_refused`."""
        self.is_refused = False
        self._namespace = namespace
        self._pattern = pattern
        self._timeout = core.config.operation_timeout
        self._on_attached = on_attached
        self._on_update = on_update
        self._connection: PulsarConnection | None = None
        self._reconnector = core.new_watch_reconnector(self.name, self)

    def __repr__(self) -> str:
        return f"<TopicListWatcher {self.name}: {self._reconnector.state.value}>"

    def start(self) -> None:
        """Begin the first attempt."""
        self._reconnector.start()

    async def aclose(self) -> None:
        """End the watch. Safe to call twice."""
        connection, self._connection = self._connection, None
        self.is_attached = False
        if connection is not None and not connection.is_closed:
            self._end_watch(connection)
        await self._reconnector.aclose()

    def _end_watch(self, connection: PulsarConnection) -> None:
        connection.registered.remove_watcher(self.id)
        if not connection.is_closed:
            connection.call_with_answer(
                f"{self.name}: WATCH_TOPIC_LIST_CLOSE",
                lambda number: CommandWatchTopicListClose(request_id=number, watcher_id=self.id),
                self._timeout,
                lambda _, __: None,
            )

    # --- called by the reconnector ----------------------------------------------------------------------------------------

    async def attach(self, connection: PulsarConnection, epoch: int) -> None:  # noqa: ARG002  of producers
        """Begin to watch at a connection. Raises PulsarServerError if its broker cannot."""
        if not connection.features.supports_topic_watchers:
            raise PulsarServerError(
                ServerError.UNSUPPORTED_VERSION_ERROR, self.name, "the broker does not watch topics"
            )
        connection.registered.add_watcher(self.id, self)
        try:
            await connection.request(
                f"{self.name}: WATCH_TOPIC_LIST",
                lambda number: CommandWatchTopicList(
                    request_id=number,
                    watcher_id=self.id,
                    namespace=self._namespace,
                    topics_pattern=self._pattern,
                ),
                timeout=self._timeout,
            )
        except (RequestTimedOut, asyncio.CancelledError):
            self._end_watch(connection)  # the broker may have it nevertheless
            raise
        except BaseException:
            connection.registered.remove_watcher(self.id)
            raise
        self._connection = connection
        self.is_attached = True
        self._on_attached()

    def detached(self, error: Exception) -> None:  # noqa: ARG002  the reconnector reports it
        """Another attempt follows."""
        self._connection = None
        self.is_attached = False

    def failed(self, error: Exception) -> None:
        """No broker watches: the topics are listed from time to time instead."""
        self._connection = None
        self.is_attached, self.is_refused = False, True
        _log.info("%s: topics are listed from time to time instead: %s", self.name, error)
        self._on_attached()

    # --- called by the connection -----------------------------------------------------------------------------------------

    def on_topics_changed(self, update: CommandWatchTopicUpdate) -> None:
        """Topics were created or deleted."""
        self._on_update(update)

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None:
        """A broker closes no watchers; it would be as a lost connection."""
        self._reconnector.lost(
            connection, ConnectionLost(f"{self.name}: the broker has closed it"), assigned_url
        )

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None:
        """The connection has ended."""
        self._reconnector.lost(connection, error)
