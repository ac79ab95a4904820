"""Arrivals: what to do with an entry that the broker pushes. No I/O.

An entry becomes messages, or is dropped: acknowledged here, of an older epoch, before the start, waiting for a redelivery, a
chunk of an incomplete value, or unreadable. Each way out says how many permits the entry took, so that they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.consumer.acks.epochs import ConsumerEpoch
from asyncgroup.pulsar.consumer.acks.negative_acks import NegativeAcks
from asyncgroup.pulsar.consumer.acks.pending_acks import PendingAcks
from asyncgroup.pulsar.consumer.acks.unacked import AckedEntry, EntryKey, UnackedEntries
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.receiving.chunk_assembly import AssembledEntry, ChunkAssembly
from asyncgroup.pulsar.wire.ack_set import bits_of, full_set
from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData
from asyncgroup.pulsar.wire.entry import Entry, EntryError, decode_entry
from asyncgroup.pulsar.wire.frames import payload_bounds
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import MessageMetadata

__all__ = ["AFTER_ALL", "Arrivals", "Arrived", "StartPosition", "UnstoredArrivals", "permits_of"]


class Arrived(NamedTuple):
    """What an entry has become."""

    charged: int
    """Permits that the broker took for it."""
    messages: list[PulsarMessage]
    """What is to be delivered, in order."""
    acked: AckedEntry | None = None
    """What to acknowledge now: none of the messages is wanted, or none is left here."""
    error: EntryError | None = None
    """Why the entry, or the value that it completes, cannot be read."""
    bad_id: MessageId | None = None
    """The entry that cannot be read."""


class StartPosition(NamedTuple):
    """The first message that is wanted."""

    key: EntryKey
    first: int
    """Index in the entry's batch; above its last one: the entry after it."""

    @classmethod
    def at(cls, message: MessageId, *, inclusive: bool) -> StartPosition:
        """Return the position at a message, or after it; of a value in chunks at its first chunk, or after its last one."""
        if inclusive and (first := message.first_chunk_id) is not None:
            message = first
        index = max(message.batch_index, 0)
        if not inclusive:
            index = AFTER_ALL if message.batch_index < 0 else message.batch_index + 1
        return cls(message[:2], index)


AFTER_ALL: Final = 1 << 30
"""An index after all messages of any batch."""

_NONE: Final[list[PulsarMessage]] = []


