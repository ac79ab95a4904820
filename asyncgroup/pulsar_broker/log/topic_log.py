"""TopicLog: the entries of a topic or partition, in memory, with their positions. Pure state.

An entry is what one SEND has brought: a message, a batch or a chunk. A position is the ledger and the entry in it; a ledger begins
when the topic is loaded, as in Pulsar's `ManagedLedgerImpl`. Inside the broker entries have indexes, which count over all ledgers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final, NamedTuple

from asyncgroup.pulsar.wire.keys import decode_key
from asyncgroup.pulsar.wire.metadata import MessageMetadata

__all__ = ["CompactedEntries", "LedgerInfo", "Position", "StoredEntry", "TopicLog", "TransactionId"]

Position = tuple[int, int]
"""Ledger and entry id."""

TransactionId = tuple[int, int]
"""The coordinator, and the number of the transaction there: the most and the least significant bits on the wire."""

_END: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry."""

    index: int
    position: Position
    metadata: MessageMetadata
    payload: bytes
    """What follows the command in a frame: checksum, metadata and body."""
    published_at: int
    """ms since 1970, by the producer."""

    @property
    def count(self) -> int:
        """The number of its messages."""
        return self.metadata.num_messages_in_batch or 1

    @property
    def is_batch(self) -> bool:
        """Whether it is a batch, also one of a single message."""
        return self.metadata.num_messages_in_batch is not None

    @property
    def key(self) -> bytes:
        """What Key_Shared subscriptions divide by: the ordering key, else the key, else the producer's name and sequence id.

        Of a batch it is that of its metadata (`StickyKeyConsumerSelectorUtils`, `Commands.peekStickyKey`).
        """
        metadata = self.metadata
        if metadata.ordering_key is not None:
            return metadata.ordering_key
        if metadata.partition_key is not None:
            return decode_key(metadata.partition_key, is_base64=metadata.partition_key_b64_encoded)
        return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


@dataclass(frozen=True, slots=True)
class CompactedEntries:
    """What compaction has kept of the entries before `end`, in order; of batches perhaps with less messages."""

    end: int
    entries: tuple[StoredEntry, ...]

    def at_or_after(self, index: int) -> StoredEntry | None:
        """Return the first entry at or after an index."""
        at = bisect_left(self.entries, index, key=lambda entry: entry.index)
        return self.entries[at] if at < len(self.entries) else None


class LedgerInfo(NamedTuple):
    """A ledger: its entries are those from `start` to before `end`, and have `size` bytes together."""

    start: int
    end: int
    size: int
    closed_at: int | None
    """When it was closed, in ms since 1970; None of the last one."""


class TopicLog:
    """The entries of one topic. `ledger_ids` gives the number of each new ledger."""

    def __init__(self, ledger_ids: Iterator[int] | None = None) -> None:
        self._ledger_ids = ledger_ids if ledger_ids is not None else count(1)
        self._entries: list[StoredEntry] = []
        self._ledgers: list[int] = []
        self._starts: list[int] = []  # index of the first entry of each ledger
        self._closed: list[int] = []  # when each but the last was closed
        self.began_at = 0
        """When the last ledger was begun, in ms since 1970; 0 for unknown."""
        self.first = 0
        """Index of the first entry that is kept."""
        self.compacted: CompactedEntries | None = None
        """What compaction has kept; None if there was none."""
        self.first_open: int | None = None
        """Index of the first message of an open transaction: nothing from there on may be read."""
        self.hidden: set[int] = set()
        """Entries that no consumer gets: markers of transactions, and messages of aborted ones."""
        self.roll()

    def __repr__(self) -> str:
        return f"<TopicLog {self.first} to {self.end}, ledger {self._ledgers[-1]}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[StoredEntry]:
        return iter(self._entries)

    def __getitem__(self, index: int) -> StoredEntry:
        """Return the entry with an index that is kept."""
        if index < self.first:
            raise IndexError(f"entry {index} is before the first one, {self.first}")
        return self._entries[index - self.first]

    @property
    def end(self) -> int:
        """Index of the next entry."""
        return self.first + len(self._entries)

    @property
    def read_end(self) -> int:
        """Index of the first entry that may not be read (the one after `maxReadPosition`)."""
        return self.first + len(self._entries) if self.first_open is None else self.first_open

    def roll(self, now: int = 0) -> None:
        """Begin a ledger, at a time in ms."""
        if self._starts and self._starts[-1] == self.end:  # an empty one is replaced
            self._ledgers.pop()
            self._starts.pop()
        elif self._starts:
            self._closed.append(now)
        self._ledgers.append(next(self._ledger_ids))
        self._starts.append(self.end)
        self.began_at = now

    def ledgers(self) -> list[LedgerInfo]:
        """Return the ledgers with entries that are kept, and the last one, which is written to."""
        found = []
        for (start, end), time in zip(
            pairwise([*self._starts, self.end]), [*self._closed, None], strict=True
        ):
            if end > self.first or start == self._starts[-1]:
                entries = self._entries[max(start - self.first, 0) : end - self.first]
                size = sum(len(entry.payload) for entry in entries)
                found.append(LedgerInfo(start, end, size, time))
        return found

    def date_ledger(self, now: int) -> None:
        """Let the last ledger begin now if it has no time: its topic was created before it was loaded."""
        self.began_at = self.began_at or now

    def append(self, metadata: MessageMetadata, payload: bytes) -> StoredEntry:
        """Store an entry."""
        index = self.end
        entry = StoredEntry(index, self.position_of(index), metadata, payload, metadata.publish_time)
        self._entries.append(entry)
        return entry

    def trim(self, index: int) -> None:
        """Forget the entries before an index."""
        index = min(index, self.end)
        if index > self.first:
            del self._entries[: index - self.first]
            self.first = index
            if self.hidden:
                self.hidden = {each for each in self.hidden if each >= index}

    def size_from(self, index: int) -> int:
        """Return the number of bytes from an entry on."""
        return sum(len(entry.payload) for entry in self._entries[max(index - self.first, 0) :])

    # --- positions --------------------------------------------------------------------------------------------------------

    def position_of(self, index: int) -> Position:
        """Return the position of an entry, also of one that is to come or is no longer kept."""
        at = max(bisect_right(self._starts, index) - 1, 0)
        return self._ledgers[at], index - self._starts[at]

    def index_of(self, position: Position) -> int:
        """Return the index of the first entry at or after a position; ids beyond 63 bits are negative ones."""
        ledger, entry = (number - (_END << 1) if number >= _END else number for number in position)
        at = bisect_left(self._ledgers, ledger)
        if at == len(self._ledgers):
            return self.end
        if self._ledgers[at] != ledger:
            return max(self._starts[at], self.first)
        following = self._starts[at + 1] if at + 1 < len(self._starts) else self.end
        return max(min(self._starts[at] + max(entry, 0), following), self.first)

    def find(self, position: Position) -> StoredEntry | None:
        """Return the entry at a position; None if there is none."""
        index = self.index_of(position)
        if self.first <= index < self.end and self[index].position == position:
            return self[index]
        return None

    def index_at(self, time: int) -> int:
        """Return the index of the first entry that was published at or after a time in ms."""
        for entry in self._entries:
            if entry.published_at >= time:
                return entry.index
        return self.end
