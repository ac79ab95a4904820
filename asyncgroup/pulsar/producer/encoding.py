"""Encode messages into the frames of SEND: one message, a batch, the chunks of a value.

A body is compressed if it is longer than `compression_min_size`, and kept as it is if that makes it longer. A batch of one
message is sent as a plain message, as Java's client does: it is shorter, and its id has no index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from asyncgroup.errors import InvalidRecordError
from asyncgroup.model import MillisClock
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage
from asyncgroup.pulsar.producer.pending_messages import PendingSend
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire.batch import append_message
from asyncgroup.pulsar.wire.commands import CommandSend
from asyncgroup.pulsar.wire.compression import COMPRESSIONS, compress_body
from asyncgroup.pulsar.wire.frames import encode_send
from asyncgroup.pulsar.wire.metadata import MessageMetadata

__all__ = ["ChunkedValue", "MessageEncoder", "batch_body"]

_LAST_SEQUENCE_ID: Final = 2**63 - 1
_MAX_CHUNKS: Final = 2**31 - 1
_NONE: Final = COMPRESSIONS["none"]


class ChunkedValue(NamedTuple):
    """A value that takes several frames."""

    payload: bytes | bytearray
    compression: int
    chunk_size: int
    """Bytes of the payload in each frame but the last one."""
    chunks: int


class MessageEncoder:
    """Encodes the messages of one producer. `clock` returns the publish time in ms."""

    def __init__(
        self, producer_id: int, compression: str, compression_min_size: int, clock: MillisClock
    ) -> None:
        self.producer_name = ""
        """Known when the broker has registered the producer."""
        self._producer_id = producer_id
        self._compression = COMPRESSIONS[compression]
        self._min_size = compression_min_size
        self._clock = clock

    # --- one message ----------------------------------------------------------------------------------------------

    def encode_message(
        self, message: OutgoingMessage, created_at: float, *, maybe_duplicate: bool = False
    ) -> PendingSend:
        """Return a message outside of a batch."""
        sequence_id = _number(message)
        kind, payload = self._compressed(message.value or b"")
        metadata = self._metadata(message, kind).encode()
        command = CommandSend(producer_id=self._producer_id, sequence_id=sequence_id)
        if message.transaction is not None:
            _mark(command, message.transaction)
        return PendingSend(
            encode_send(command, metadata, payload),
            len(metadata) + len(payload),
            sequence_id,
            sequence_id,
            (message.receiver,),
            message.size,
            created_at,
            in_transaction=message.transaction is not None,
            maybe_duplicate=maybe_duplicate,
        )

    # --- a batch --------------------------------------------------------------------------------------------------

    def encode_batch(
        self, messages: Sequence[OutgoingMessage], created_at: float, max_size: int, *, by_key: bool = False
    ) -> list[PendingSend]:
        """Return the frames of a batch; more than one only if it does not fit `max_size` bytes.

        `by_key`: the messages of another key may have numbers between these, and a broker with deduplication would drop this
        batch if it had a first and a last number. So it has its last number only, as with Java's client.
        """
        if len(messages) == 1:
            return [self.encode_message(messages[0], created_at)]
        first, last = messages[0], messages[-1]
        highest = _number(last)
        sequence_id = highest if by_key else _number(first)
        body = batch_body(messages)
        kind, payload = self._compressed(body)
        metadata = MessageMetadata(
            producer_name=self.producer_name,
            sequence_id=sequence_id,
            publish_time=self._clock(),
            partition_key=first.key,
            partition_key_b64_encoded=first.is_base64,
            ordering_key=first.ordering_key,
            compression=kind,
            uncompressed_size=len(body),
            num_messages_in_batch=len(messages),
            highest_sequence_id=0 if by_key else highest,
        )
        command = CommandSend(
            producer_id=self._producer_id,
            sequence_id=sequence_id,
            num_messages=len(messages),
            highest_sequence_id=0 if by_key else highest,
        )
        if first.transaction is not None:  # and of the others: a batch has the messages of one transaction
            _mark(command, first.transaction)
            _mark(metadata, first.transaction)
        head = metadata.encode()
        wire_size = len(head) + len(payload)
        if wire_size > max_size:
            middle = len(messages) // 2
            return [
                *self.encode_batch(messages[:middle], created_at, max_size, by_key=by_key),
                *self.encode_batch(messages[middle:], created_at, max_size, by_key=by_key),
            ]
        return [
            PendingSend(
                encode_send(command, head, payload),
                wire_size,
                sequence_id,
                highest,
                [message.receiver for message in messages],
                sum(message.size for message in messages),
                created_at,
                is_batch=True,
                in_transaction=first.transaction is not None,
            )
        ]

    # --- chunks ---------------------------------------------------------------------------------------------------

    def cut(self, message: OutgoingMessage, max_size: int) -> ChunkedValue:
        """Return how a value is cut into frames of at most `max_size` bytes; one chunk if it fits as it is.

        The whole is compressed before it is cut. Raises InvalidRecordError if its metadata alone does not fit. The message
        has no sequence id yet, as there must be room for all chunks before: the largest one is reckoned with.
        """
        kind, payload = self._compressed(message.value or b"")
        whole = self._metadata(message, kind, _LAST_SEQUENCE_ID)
        if len(whole.encode()) + len(payload) <= max_size:
            return ChunkedValue(payload, kind, max_size, 1)
        largest = self._metadata(message, kind, _LAST_SEQUENCE_ID)
        self._add_chunk(largest, _LAST_SEQUENCE_ID, _MAX_CHUNKS, _MAX_CHUNKS, len(payload))
        chunk_size = max_size - len(largest.encode())
        if chunk_size <= 0:
            raise InvalidRecordError(
                "size", max_size - chunk_size, f"metadata smaller than {max_size} bytes, the limit of a frame"
            )
        return ChunkedValue(payload, kind, chunk_size, -(-len(payload) // chunk_size))

    def encode_chunks(
        self,
        message: OutgoingMessage,
        value: ChunkedValue,
        created_at: float,
        *,
        maybe_duplicate: bool = False,
    ) -> list[PendingSend]:
        """Return the frames of a value; the last one holds its bytes of the limits, and has its receiver."""
        sequence_id = _number(message)
        command = CommandSend(producer_id=self._producer_id, sequence_id=sequence_id, is_chunk=True)
        if message.transaction is not None:
            _mark(command, message.transaction)
        metadata = self._metadata(message, value.compression)
        sends = []
        view = memoryview(value.payload)
        for number in range(value.chunks):
            payload = bytes(view[number * value.chunk_size : (number + 1) * value.chunk_size])
            self._add_chunk(metadata, sequence_id, number, value.chunks, len(value.payload))
            encoded = metadata.encode()
            is_last = number == value.chunks - 1
            sends.append(
                PendingSend(
                    encode_send(command, encoded, payload),
                    len(encoded) + len(payload),
                    sequence_id,
                    sequence_id,
                    (message.receiver,) if is_last else (),
                    message.size if is_last else 0,
                    created_at,
                    in_transaction=message.transaction is not None,
                    maybe_duplicate=maybe_duplicate,
                    chunk=number,
                    chunks=value.chunks,
                )
            )
        return sends

    def _add_chunk(
        self, metadata: MessageMetadata, sequence_id: int, chunk: int, count: int, size: int
    ) -> None:
        metadata.uuid = f"{self.producer_name}-{sequence_id}"
        metadata.chunk_id = chunk
        metadata.num_chunks_from_msg = count
        metadata.total_chunk_msg_size = size

    # --- parts ----------------------------------------------------------------------------------------------------

    def _metadata(
        self, message: OutgoingMessage, compression: int, sequence_id: int | None = None
    ) -> MessageMetadata:
        metadata = MessageMetadata(
            producer_name=self.producer_name,
            sequence_id=_number(message) if sequence_id is None else sequence_id,
            publish_time=self._clock(),
            properties=message.properties,
            partition_key=message.key,
            compression=compression,
            uncompressed_size=len(message.value or b""),
            event_time=message.event_time,
            partition_key_b64_encoded=message.is_base64,
            ordering_key=message.ordering_key,
            deliver_at_time=message.deliver_at,
            null_value=message.value is None,
        )
        if message.transaction is not None:
            _mark(metadata, message.transaction)
        return metadata

    def _compressed(self, body: bytes | bytearray) -> tuple[int, bytes | bytearray]:
        if self._compression == _NONE or len(body) <= self._min_size:
            return _NONE, body
        compressed = compress_body(self._compression, body)
        return (self._compression, compressed) if len(compressed) < len(body) else (_NONE, body)


def batch_body(messages: Sequence[OutgoingMessage]) -> bytearray:
    """Return the body of a batch: for each message the size of its metadata, its metadata and its payload."""
    body = bytearray()
    for message in messages:
        append_message(
            body,
            message.value,
            sequence_id=message.sequence_id,
            partition_key=message.key,
            partition_key_b64_encoded=message.is_base64,
            ordering_key=message.ordering_key,
            event_time=message.event_time,
            properties=message.properties,
        )
    return body


def _mark(part: CommandSend | MessageMetadata, transaction: TxnId) -> None:
    part.txnid_most_bits, part.txnid_least_bits = transaction


def _number(message: OutgoingMessage) -> int:
    number = message.sequence_id
    assert number is not None, "a message is numbered before it is encoded"
    return number
