"""The open batch of a producer: messages that will be one entry, or with key-based batches one entry for each key.

A message that does not fit closes the batch first and begins the next one. Never in a batch: messages with a delivery time,
chunks, messages larger than a batch, and possible duplicates; the caller sees to these. Modeled on Java's
`BatchMessageContainerImpl` and `BatchMessageKeyBasedContainer`.
"""

from __future__ import annotations

from typing import Protocol

from asyncgroup.pulsar.producer.outgoing import OutgoingMessage

__all__ = ["BatchContainer", "KeyBasedContainer", "OneBatchContainer"]


class BatchContainer(Protocol):
    """Messages with sequence ids, in order."""

    count: int
    size: int

    def fits(self, size: int, /) -> bool:
        """Return whether a message of `size` bytes can be added."""

    def add(self, message: OutgoingMessage, /) -> bool:
        """Add a message; return whether the batch is full."""

    def take(self) -> list[list[OutgoingMessage]]:
        """Return the messages of each entry, in the order to send, and begin with none."""


class OneBatchContainer:
    """All messages are one entry."""

    __slots__ = ("_max_count", "_max_size", "_messages", "count", "size")

    def __init__(self, max_count: int, max_size: int) -> None:
        self._max_count = max_count
        self._max_size = max_size
        self._messages: list[OutgoingMessage] = []
        self.count = 0
        self.size = 0

    def __repr__(self) -> str:
        return f"<OneBatchContainer {self.count} messages, {self.size} bytes>"

    def fits(self, size: int) -> bool:
        """Return whether a message of `size` bytes can be added."""
        return not self.count or (self.count < self._max_count and self.size + size <= self._max_size)

    def add(self, message: OutgoingMessage) -> bool:
        """Add a message; return whether the batch is full."""
        self._messages.append(message)
        self.count += 1
        self.size += message.size
        return self.count >= self._max_count or self.size >= self._max_size

    def take(self) -> list[list[OutgoingMessage]]:
        """Return the messages, and begin with none."""
        messages, self._messages, self.count, self.size = self._messages, [], 0, 0
        return [messages] if messages else []


class KeyBasedContainer:
    """One entry for each key, so that a Key_Shared subscription can divide them; the limits are for all together.

    The ordering key decides, else the key; messages without any are one entry.
    """

    __slots__ = ("_batches", "_max_count", "_max_size", "count", "size")

    def __init__(self, max_count: int, max_size: int) -> None:
        self._max_count = max_count
        self._max_size = max_size
        self._batches: dict[bytes | str | None, list[OutgoingMessage]] = {}
        self.count = 0
        self.size = 0

    def __repr__(self) -> str:
        return f"<KeyBasedContainer {self.count} messages of {len(self._batches)} keys, {self.size} bytes>"

    def fits(self, size: int) -> bool:
        """Return whether a message of `size` bytes can be added."""
        return not self.count or (self.count < self._max_count and self.size + size <= self._max_size)

    def add(self, message: OutgoingMessage) -> bool:
        """Add a message to the batch of its key; return whether the batches are full."""
        key = message.key if message.ordering_key is None else message.ordering_key
        batch = self._batches.get(key)
        if batch is None:
            self._batches[key] = [message]
        else:
            batch.append(message)
        self.count += 1
        self.size += message.size
        return self.count >= self._max_count or self.size >= self._max_size

    def take(self) -> list[list[OutgoingMessage]]:
        """Return the batches in the order of their last messages, and begin with none.

        A broker with deduplication expects rising numbers of entries, and the number of such a batch is its last one.
        """
        batches, self._batches, self.count, self.size = self._batches, {}, 0, 0
        return sorted(batches.values(), key=_last_sequence_id)


def _last_sequence_id(batch: list[OutgoingMessage]) -> int:
    number = batch[-1].sequence_id
    assert number is not None
    return number
