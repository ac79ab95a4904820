"""Pending sends: what was written to a broker, or waits for a connection, until its receipt.

They are FIFO, and a broker answers in this order, except that a duplicate is answered at once. Receipts, refusals and timeouts
all remove here, after a comparison of sequence ids: a late receipt of a send that timed out meets the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Final

from asyncgroup.pulsar.send_receiver import SendReceiver

__all__ = ["PendingMessages", "PendingSend", "ReceiptMatch"]

_NONE: Final = (1 << 64) - 1
"""-1 as the field of a receipt holds it."""


class ReceiptMatch(Enum):
    """Why a receipt has no pending send."""

    LATE = auto()
    """Its send has timed out."""
    AHEAD = auto()
    """A receipt before it was lost: the connection is to be closed, and all is sent again."""


class PendingSend:
    """A frame that is ready to be written, and what it contains."""

    __slots__ = (
        "attempts",
        "chunk",
        "chunks",
        "count",
        "created_at",
        "highest_sequence_id",
        "in_transaction",
        "is_batch",
        "maybe_duplicate",
        "number",
        "pieces",
        "receivers",
        "sequence_id",
        "size",
        "wire_size",
    )

    def __init__(
        self,
        pieces: tuple[bytes, bytes],
        wire_size: int,
        sequence_id: int,
        highest_sequence_id: int,
        receivers: Sequence[SendReceiver | None],
        size: int,
        created_at: float,
        *,
        is_batch: bool = False,
        in_transaction: bool = False,
        maybe_duplicate: bool = False,
        chunk: int = 0,
        chunks: int = 1,
    ) -> None:
        self.pieces = pieces
        self.wire_size = wire_size
        """Bytes of metadata and payload, which the broker limits."""
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.receivers = receivers
        """Of each message; empty for a chunk that is not the last one of its value."""
        self.count = len(receivers) or 1
        """Number of messages; a chunk counts as one."""
        self.size = size
        """Bytes of the limits that it holds."""
        self.created_at = created_at
        self.is_batch = is_batch
        self.in_transaction = in_transaction
        self.maybe_duplicate = maybe_duplicate
        self.chunk = chunk
        self.chunks = chunks
        """Number of chunks of the value; 1 if it is whole."""
        self.attempts = 0
        """How often it was written; above 0 it may be in the log."""
        self.number = 0
        """Position among all sends of this producer; see `PendingMessages.first_number`."""

    def __repr__(self) -> str:
        part = f", chunk {self.chunk + 1} of {self.chunks}" if self.chunks > 1 else ""
        return f"<PendingSend {self.sequence_id}..{self.highest_sequence_id}: {self.count} messages{part}>"

    @property
    def is_last_chunk(self) -> bool:
        """Whether the value is complete with it."""
        return self.chunk == self.chunks - 1

    def is_answered_by(self, sequence_id: int, highest: int) -> bool:
        """Return whether a receipt with these numbers is its own; some brokers answer a batch by its last number."""
        if sequence_id == self.sequence_id:
            # of a single message the broker says -1, and brokers from before batches had two numbers say 0
            return highest <= sequence_id or highest in (self.highest_sequence_id, _NONE)
        return self.is_batch and sequence_id == self.highest_sequence_id


class PendingMessages:
    """The pending sends of a producer for one topic or partition."""

    def __init__(self) -> None:
        self._sends: deque[PendingSend] = deque()
        self._duplicates = 0  # possible ones among them
        self._next_number = 0

    def __repr__(self) -> str:
        return f"<PendingMessages {len(self._sends)}>"

    def __len__(self) -> int:
        return len(self._sends)

    def __iter__(self) -> Iterator[PendingSend]:
        return iter(self._sends)

    @property
    def next_number(self) -> int:
        """The number of the next send."""
        return self._next_number

    @property
    def first_number(self) -> int:
        """The number of the oldest pending send: all sends before it are done. `next_number` without any."""
        return self._sends[0].number if self._sends else self._next_number

    @property
    def oldest(self) -> float | None:
        """When the oldest one was created, None without any."""
        return self._sends[0].created_at if self._sends else None

    def push(self, send: PendingSend) -> None:
        """Append one."""
        send.number = self._next_number
        self._next_number += 1
        self._duplicates += send.maybe_duplicate
        self._sends.append(send)

    def receive(self, sequence_id: int, highest: int) -> PendingSend | ReceiptMatch:
        """Remove and return the send of a receipt."""
        sends = self._sends
        if not sends:
            return ReceiptMatch.LATE
        head = sends[0]
        if head.is_answered_by(sequence_id, highest):
            return self._pop()
        if self._duplicates and (send := self._duplicate(sequence_id)) is not None:
            self._remove([send])
            return send
        return ReceiptMatch.LATE if sequence_id < head.sequence_id else ReceiptMatch.AHEAD

    def find(self, sequence_id: int) -> PendingSend | None:
        """Return the oldest send with this number as its first or last one."""
        for send in self._sends:
            if sequence_id in (send.sequence_id, send.highest_sequence_id):
                return send
        return None

    def refuse(self, sequence_id: int) -> list[PendingSend]:
        """Remove and return the send that `find` returns; of a value all its chunks."""
        send = self.find(sequence_id)
        return [] if send is None else self._remove(self._value_of(send))

    def expire(self, created_until: float) -> list[PendingSend]:
        """Remove and return the sends that were created at this time or before."""
        expired = []
        while self._sends and self._sends[0].created_at <= created_until:
            expired.append(self._pop())
        return expired

    def take(self, is_taken: Callable[[PendingSend], bool]) -> list[PendingSend]:
        """Remove and return the sends for which this is true, each with all chunks of its value."""
        found: dict[int, PendingSend] = {}
        for send in self._sends:
            if is_taken(send):
                found.update((each.number, each) for each in self._value_of(send))
        return self._remove(list(found.values()))

    def take_all(self) -> list[PendingSend]:
        """Remove and return all."""
        sends = list(self._sends)
        self._sends.clear()
        self._duplicates = 0
        return sends

    def _pop(self) -> PendingSend:
        send = self._sends.popleft()
        self._duplicates -= send.maybe_duplicate
        return send

    def _duplicate(self, sequence_id: int) -> PendingSend | None:
        """Return the oldest possible duplicate with this number: a broker answers it before what it is still writing."""
        return next(
            (send for send in self._sends if send.maybe_duplicate and send.sequence_id == sequence_id), None
        )

    def _value_of(self, send: PendingSend) -> list[PendingSend]:
        """Return the chunks of a value that are pending, from one of them: they were pushed one after the other."""
        if send.chunks == 1:
            return [send]
        first = send.number - send.chunk
        return [each for each in self._sends if first <= each.number < first + send.chunks]

    def _remove(self, sends: list[PendingSend]) -> list[PendingSend]:
        if sends:
            gone = {send.number for send in sends}
            self._sends = deque(send for send in self._sends if send.number not in gone)
            self._duplicates -= sum(send.maybe_duplicate for send in sends)
        return sends