class Arrivals:
    """The entries of one partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        unacked: UnackedEntries,
        acks: PendingAcks,
        nacks: NegativeAcks,
        epoch: ConsumerEpoch,
        chunks: ChunkAssembly,
        now: Callable[[], float],
        time_of_day: Callable[[], int],
        *,
        largest: int,
    ) -> None:
        """`now` returns the loop time, `time_of_day` that in ms; `largest` is the largest body in bytes, uncompressed."""
        self._topic = topic
        self._partition = partition
        self._unacked = unacked
        self._acks = acks
        self._nacks = nacks
        self._epoch = epoch
        self._chunks = chunks
        self._now = now
        self._time_of_day = time_of_day
        self._largest = largest
        self.start: StartPosition | None = None
        """Messages before it are not wanted; None if all are."""
        self.moved_to: EntryKey | None = None
        """The position to which this consumer has moved a durable subscription: entries before it come if that was moved back later."""
        self.is_start_known = False
        """Whether the broker has left out the messages before the start of its batch, unless the subscription was moved back later."""
        self.is_start_ignored = False
        """Whether the broker has pushed some of them nevertheless: it keeps no acknowledgements in batches."""
        self.attachment = 0
        """The number of the registration at a broker."""

    def arrive(self, command: CommandMessage, frame: bytes | bytearray, at: int) -> Arrived:
        """Take in a MESSAGE frame, whose command ends at `at`."""
        try:
            entry = decode_entry(command, frame, at, self._partition, self._largest)
        except EntryError as error:
            bad = MessageId.of(command.message_id, self._partition)
            return Arrived(_charged(error.count, command.ack_set), _NONE, error=error, bad_id=bad)
        charged = _charged(entry.count, command.ack_set)
        key = entry.id[:2]
        missing = self._acks.unacked_of(key)
        if not missing or self._epoch.is_old(entry.epoch):
            return Arrived(charged, _NONE)
        metadata = entry.metadata
        if metadata.marker_type is not None:  # the broker's own, which it should keep for itself
            return Arrived(charged, _NONE, acked=self._unacked.ack(entry.id))
        if metadata.num_chunks_from_msg is not None and metadata.num_chunks_from_msg > 1:
            return self._chunk(entry, charged)
        unwanted = self._unwanted(entry)
        if unwanted is None:
            return Arrived(charged, _NONE, acked=self._unacked.ack(entry.id))
        # what is acknowledged here is not wanted again, also if nothing was left to acknowledge, so that the entry is forgotten
        bits = self._unacked.arrive(entry, unwanted | (entry.present & ~missing))
        if not bits:
            # without index acknowledgements the broker does not know what was acknowledged here, nor would it learn of the rest
            return Arrived(charged, _NONE, acked=self._unacked.end_if_done(key))
        return Arrived(charged, self._messages(entry, bits))

    def _chunk(self, entry: Entry, charged: int) -> Arrived:
        try:
            whole = self._chunks.add(entry, self._now(), self._time_of_day())
        except EntryError as error:
            return Arrived(charged, _NONE, error=error, bad_id=entry.id)
        if whole is None:
            return Arrived(charged, _NONE)
        if self._unwanted(whole) is None:  # not before: chunks of other values may be between its own
            self._chunks.acks += whole.chunk_ids
            return Arrived(charged, _NONE)
        self._unacked.add_chunks(whole.chunk_ids)
        return Arrived(charged, self._messages(whole, 1))

    def _messages(self, entry: Entry | AssembledEntry, bits: int) -> list[PulsarMessage]:
        topic, attachment = self._topic, self.attachment
        if entry.count == 1:
            found = [PulsarMessage(topic, entry, 0, attachment)] if bits else []
        elif bits == full_set(entry.count):
            found = [PulsarMessage(topic, entry, index, attachment) for index in range(entry.count)]
        else:
            found = [
                PulsarMessage(topic, entry, index, attachment)
                for index in range(entry.count)
                if bits >> index & 1
            ]
        if len(self._nacks):
            return [message for message in found if not self._nacks.holds(message.message_id)]
        return found

    def _unwanted(self, entry: Entry) -> int | None:
        """Return the messages before the start, as bits; None if that is the whole entry.

        There is no start any more if another consumer, or the admin API, has moved the subscription back.
        """
        start, key = self.start, entry.id[:2]
        if start is None or key > start.key:
            return 0
        if self.moved_to is not None and key < self.moved_to:
            self.start = None
            return 0
        if key < start.key or start.first >= entry.count:
            return None
        before = full_set(start.first)
        if self.is_start_known:
            return before & ~entry.unacked
        if before & entry.unacked:
            self.is_start_ignored = True
        return before


class UnstoredArrivals(Arrivals):
    """The entries of a topic that is not persistent, as they are pushed.

    Brokers give all of them the id 0:0 (`NonPersistentTopic.publishMessage`). They are counted, because with equal ids each would be
    taken for one that is acknowledged already.
    """

    _count = 0

    def arrive(self, command: CommandMessage, frame: bytes | bytearray, at: int) -> Arrived:
        """Take in a MESSAGE frame, whose command ends at `at`."""
        pushed = command.message_id
        command.message_id = MessageIdData(
            ledger_id=pushed.ledger_id, entry_id=self._count, partition=pushed.partition
        )
        self._count += 1
        return super().arrive(command, frame, at)


def permits_of(command: CommandMessage, frame: bytes | bytearray, at: int) -> int:
    """Return the permits that the broker took for an entry that is not read, as far as its metadata can be."""
    count = 1
    try:
        parts = payload_bounds(frame, at, check=False)
        count = max(1, MessageMetadata.decode(frame, *parts.metadata).num_messages_in_batch or 1)
    except DecodeError:
        pass
    return _charged(count, command.ack_set)


def _charged(count: int, ack_set: Sequence[int]) -> int:
    """Return the permits that the broker takes for an entry: messages that are not acknowledged, by its ack set."""
    if not ack_set:
        return count
    bits = bits_of(ack_set)
    # a malformed batch may claim any count
    return (bits & full_set(min(count, bits.bit_length()))).bit_count()
