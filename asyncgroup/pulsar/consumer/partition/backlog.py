"""The end of a subscription's backlog: up to which message a consumer has something to read now."""

from __future__ import annotations

from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.wire.commands import CommandGetLastMessageId
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["end_of_backlog"]


async def end_of_backlog(consumer: PulsarConsumer) -> MessageId | None:
    """Return the id of the last message of a partition; None if the subscription has nothing to read up to it.

    A topic whose messages were deleted still names the last one: the position of the subscription shows that it is read.
    Raises as `PulsarConsumer.request` does.
    """
    answer = await consumer.request(
        "GET_LAST_MESSAGE_ID",
        lambda number: CommandGetLastMessageId(consumer_id=consumer.id, request_id=number),
    )
    last = MessageId.of(answer.last_message_id, consumer.partition)
    if last.entry_id < 0:
        return None
    read = answer.consumer_mark_delete_position
    if read is not None and MessageId.of(read)[:2] >= last[:2]:
        return None
    return last
