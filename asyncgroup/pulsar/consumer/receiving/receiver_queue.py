"""ReceiverQueue: the messages of a partition that have arrived and were not taken, with the permits that they have used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf

from asyncgroup.pulsar.consumer.acks.epochs import ConsumerEpoch
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger

__all__ = ["ReceiverQueue"]


class ReceiverQueue:
    """The queue of one consumer; its `permits` follow what it does."""

    def __init__(self, permits: PermitLedger, epoch: ConsumerEpoch) -> None:
        self.permits = permits
        self._epoch = epoch
        self._messages: deque[PulsarMessage] = deque()

    def __repr__(self) -> str:
        return f"<ReceiverQueue {len(self._messages)} messages, {self.permits!r}>"

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[PulsarMessage]:
        return iter(self._messages)

    def add(self, charged: int, messages: Sequence[PulsarMessage]) -> None:
        """Add the messages of one entry, for which the broker took `charged` permits."""
        self._messages.extend(messages)
        count = len(messages)
        self.permits.arrive(charged, count, count * messages[0].size if count else 0)

    def take(self, limit: int, max_bytes: float = inf, *, keeps_permits: bool = False) -> list[PulsarMessage]:
        """Remove and return messages, at most `limit`, and `max_bytes` unless the first is larger.

        With `keeps_permits` they count as queued until `give_back`.
        """
        found: list[PulsarMessage] = []
        size, queue = 0, self._messages
        entry, each, is_old = None, 0, False
        while queue and len(found) < limit:
            message = queue[0]
            if message.entry is not entry:  # the messages of an entry have one epoch and one size
                entry, each = message.entry, message.size
                is_old = self._epoch.is_old(entry.epoch)
            if is_old:
                queue.popleft()
                self.permits.drop(1, each)
                continue
            if found and size + each > max_bytes:
                break
            size += each
            found.append(queue.popleft())
        if found and not keeps_permits:
            self.permits.deliver(len(found), size)
        return found

    def take_one(self) -> PulsarMessage | None:
        """Remove and return the next message, as `take` does; None if there is none."""
        queue = self._messages
        while queue:
            message = queue.popleft()
            if self._epoch.is_old(message.entry.epoch):
                self.permits.drop(1, message.size)
                continue
            self.permits.deliver(1, message.size)
            return message
        return None

    def give_back(self, message: PulsarMessage) -> None:
        """A message that was taken with `keeps_permits` has made room."""
        self.permits.deliver(1, message.size)

    def discard(self, is_unwanted: Callable[[PulsarMessage], bool]) -> None:
        """Drop some of the messages."""
        kept: deque[PulsarMessage] = deque()
        for message in self._messages:
            if is_unwanted(message):
                self.permits.drop(1, message.size)
            else:
                kept.append(message)
        self._messages = kept

    def clear(self) -> None:
        """Forget all messages; what becomes of their permits is another matter."""
        self._messages.clear()

    def drop(self) -> None:
        """Drop the messages, and those that were taken with `keeps_permits`."""
        self._messages.clear()
        self.permits.drop(self.permits.queued, self.permits.bytes)
