"""SendQueue: the messages of a producer for one topic or partition, from their acceptance to their receipt.

All of it is synchronous: it numbers, batches and encodes messages, writes frames to the connection that it is given, and
compares what the broker answers. The caller keeps the timers, reserves and frees memory, and owns the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from asyncgroup.errors import AsyncGroupError, InvalidRecordError
from asyncgroup.lifecycle import copy_error
from asyncgroup.pulsar.producer.batch_container import BatchContainer
from asyncgroup.pulsar.producer.batch_reports import BatchReports
from asyncgroup.pulsar.producer.encoding import ChunkedValue, MessageEncoder
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage
from asyncgroup.pulsar.producer.pending_messages import PendingMessages, PendingSend, ReceiptMatch
from asyncgroup.pulsar.producer.sequence_ids import SequenceIds
from asyncgroup.pulsar.send_receiver import SendReceiver
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire.commands import CommandSendReceipt
from asyncgroup.pulsar.wire.frames import is_intact
from asyncgroup.pulsar.wire.message_id import BatchMessageId, ChunkMessageId, MessageId

__all__ = ["FrameWriter", "SendQueue"]

_new_id: Final = tuple.__new__
_ALL_BITS: Final = (1 << 64) - 1
_DUPLICATE: Final = MessageId(-1, -1)


class FrameWriter(Protocol):
    """The part of a connection that a queue uses."""

    max_message_size: int

    def send(self, *pieces: bytes) -> None:
        """Write, without waiting."""


class SendQueue:
    """Messages, the open batch, and the pending sends.

    `on_done(messages, size, lost, error)` is called for each send that is done: it frees the limits, and if `error` is not
    None, counts the `lost` messages whose result has no receiver. `container` is None without batches.
    """

    def __init__(
        self,
        encoder: MessageEncoder,
        ids: SequenceIds,
        container: BatchContainer | None,
        on_done: Callable[[int, int, int, Exception | None], None],
        *,
        partition: int,
        max_batch_size: int,
        by_key: bool = False,
        reports: BatchReports | None = None,
    ) -> None:
        self.ids = ids
        self.pending = PendingMessages()
        self.writer: FrameWriter | None = None
        """The connection on which the broker has registered the producer; None while there is none."""
        self.max_message_size = 5 * 1024 * 1024
        self.batch_since: float | None = None
        """When the first message of the open batch was added, None without messages."""
        self._transaction: TxnId | None = None  # of the messages of the open batch
        self._encoder = encoder
        self._container = container
        self._on_done = on_done
        self._partition = partition
        self._max_batch_size = max_batch_size
        self._by_key = by_key
        self._reports = reports
        self._first_chunk: tuple[int, MessageId] = -1, _DUPLICATE
        """The number and the id of the first chunk that was stored last."""

    def __repr__(self) -> str:
        state = "registered" if self.writer is not None else "not registered"
        return f"<SendQueue {state}: {self.pending}, {self._container}>"

    @property
    def is_idle(self) -> bool:
        """Whether no message is in the open batch or pending."""
        return self.batch_since is None and not self.pending

    @property
    def messages(self) -> int:
        """Number of messages without receipt."""
        return sum(send.count for send in self.pending) + (self._container.count if self._container else 0)

    # --- messages in ----------------------------------------------------------------------------------------------

    def add(self, message: OutgoingMessage, now: float) -> bool:
        """Accept a message; return whether sends were written because of it, and not only the open batch has grown.

        Raises InvalidRecordError for one that is larger than a frame: nothing was accepted then.
        """
        container = self._container
        if container is None or message.deliver_at is not None or message.size > self._max_batch_size:
            self._add_alone(message, now)
            return True
        message.sequence_id, maybe_duplicate = self.ids.assign(message.sequence_id)
        if maybe_duplicate:
            self.close_batch()
            self._push([self._encoder.encode_message(message, now, maybe_duplicate=True)])
            return True
        closes = not container.fits(message.size) or (
            message.transaction is not self._transaction and self.batch_since is not None
        )
        if closes:
            self.close_batch()
        is_full = container.add(message)
        if self.batch_since is None:
            self.batch_since = now
            self._transaction = message.transaction
        if is_full:
            self.close_batch()
        return closes or is_full

    def add_chunks(self, message: OutgoingMessage, value: ChunkedValue, now: float) -> None:
        """Accept a value that was cut; there is room for all its chunks."""
        self.close_batch()
        message.sequence_id, maybe_duplicate = self.ids.assign(message.sequence_id)
        self._push(self._encoder.encode_chunks(message, value, now, maybe_duplicate=maybe_duplicate))

    def close_batch(self) -> None:
        """Encode and write the messages of the open batch."""
        container, since = self._container, self.batch_since
        if container is None or since is None:
            return
        self.batch_since = None
        for messages in container.take():
            try:
                sends = self._encoder.encode_batch(
                    messages, since, self.max_message_size, by_key=self._by_key
                )
            except Exception as error:  # noqa: BLE001  raised here, it would reach another caller or a timer
                self._fail_messages(messages, since, error)
            else:
                self._push(sends)

    def _add_alone(self, message: OutgoingMessage, now: float) -> None:
        self.close_batch()
        given = message.sequence_id
        pushed = self.ids.last_pushed
        number = given if given is not None else self.ids.next
        message.sequence_id = number
        send = self._encoder.encode_message(message, now, maybe_duplicate=number <= pushed)
        if send.wire_size > self.max_message_size:
            raise self._too_large(send.wire_size)
        self.ids.assign(given)
        self._push([send])

    def _push(self, sends: Iterable[PendingSend]) -> None:
        writer = self.writer
        for send in sends:
            if send.wire_size > self.max_message_size:
                self._fail(send, partial(self._too_large, send.wire_size))
                continue
            self.pending.push(send)
            if writer is not None:
                send.attempts += 1
                writer.send(*send.pieces)

    # --- what the broker answers ----------------------------------------------------------------------------------

    def receive(self, receipt: CommandSendReceipt) -> bool:
        """Process a receipt; return False if one before it was lost, so that the connection must be closed."""
        send = self.pending.receive(receipt.sequence_id, receipt.highest_sequence_id)
        if isinstance(send, ReceiptMatch):
            return send is ReceiptMatch.LATE
        self.ids.store(send.highest_sequence_id)
        if send.receivers:
            self._deliver(send, self._message_id(receipt))
        elif not send.chunk:
            self._first_chunk = send.number, self._message_id(receipt)
        self._on_done(send.count, send.size, 0, None)
        if self._reports is not None:
            self._reports.done(send, None)
        return True

    def is_damaged(self, sequence_id: int) -> bool:
        """Return whether the bytes of a pending send no longer match their checksum, so that sending them again is of no use."""
        send = self.pending.find(sequence_id)
        return send is not None and not is_intact(send.pieces)

    def refuse(self, sequence_id: int, make_error: Callable[[], Exception]) -> bool:
        """Fail the send that the broker refuses; return whether there was one."""
        sends = self.pending.refuse(sequence_id)
        for send in sends:
            # what is refused is not stored; an earlier attempt without an answer may be
            self._fail(send, make_error, refusals=1)
        return bool(sends)

    def _message_id(self, receipt: CommandSendReceipt) -> MessageId:
        data = receipt.message_id
        if data is None or (data.ledger_id == _ALL_BITS and data.entry_id == _ALL_BITS):
            return _DUPLICATE._replace(partition=self._partition)  # dropped: the broker has it already
        return MessageId(data.ledger_id, data.entry_id, self._partition)

    def _deliver(self, send: PendingSend, message_id: MessageId) -> None:
        if not send.is_batch:
            (receiver,) = send.receivers
            if receiver is not None and not receiver.done():
                receiver.set_result(message_id if send.chunks == 1 else self._value_id(send, message_id))
            return
        ledger, entry, partition, _ = message_id
        size = len(send.receivers)
        for index, receiver in enumerate(send.receivers):
            if receiver is not None and not receiver.done():
                # not by the class, which would be one call more for each message
                found = _new_id(BatchMessageId, (ledger, entry, partition, index))
                found.batch_size = size
                receiver.set_result(found)

    def _value_id(self, last_chunk: PendingSend, last: MessageId) -> MessageId:
        """Return the id of a value in chunks from that of its last one."""
        number, first = self._first_chunk
        if number != last_chunk.number - last_chunk.chunk or _DUPLICATE[:2] in (first[:2], last[:2]):
            return last  # the broker did not store the value now
        return ChunkMessageId(last, first)

    # --- connections ----------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """There is no connection: what is accepted waits for the next one."""
        self.writer = None

    def attach(self, writer: FrameWriter, max_message_size: int | None = None) -> int:
        """Write all pending sends to a new connection in their order; return their number.

        Sends that are larger than this broker allows fail. From now on sends are written at once.
        """
        self.max_message_size = writer.max_message_size if max_message_size is None else max_message_size
        for send in self.pending.take(lambda send: send.wire_size > self.max_message_size):
            self._fail(send, partial(self._too_large, send.wire_size))
        for send in self.pending:
            send.attempts += 1
            writer.send(*send.pieces)
        self.writer = writer
        return len(self.pending)

    # --- failures -------------------------------------------------------------------------------------------------

    def expire(self, created_until: float, make_error: Callable[[], Exception]) -> int:
        """Fail the sends that were created at this time or before; return their number.

        Java's client fails all that are pending instead. The later ones keep their order among themselves.
        """
        expired = self.pending.expire(created_until)
        for send in expired:
            self._fail(send, make_error)
        return len(expired)

    def fail_unanswered_in_transactions(self, make_error: Callable[[], Exception]) -> int:
        """Fail the sends of transactions that may be in the log already; return their number."""
        found = self.pending.take(lambda send: send.in_transaction and send.attempts > 0)
        for send in found:
            self._fail(send, make_error)
        return len(found)

    def fail_all(self, make_error: Callable[[], Exception]) -> int:
        """Fail everything that is pending or in the open batch; return the number of sends."""
        sends = self.pending.take_all()
        for send in sends:
            self._fail(send, make_error)
        batches = self._container.take() if self._container is not None else []
        since, self.batch_since = self.batch_since, None
        for messages in batches:
            self._fail_messages(messages, since or 0.0, make_error())
        return len(sends) + len(batches)

    def _fail(self, send: PendingSend, make_error: Callable[[], Exception], refusals: int = 0) -> None:
        error = make_error()
        if isinstance(error, AsyncGroupError):
            error.may_be_written = send.attempts > refusals
        self._fail_receivers(send.receivers, send.size, error, send.count)
        if self._reports is not None:
            self._reports.done(send, error)

    def _fail_messages(self, messages: Sequence[OutgoingMessage], since: float, error: Exception) -> None:
        """Fail messages that have no frame; the first was added at `since`."""
        size = sum(message.size for message in messages)
        self._fail_receivers([message.receiver for message in messages], size, error)
        if self._reports is not None:
            self._reports.refused(messages, since, error)

    def _fail_receivers(
        self, receivers: Sequence[SendReceiver | None], size: int, error: Exception, count: int | None = None
    ) -> None:
        lost = 0
        is_first = True
        for receiver in receivers:
            if receiver is None:
                lost += 1
            elif not receiver.done():
                # each caller gets a separate error: its traceback belongs to that caller
                receiver.set_exception(error if is_first else copy_error(error))
                is_first = False
        self._on_done(len(receivers) if count is None else count, size, lost, error)

    def _too_large(self, size: int) -> InvalidRecordError:
        return InvalidRecordError(
            "size",
            size,
            f"at most {self.max_message_size} bytes with metadata, the broker's limit; or chunking=True",
        )
