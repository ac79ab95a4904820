"""RedeliveryRequests: asks the broker for messages again, one by one or all, as the type of the subscription allows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.consumer.acks.ack_sender import AckSender
from asyncgroup.pulsar.consumer.acks.epochs import ConsumerEpoch
from asyncgroup.pulsar.consumer.acks.negative_acks import NegativeAcks, redelivery_commands
from asyncgroup.pulsar.consumer.acks.unacked import EntryKey, UnackedEntries
from asyncgroup.pulsar.consumer.config import SubscriptionType
from asyncgroup.pulsar.wire.commands import CommandRedeliverUnacknowledgedMessages
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["RedeliveryRequests"]


class RedeliveryRequests:
    """The messages of one consumer that are to be delivered again."""

    def __init__(
        self, consumer_id: int, kind: SubscriptionType, unacked: UnackedEntries, acks: AckSender
    ) -> None:
        self._id = consumer_id
        self._kind = kind
        self._unacked = unacked
        self._acks = acks
        self._loop = asyncio.get_running_loop()
        self.nacks = NegativeAcks()
        """Those that wait for their time."""
        self.epoch = ConsumerEpoch()
        """Counts the redeliveries of everything."""
        self._subscribed = 0  # the epoch in the last SUBSCRIBE

    def __repr__(self) -> str:
        return f"<RedeliveryRequests {self.nacks!r}, {self.epoch!r}>"

    def add(self, messages: Iterable[MessageId], delay: float) -> None:
        """Have messages delivered again after `delay` seconds."""
        due_at = self._loop.time() + delay
        for message in messages:
            self.nacks.add(message, due_at)

    def send_all(self, connection: PulsarConnection | None) -> None:
        """Ask for everything that is not acknowledged; without a connection it comes again in any case."""
        self._acks.send()
        self.nacks.clear()
        command = CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        if self._kind.in_order:
            command.consumer_epoch = self.epoch.advance()
        if connection is not None:
            connection.send_command(command)

    def epoch_to_subscribe(self) -> int:
        """Return the epoch for SUBSCRIBE, which the broker's entries have until the next redelivery of everything."""
        self._subscribed = self.epoch.current
        return self._subscribed

    def attach(self, connection: PulsarConnection) -> None:
        """The consumer is registered. A redelivery of everything since its SUBSCRIBE is sent now, or its broker keeps the old epoch."""
        if self.epoch.current != self._subscribed:
            connection.send_command(
                CommandRedeliverUnacknowledgedMessages(
                    consumer_id=self._id, consumer_epoch=self.epoch.current
                )
            )

    def send_due(self, connection: PulsarConnection | None) -> bool:
        """Ask for the messages whose time has come; return whether everything has to be asked for instead, to keep the order."""
        due = [
            message
            for message in self.nacks.take_due(self._loop.time())
            if not self._unacked.is_acked(message)
        ]
        if not due or connection is None:
            return False
        if self._kind.in_order:
            return True
        self._acks.send()  # or the messages of their batches that are acknowledged would come again
        keys: list[EntryKey] = []
        for message in due:
            self._unacked.release(message)
            keys += self._unacked.entries_of(message)
        for command in redelivery_commands(self._id, keys):
            connection.send_command(command)
        return False
