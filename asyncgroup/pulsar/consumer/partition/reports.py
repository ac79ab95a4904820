"""ConsumerReports: the events of a consumer for hooks: entries that arrive, acknowledgements that are answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.hooks import Hooks
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ConsumerReports"]

NO_OFFSET: Final = -1


class ConsumerReports:
    """The events of the consumer of one partition. An event without a listening hook is None: then an entry costs one comparison."""

    def __init__(self, hooks: Hooks, subscription: str, topic: TopicName) -> None:
        self._hooks = hooks
        self._subscription = subscription
        self._tp = str(topic.whole), topic.partition
        self.received: Callable[[int, int], None] | None = (
            self._received if hooks.has_listener("on_receive") else None
        )
        """Is called with the number of messages of an entry, and its size in bytes."""
        self.acked: Callable[[int, Exception | None], None] | None = (
            self._acked if hooks.has_listener("on_ack") else None
        )
        """Is called with the number of entries of an acknowledgement, and why it was refused."""

        self.chunks_dropped: Callable[[str], None] | None = (
            self._chunks_dropped if hooks.has_listener("on_chunks_dropped") else None
        )
        """Is called with the reason why a value is given up."""

    def __repr__(self) -> str:
        return f"<ConsumerReports of {self._subscription!r}, {self._tp}>"

    def _received(self, messages: int, size: int) -> None:
        self._hooks.emit("on_receive", self._subscription, *self._tp, messages, size)

    def _acked(self, entries: int, error: Exception | None) -> None:
        self._hooks.emit("on_ack", self._subscription, *self._tp, entries, error)

    def _chunks_dropped(self, kind: str) -> None:
        self._hooks.emit("on_chunks_dropped", *self._tp, NO_OFFSET, kind)
