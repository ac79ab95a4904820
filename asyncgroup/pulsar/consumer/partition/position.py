"""SubscriptionPosition: where a consumer goes on in its partition, after a seek and after a reconnect.

The broker keeps the position of a durable subscription. It forgets one that is not durable with its connection: the consumer
begins after what was taken. Before it has taken a message it begins where it has begun before: at `latest`, or at a time, only the
broker knows where that is, so it is asked once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import cast

from asyncgroup.errors import ConnectionLost, UsageError
from asyncgroup.pulsar.attach_history import AttachHistory
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.consumer.acks.unacked import EntryKey
from asyncgroup.pulsar.consumer.partition.consumer_parts import ConsumerParts
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.consumer.partition.message_outcomes import MessageOutcomes
from asyncgroup.pulsar.consumer.receiving.arrivals import StartPosition
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    MessageIdData,
)
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["SubscriptionPosition"]


class SubscriptionPosition:
    """The position of one consumer.

    `flow` asks for messages if there is room, `on_restart` is called when other messages come than those that are queued.
    """

    def __init__(
        self,
        identity: ConsumerIdentity,
        parts: ConsumerParts,
        outcomes: MessageOutcomes,
        history: AttachHistory,
        flow: Callable[[], None],
        on_restart: Callable[[], None],
    ) -> None:
        self.is_seeking = False
        """Whether nothing is delivered, as the subscription is moved."""
        self.is_at_end = False
        """Whether the topic was terminated and all of its messages were pushed."""
        self.last_taken: MessageId | None = None
        """The last message that was taken since the last seek, of a subscription that is not durable."""
        self._name = identity.name
        self._id = identity.id
        self._is_shared = not identity.kind.in_order
        self._is_durable = identity.config.durable
        self._is_kept_here = not self._is_durable and identity.topic.is_persistent
        """Whether the broker forgets a position to which a consumer can return."""
        self._is_unknown = self._is_kept_here and identity.config.initial_position == "latest"
        """Whether only the broker knows where the subscription begins."""
        self._is_start_named = False
        """Whether the last seek has named the messages before the start in its batch."""
        self._seeks = 0
        self._parts = parts
        self._outcomes = outcomes
        self._history = history
        self._flow = flow
        self._on_restart = on_restart

    def __repr__(self) -> str:
        return f"<SubscriptionPosition of {self._name}{': it seeks' if self.is_seeking else ''}>"

    def attach(self, connection: PulsarConnection) -> None:
        """The consumer is registered: ask where its subscription begins, if only the broker knows that."""
        if not self._is_unknown or self.is_seeking:
            return
        number = self._seeks

        def done(answer: Command | None, error: Exception | None) -> None:
            if error is None and number == self._seeks and not self.is_seeking:
                self._begin_at(cast("CommandGetLastMessageIdResponse", answer))

        with suppress(ConnectionLost):  # then the next connection is asked
            connection.call_with_answer(
                f"{self._name}: GET_LAST_MESSAGE_ID",
                lambda request_id: CommandGetLastMessageId(consumer_id=self._id, request_id=request_id),
                None,
                done,
            )

    def _begin_at(self, answer: CommandGetLastMessageIdResponse) -> None:
        """The subscription begins after this position, which acknowledgements have moved at most to what was taken."""
        read = answer.consumer_mark_delete_position
        if read is not None:
            self._is_unknown = False
            start = StartPosition.at(MessageId.of(read), inclusive=False)
            self._parts.subscribing.start = self._parts.arrivals.start = start

    def closed_by_broker(self) -> None:
        """The broker has closed the consumer: the topic moves, or another consumer or the admin API has moved the subscription.

        So messages before the start are wanted unless the broker leaves them out.
        """
        arrivals = self._parts.arrivals
        if self._is_start_named and not self.is_seeking and not arrivals.is_start_ignored:
            arrivals.is_start_known = True

    def detach(self) -> None:
        """The consumer is not registered any more; of a subscription that is not durable the broker forgets the position."""
        if self._is_durable or self.is_seeking:
            return
        queue = self._parts.queue
        if self.last_taken is not None:
            start = StartPosition.at(self.last_taken, inclusive=False)
        elif queue:
            start = StartPosition.at(next(iter(queue)).message_id, inclusive=True)
        else:
            return
        self._parts.subscribing.start = self._parts.arrivals.start = start

    # --- seek -------------------------------------------------------------------------------------------------------------

    def has_acked_in(self, key: EntryKey) -> bool:
        """Whether the broker may keep acknowledgements of this consumer in a batch over a seek."""
        if self._parts.unacked.was_in_transaction(key):
            return True
        return self._is_shared and self._parts.acks.is_partly_acked(key)

    def begin_seek(self) -> None:
        """Deliver nothing from now on: see `seeking`. Raises UsageError during another seek."""
        if self.is_seeking:
            raise UsageError(f"{self._name}: it seeks already")
        self.is_seeking = self._parts.acks.is_held = self._history.is_moving = True
        self._parts.void()
        self._outcomes.drop_queue()
        self._on_restart()

    def end_seek(
        self,
        start: StartPosition | None,
        last: EntryKey,
        bound: MessageId | None = None,
        position: MessageIdData | None = None,
    ) -> None:
        """The subscription was moved: forget all that was before. `last` is the last entry that may have been acknowledged.

        Without a `start` it is at `bound`, EARLIEST or LATEST, or for a time after EARLIEST; None if it may be where it was.
        `position` is what the broker knows of the start.
        """
        self._seeks += 1
        self._outcomes.begin_after_seek()
        self._parts.arrivals.start = start
        if self._is_durable:
            known = None if start is None or position is None else position
            self._parts.arrivals.moved_to = None if known is None else (known.ledger_id, known.entry_id)
            self._is_start_named = known is not None and bool(known.ack_set)
            self._parts.arrivals.is_start_known = self._parts.arrivals.is_start_ignored = False
        else:
            self._parts.subscribing.start = start
            self._parts.subscribing.bound = bound or self._parts.subscribing.bound
        self._is_unknown = self._is_kept_here and start is None
        self.last_taken = None
        self.is_at_end = False
        self._parts.forget(last)
        self._resume()
        if self._outcomes.connection is not None:
            self.attach(self._outcomes.connection)

    def give_up_seek(self) -> None:
        """The subscription was not moved: what is not acknowledged comes again."""
        self._resume()
        if self._outcomes.connection is not None:
            self._outcomes.redeliver_all()

    def _resume(self) -> None:
        self.is_seeking = self._parts.acks.is_held = self._history.is_moving = False
        self._parts.acks.send()
        self._flow()
        self._outcomes.arm()
