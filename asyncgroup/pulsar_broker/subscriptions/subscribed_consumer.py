"""SubscribedConsumer: a consumer as its subscription sees it: permits, and what was pushed and is not acknowledged (Pulsar's `Consumer`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.pulsar.wire.ack_set import words_of
from asyncgroup.pulsar.wire.commands import Command, CommandMessage, CommandSubscribe, MessageIdData
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry

__all__ = ["SubscribedConsumer"]

MAX_UNACKED: Final = 50_000
"""Messages without acknowledgement from which on a consumer gets no more (`maxUnackedMessagesPerConsumer`)."""

Push = Callable[[Command, bytes], None]
"""Sends a command, with what follows it in its frame."""


class SubscribedConsumer:
    """A consumer. `push` writes to its connection; `partition` is that of its topic, -1 for none."""

    def __init__(
        self,
        command: CommandSubscribe,
        name: str,
        partition: int,
        push: Push,
        *,
        max_unacked: int = MAX_UNACKED,
    ) -> None:
        self.id = command.consumer_id
        self.name = name
        self.command = command
        self.priority = command.priority_level or 0
        self.permits = 0
        """Messages that it may get; below 0 after a batch with more of them."""
        self.epoch = command.consumer_epoch
        self.pending: dict[int, int] = {}
        """The entries that it has, by index, and the number of their messages."""
        self.unacked = 0
        """Messages of these entries."""
        self.is_blocked = False
        """Whether it has too many messages without acknowledgement."""
        self.knows_end = False
        """Whether it was notified that the topic has ended."""
        self._partition = partition
        self._push = push
        self._max_unacked = max_unacked

    def __repr__(self) -> str:
        return f"<SubscribedConsumer {self.id} {self.name!r}: {self.permits} permits, {len(self.pending)} pending>"

    @property
    def can_take(self) -> bool:
        """Whether an entry may be pushed to it."""
        return self.permits > 0 and not self.is_blocked

    def send(self, command: Command) -> None:
        """Send it a command without payload."""
        self._push(command, b"")

    def take(self, entry: StoredEntry, unacked: int, ack_set: int | None, redeliveries: int) -> None:
        """Push an entry to it; `unacked` are the messages that it has to acknowledge."""
        count = unacked.bit_count()
        self.permits -= count
        if entry.index not in self.pending:
            self.unacked += count
        self.pending[entry.index] = count
        self.is_blocked = self.is_blocked or self.unacked >= self._max_unacked
        ledger, number = entry.position
        self._push(
            CommandMessage(
                consumer_id=self.id,
                message_id=MessageIdData(ledger_id=ledger, entry_id=number, partition=self._partition),
                redelivery_count=redeliveries,
                ack_set=() if ack_set is None else words_of(ack_set),
                consumer_epoch=self.epoch,
            ),
            entry.payload,
        )

    def acked(self, index: int, left: int = 0) -> None:
        """Messages of an entry were acknowledged, here or elsewhere; `left` are not."""
        count = self.pending.get(index)
        if count is None:
            return
        self.unacked -= count - left
        if left:
            self.pending[index] = left
        else:
            del self.pending[index]
        if self.is_blocked and self.unacked <= self._max_unacked // 2:
            self.is_blocked = False

    def give_back(self, indexes: list[int] | None = None) -> list[int]:
        """Return the entries that it has, all or some of these, which it has no longer."""
        found = (
            list(self.pending) if indexes is None else [index for index in indexes if index in self.pending]
        )
        for index in found:
            self.acked(index)
        return found
