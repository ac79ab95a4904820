"""Seek: moves the subscription of a consumer to a message or a time.

The broker closes all consumers of the subscription, moves its position, and then answers; the reconnect may be done before the
answer is. So nothing is delivered from the request on until both are done, and nothing of before afterwards.
"""

from __future__ import annotations

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.pulsar.consumer.acks.unacked import UNKNOWN_END, EntryKey
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.receiving.arrivals import StartPosition
from asyncgroup.pulsar.wire.commands import CommandSeek
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId, is_message_id

__all__ = ["seek", "start_of"]


async def seek(
    consumer: PulsarConsumer, target: MessageId | PulsarMessage | int, *, inclusive: bool = True
) -> None:
    """Continue at a message (or after it), at EARLIEST or LATEST, or at a publish time in ms.

    Retried until `operation_timeout`. After the move it waits as long again for the broker to accept the consumer: a RequestTimedOut
    may mean that another consumer has the subscription. Raises PulsarServerError, TransportError, ClosedError; UsageError during
    another seek; ConfigError for another target, and for an id after the last message, which is of another topic.
    """
    start = start_of(target, inclusive=inclusive)
    id_or_time = target.message_id if isinstance(target, PulsarMessage) else target
    is_sent = is_moved = False

    def command(request_id: int) -> CommandSeek:
        nonlocal is_sent
        is_sent = True
        return _command(consumer.id, request_id, id_or_time)

    consumer.position.begin_seek()
    try:
        last = await _last_entry(consumer)
        if start is not None and start.key > last:
            raise _foreign(consumer, id_or_time, last)
        await consumer.request("SEEK", command)
        is_moved = True
    finally:
        if is_moved:
            is_last = isinstance(target, MessageId) and target[:2] == LATEST[:2]
            consumer.position.end_seek(start, last, LATEST if is_last else EARLIEST)
        elif is_sent:  # it may be moved
            consumer.position.end_seek(None, last)
            consumer.outcomes.redeliver_all()
        else:
            consumer.position.give_up_seek()
    # another consumer may have the subscription by now, as Exclusive ones that wait for it
    await consumer.attached_connection()


def start_of(target: MessageId | PulsarMessage | int, *, inclusive: bool) -> StartPosition | None:
    """Return the first message that is wanted; None if the broker's position says it. Raises ConfigError."""
    if isinstance(target, PulsarMessage):
        return StartPosition.at(target.message_id, inclusive=inclusive)
    if is_message_id(target) and isinstance(target, MessageId):
        return (
            None
            if target[:2] in (EARLIEST[:2], LATEST[:2])
            else StartPosition.at(target, inclusive=inclusive)
        )
    if type(target) is not int or not 0 <= target < 1 << 63:
        raise ConfigError("target", target, "a message, a MessageId, or a publish time in ms")
    return None


async def _last_entry(consumer: PulsarConsumer) -> EntryKey:
    """Return the last entry that may have been acknowledged in part before the seek."""
    try:
        return (await consumer.last_message_id())[:2]
    except AsyncGroupError:
        return UNKNOWN_END


def _foreign(consumer: PulsarConsumer, target: object, last: EntryKey) -> ConfigError:
    shown = str(target) if isinstance(target, MessageId) else target
    end = "it is empty" if last[1] < 0 else f"the last one is {MessageId(*last, consumer.partition)}"
    return ConfigError("target", shown, f"a message of {consumer.topic}; {end}")


def _command(consumer_id: int, request_id: int, target: MessageId | int) -> CommandSeek:
    if isinstance(target, MessageId):
        first = target.first_chunk_id or target  # as in ConsumerImpl.seekAsync
        whole = MessageId(first.ledger_id, first.entry_id)
        return CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=whole.data())
    return CommandSeek(consumer_id=consumer_id, request_id=request_id, message_publish_time=target)
