"""A model of Pulsar's broker for tests of consumers: topics, subscriptions, permits, acknowledgements, redelivery, seeks.

It does as a broker does, on the network of the running loop, and lets a test hold answers and cut connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from asyncgroup.pulsar.wire.ack_set import bits_of, full_set
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandAck,
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandCloseConsumer,
    CommandError,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandReachedEndOfTopic,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandSuccess,
    CommandUnsubscribe,
    MessageIdData,
)
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from tests.pulsar.broker_model import BrokerModel, Link, local_name
from tests.pulsar.consumer.support import batch_body, message_frame, metadata, pushed

__all__ = ["Broker", "Consumer", "Subscription"]

LEDGER: Final = 1
IN_ORDER: Final = (0, 2)
FAILOVER: Final = 2
NOT_ALLOWED: Final = 22


class Stored:
    """An entry of a topic."""

    def __init__(self, number: int, meta: MessageMetadata, body: bytes) -> None:
        self.number = number
        self.meta = meta
        self.body = body
        self.count = meta.num_messages_in_batch or 1


class Consumer:
    """A consumer as the broker sees it."""

    def __init__(self, link: Link, command: CommandSubscribe) -> None:
        self.link = link
        self.command = command
        self.permits = 0
        self.epoch = command.consumer_epoch
        self.pending: dict[int, None] = {}
        """The entries that were pushed to it and are not acknowledged."""


class Subscription:
    """A subscription: what is acknowledged, what was pushed, and its consumers."""

    def __init__(self, topic: list[Stored], kind: int, position: int) -> None:
        self.topic = topic
        self.kind = kind
        self.acked: set[int] = set(range(position))
        self.unacked: dict[int, int] = {}
        """Of batches that are acknowledged in part."""
        self.next = position
        self.again: set[int] = set()
        self.redeliveries: defaultdict[int, int] = defaultdict(int)
        self.consumers: list[Consumer] = []
        self.turn = 0

    def remaining(self, number: int) -> int:
        """The messages of an entry that are not acknowledged."""
        return 0 if number in self.acked else self.unacked.get(number, full_set(self.topic[number].count))

    def dispatch(self) -> None:
        while (number := self._next_entry()) is not None:
            consumer = self._next_consumer()
            if consumer is None:
                return
            if number in self.again:
                self.again.discard(number)
            else:
                self.next = number + 1
            self._push(consumer, self.topic[number])

    def _next_entry(self) -> int | None:
        self.again = {number for number in self.again if number not in self.acked}
        if self.again:
            return min(self.again)
        while self.next < len(self.topic) and self.next in self.acked:
            self.next += 1
        return self.next if self.next < len(self.topic) else None

    def _next_consumer(self) -> Consumer | None:
        if self.kind in IN_ORDER:
            return next((each for each in self.consumers[:1] if each.permits > 0), None)
        for _ in self.consumers:
            self.turn += 1
            found = self.consumers[self.turn % len(self.consumers)]
            if found.permits > 0:
                return found
        return None

    def _push(self, consumer: Consumer, entry: Stored) -> None:
        remaining = self.remaining(entry.number)
        consumer.permits -= remaining.bit_count()
        consumer.pending[entry.number] = None
        command = pushed(
            entry.number,
            ledger_id=LEDGER,
            unacked=self.unacked.get(entry.number),
            redelivery_count=0 if self.kind in IN_ORDER else self.redeliveries[entry.number],
            epoch=consumer.epoch,
            consumer_id=consumer.command.consumer_id,
        )
        frame, _ = message_frame(command, entry.meta, entry.body)
        consumer.link.write(len(frame).to_bytes(4, "big") + frame)

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        if self.kind == FAILOVER:  # the others know it
            self._notify(consumer)

    def notify(self) -> None:
        """Notify the consumers of a Failover subscription which of them is active."""
        if self.kind == FAILOVER:
            for consumer in self.consumers:
                self._notify(consumer)

    def _notify(self, consumer: Consumer) -> None:
        is_active = consumer is self.consumers[0]
        consumer.link.send(
            CommandActiveConsumerChange(consumer_id=consumer.command.consumer_id, is_active=is_active)
        )

    def rotate(self) -> None:
        """Make another consumer of a Failover subscription the active one: it gets what is not acknowledged."""
        if len(self.consumers) > 1:
            self.consumers.append(self.consumers.pop(0))
            for consumer in self.consumers:
                consumer.pending.clear()
            self.notify()
            self._rewind()
            self.dispatch()

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._give_back(consumer, consumer.pending)
            if not self.consumers:
                self.redeliveries.clear()
            if self.kind in IN_ORDER:
                self._rewind()
            self.notify()
            self.dispatch()

    def _rewind(self) -> None:
        self.again.clear()
        self.next = min((n for n in range(len(self.topic)) if n not in self.acked), default=len(self.topic))

    def _give_back(self, consumer: Consumer, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            if consumer.pending.pop(number, 0) is None and number not in self.acked:
                self.again.add(number)

    def redeliver(self, consumer: Consumer, command: CommandRedeliverUnacknowledgedMessages) -> None:
        if self.kind in IN_ORDER:
            assert not command.message_ids
            consumer.epoch = command.consumer_epoch
            consumer.pending.clear()
            self._rewind()
        else:
            numbers = [one.entry_id for one in command.message_ids] or list(consumer.pending)
            assert len(numbers) == len(set(numbers)) <= 1000
            for number in numbers:
                if number in consumer.pending:
                    self.redeliveries[number] += 1
            self._give_back(consumer, numbers)
        self.dispatch()

    def ack(self, command: CommandAck) -> None:
        for one in command.message_id:
            entry = one.entry_id if one.entry_id < 1 << 63 else -1
            if command.ack_type == 1:
                for number in range(entry):
                    self._acked(number, 0)
            if entry >= 0:
                self._acked(entry, bits_of(one.ack_set))

    def _acked(self, number: int, unacked: int) -> None:
        left = self.remaining(number) & unacked
        if left:
            self.unacked[number] = left
            return
        self.acked.add(number)
        self.unacked.pop(number, None)
        for consumer in self.consumers:
            consumer.pending.pop(number, None)

    def seek(self, number: int, unacked: int = 0) -> None:
        """Continue at an entry, with `unacked` of its messages unless 0; in Shared subscriptions ack sets of batches survive, as in Pulsar."""
        self.acked = set(range(number))
        if self.kind in IN_ORDER:
            self.unacked.clear()
        if unacked and number < len(self.topic):
            self._acked(number, unacked)
        self.next = number
        self.again.clear()
        self.redeliveries.clear()


class Broker(BrokerModel):
    """`async with Broker() as broker`: listens at `url`."""

    def __init__(self, port: int = 6650) -> None:
        super().__init__(port)
        self.topics: defaultdict[str, list[Stored]] = defaultdict(list)
        """By local name, of a partition too."""
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self.refuse_subscribe: Callable[[CommandSubscribe], int | None] = lambda _: None
        """Returns an error's code."""
        self.refuse_ack: Callable[[CommandAck], int | None] = lambda _: None
        self.refuse_unsubscribe = False
        self.holds_acks = False
        """Whether acknowledgements are neither processed nor answered."""
        self.holds_seeks = False
        """Whether a seek is answered after the consumers have come back, by `answer_seeks`."""
        self.keeps_acks_in_batches = True
        """Whether a seek may name messages of a batch (`acknowledgmentAtBatchIndexLevelEnabled`)."""
        self.silent = False
        """Whether SUBSCRIBE is not answered."""
        self._held: list[tuple[Link, Command]] = []

    # --- what tests do ----------------------------------------------------------------------------------------------------

    def add(self, topic: str, *values: bytes | None, batch: bool = False, **fields: Any) -> int:
        """Store an entry with these values; return its number."""
        if batch or len(values) > 1:
            meta, body = metadata(num_messages_in_batch=len(values), **fields), batch_body(values)
        else:
            meta, body = metadata(**fields), values[0] or b""
        return self.store(topic, meta, body)

    def store(self, topic: str, meta: MessageMetadata, body: bytes) -> int:
        entries = self.topics[topic]
        entries.append(Stored(len(entries), meta, body))
        for (name, _), subscription in self.subscriptions.items():
            if name == topic:
                subscription.dispatch()
        return len(entries) - 1

    def subscription(self, topic: str, name: str = "s") -> Subscription:
        return self.subscriptions[topic, name]

    def consumer(self, topic: str = "t", name: str = "s") -> Consumer:
        [found] = self.subscription(topic, name).consumers
        return found

    def of(self, kind: type[Command]) -> list[Any]:
        """The commands of a type that have arrived."""
        return [command for command in self.commands if type(command) is kind]

    def unload(self, topic: str) -> None:
        """Close the consumers of a topic, as when it moves."""
        for (name, _), subscription in self.subscriptions.items():
            if name == topic:
                self._close_consumers(subscription)

    def answer_seeks(self) -> None:
        """Send the answers that were held."""
        held, self._held = self._held, []
        for link, answer in held:
            link.send(answer)

    def terminate(self, topic: str) -> None:
        """Notify the consumers that there is no more."""
        for consumer in self.subscription(topic).consumers:
            consumer.link.send(CommandReachedEndOfTopic(consumer_id=consumer.command.consumer_id))

    # --- its side of the protocol -----------------------------------------------------------------------------------------

    def _forget(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)
        for consumer in link.consumers.values():
            self._subscription_of(consumer).remove(consumer)
        link.consumers.clear()

    def _subscription_of(self, consumer: Consumer) -> Subscription:
        return self.subscriptions[local_name(consumer.command.topic), consumer.command.subscription]

    def _on_command(self, link: Link, command: Any) -> None:
        match command:
            case CommandSubscribe():
                self._on_subscribe(link, command)
            case CommandCloseConsumer(request_id=number):
                if (consumer := link.consumers.pop(command.consumer_id, None)) is not None:
                    self._subscription_of(consumer).remove(consumer)
                link.send(CommandSuccess(request_id=number))
            case _ if (consumer := link.consumers.get(getattr(command, "consumer_id", -1))) is not None:
                self._of_consumer(link, consumer, self._subscription_of(consumer), command)
            case _:
                super()._on_command(link, command)

    def _on_subscribe(self, link: Link, command: CommandSubscribe) -> None:
        topic = local_name(command.topic)
        code = self.refuse_subscribe(command)
        key = (topic, command.subscription)
        subscription = self.subscriptions.get(key)
        if code is None and subscription is not None and command.sub_type == 0 and subscription.consumers:
            code = 5
        if code is not None:
            link.send(CommandError(request_id=command.request_id, error=code, message="refused"))
            return
        if subscription is None or (not command.durable and not subscription.consumers):
            entries = self.topics[topic]
            position = 0 if command.initial_position else len(entries)
            if command.start_message_id is not None:
                position = _start(command.start_message_id, len(entries))
            subscription = self.subscriptions[key] = Subscription(entries, command.sub_type, position)
        consumer = link.consumers[command.consumer_id] = Consumer(link, command)
        subscription.add(consumer)
        if not self.silent:
            link.send(CommandSuccess(request_id=command.request_id))

    def _of_consumer(self, link: Link, consumer: Consumer, subscription: Subscription, command: Any) -> None:
        match command:
            case CommandFlow():
                assert command.message_permits > 0
                consumer.permits += command.message_permits
                subscription.dispatch()
            case CommandAck():
                self._on_ack(link, subscription, command)
            case CommandRedeliverUnacknowledgedMessages():
                subscription.redeliver(consumer, command)
            case CommandGetLastMessageId(request_id=number):
                last = MessageIdData(ledger_id=LEDGER, entry_id=(len(subscription.topic) - 1) % (1 << 64))
                link.send(CommandGetLastMessageIdResponse(last_message_id=last, request_id=number))
            case CommandSeek():
                self._on_seek(link, subscription, command)
            case CommandUnsubscribe(request_id=number) if self.refuse_unsubscribe:
                link.send(CommandError(request_id=number, error=NOT_ALLOWED, message="refused"))
            case CommandUnsubscribe(request_id=number):
                subscription.remove(consumer)
                del link.consumers[command.consumer_id]
                del self.subscriptions[local_name(consumer.command.topic), consumer.command.subscription]
                link.send(CommandSuccess(request_id=number))

    def _on_ack(self, link: Link, subscription: Subscription, command: CommandAck) -> None:
        if self.holds_acks:
            return
        code = self.refuse_ack(command)
        if code is None:
            subscription.ack(command)
        if command.request_id is not None:
            link.send(
                CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id, error=code)
            )

    def _on_seek(self, link: Link, subscription: Subscription, command: CommandSeek) -> None:
        self._close_consumers(subscription)
        if command.message_id is not None:
            number = _start(command.message_id, len(subscription.topic), inclusive=True)
            left = bits_of(command.message_id.ack_set) if self.keeps_acks_in_batches else 0
            subscription.seek(number, left)
        else:
            times = [entry.meta.publish_time for entry in subscription.topic]
            wanted = command.message_publish_time or 0
            subscription.seek(next((n for n, time in enumerate(times) if time >= wanted), len(times)))
        answer = CommandSuccess(request_id=command.request_id)
        if self.holds_seeks:
            self._held.append((link, answer))
        else:
            link.send(answer)

    def _close_consumers(self, subscription: Subscription) -> None:
        consumers: Sequence[Consumer] = list(subscription.consumers)
        for consumer in consumers:
            del consumer.link.consumers[consumer.command.consumer_id]
            consumer.link.send(CommandCloseConsumer(consumer_id=consumer.command.consumer_id, request_id=0))
        for consumer in consumers:
            subscription.remove(consumer)


def _start(one: MessageIdData, end: int, *, inclusive: bool = False) -> int:
    """The number of the first entry at, or after, an id."""
    if one.ledger_id >= (1 << 64) - 1:
        return 0
    if one.ledger_id > LEDGER:
        return end
    entry = one.entry_id if one.entry_id < 1 << 63 else one.entry_id - (1 << 64)
    return max(0, entry if inclusive or one.batch_index >= 0 else entry + 1)
