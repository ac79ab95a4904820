"""Seek: moves the subscription of a consumer to a message or a time.

The broker closes all consumers of the subscription, moves its position, and then answers; the reconnect may be done before the
answer is. So nothing is delivered from the request on until both are done, and nothing of before afterwards.

A position inside a batch is that of its entry with an ack set, from which the broker knows the messages before it as acknowledged
(`ServerCnx.handleSeek`), so that no other consumer of the subscription gets them. This consumer leaves them out in any case: a broker
whose `acknowledgmentAtBatchIndexLevelEnabled` is off ignores the set, and the size of a batch may not be known. A broker with
transactions keeps what was acknowledged of a batch in one of them, or in a Shared or Key_Shared subscription, and pushes only what
neither this nor the set leaves out, which may be nothing. So the set is left out as well if this consumer has acknowledged a part of the batch.
"""

from __future__ import annotations

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.pulsar.consumer.acks.unacked import UNKNOWN_END, EntryKey
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.receiving.arrivals import StartPosition
from asyncgroup.pulsar.wire.ack_set import MAX_SIZE, full_set, words_of
from asyncgroup.pulsar.wire.commands import CommandSeek, MessageIdData
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
    position = time = None
    if isinstance(id_or_time, MessageId):
        position = _position(consumer, id_or_time, inclusive=inclusive)
    else:
        time = id_or_time

    def command(request_id: int) -> CommandSeek:
        nonlocal is_sent
        is_sent = True
        return CommandSeek(
            consumer_id=consumer.id, request_id=request_id, message_id=position, message_publish_time=time
        )

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
            consumer.position.end_seek(start, last, LATEST if is_last else EARLIEST, position)
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


def _position(consumer: PulsarConsumer, target: MessageId, *, inclusive: bool) -> MessageIdData:
    """Return the position of a message as `ConsumerImpl.seekAsync` does, or that after it, which Java's client does not know."""
    if target[:2] in (EARLIEST[:2], LATEST[:2]):
        return target.data()
    chunk = target.first_chunk_id
    if chunk is not None:  # chunks of values that end after this one may be between its own
        return MessageIdData(ledger_id=chunk.ledger_id, entry_id=chunk.entry_id)
    ledger, entry, _, index = target
    size, first = target.batch_size, index if inclusive else index + 1  # the first message that is wanted
    if not inclusive and (index < 0 or first == size):
        return MessageIdData(ledger_id=ledger, entry_id=entry + 1)
    is_named = first > 0 and size is not None and size <= MAX_SIZE
    if not is_named or consumer.position.has_acked_in((ledger, entry)):
        return MessageIdData(ledger_id=ledger, entry_id=entry)
    assert size is not None
    left = full_set(size) & ~full_set(first)
    return MessageIdData(ledger_id=ledger, entry_id=entry, ack_set=words_of(left))
