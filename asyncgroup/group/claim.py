"""A claim: one partition while this member owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from asyncgroup.checks import check_metadata
from asyncgroup.consumer.partition_consumer import Batches, PartitionConsumer
from asyncgroup.consumer.resets import StartOffset
from asyncgroup.errors import ConfigError, SessionEnd
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.offsets import PartitionOffsets

__all__ = ["Claim"]


class Claim:
    """An async iterator of a partition's records, and where they are marked as done.

    Iteration ends when the claim is revoked or the session ends. `break` and a second loop go on at the very next
    record. A claim belongs to the event loop; from a thread use `in_thread`.
    """

    def __init__(self, consumer: PartitionConsumer, offsets: PartitionOffsets) -> None:
        self._consumer, self._offsets = consumer, offsets
        self._topic, self._partition = consumer.tp
        self._ended = asyncio.Event()
        self.initial_metadata = offsets.metadata
        """The text that was committed beside `initial_offset`; empty if there is none."""
        self.cause: SessionEnd | None = None
        """Why the claim ended; None while it lives."""

    def __repr__(self) -> str:
        if self.ended:
            state = f"ended: {type(self.cause).__name__}"
        else:
            state = "paused" if self.paused else "stalled" if self.stalled else "live"
        return f"<Claim {self.tp}: {state}, lag {self.lag}, next commit {self.next_mark}>"

    @property
    def consumer(self) -> PartitionConsumer:
        """The partition consumer behind the claim."""
        return self._consumer

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self._consumer.tp

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._consumer.tp.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._consumer.tp.partition

    @property
    def initial_offset(self) -> int:
        """Where this claim began to read."""
        return self._consumer.initial_offset

    @property
    def position(self) -> int:
        """The offset of the next record that iteration hands out."""
        return self._consumer.position

    @property
    def next_mark(self) -> int:
        """The first offset that is not marked as done; what was before it may be committed."""
        return self._offsets.next_offset

    @property
    def high_water_mark(self) -> int:
        """The offset behind the last readable record, as of the last fetch; -1 before it."""
        return self._consumer.high_water_mark

    @property
    def lag(self) -> int:
        """Offsets between the position and the high water mark, with `read_committed` the last stable offset."""
        return self._consumer.lag

    @property
    def stalled(self) -> bool:
        """Whether no record was taken for `max_processing_time` while some waited; nothing is fetched meanwhile."""
        return self._consumer.stalled

    @property
    def paused(self) -> bool:
        """Whether the user paused the partition."""
        return self._consumer.paused

    @property
    def ended(self) -> bool:
        """Whether iteration is over."""
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        """Wait until the claim ends."""
        await self._ended.wait()

    def __aiter__(self) -> PartitionConsumer:
        """The iterator behind the claim; a claim's own `anext` goes to the same one, by a call more."""
        return self._consumer

    def __anext__(self) -> Coroutine[Any, Any, Record]:
        return self._consumer.__anext__()

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """Iterate over batches: what is there, or what comes within `max_wait` seconds, up to the limits.

        A batch that raises CorruptRecordsError while its records are read (wrong content under a right checksum) was not
        seen: reading goes back to it, its next read raises here, and no mark passes it before a seek past it.
        Raises ConfigError for limits below 1.
        """
        return self._consumer.batches(max_records=max_records, max_bytes=max_bytes, max_wait=max_wait)

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Everything up to and including this record or batch is done, and may be committed.

        Marks move forwards only: parallel work that finishes out of order must not mark what others still do. On a
        claim that was lost or is over the mark is dropped. Raises ConfigError for a record of another partition, and
        for a value that is neither a Record nor a Batch.
        """
        try:
            if done.partition != self._partition or done.topic != self._topic:
                # its offset would be committed here, over records that nobody has seen
                raise ConfigError(
                    "done", TopicPartition(done.topic, done.partition), f"a record of {self.tp}"
                )
            # asked this way round: Batch is an abstract class's child, for which isinstance takes long
            last = done.offset if isinstance(done, Record) else done.last_offset
        except AttributeError:
            raise ConfigError("done", done, "a Record or a Batch") from None
        self._offsets.advance(last + 1, metadata, done.leader_epoch)

    def check_mark(self, done: object, metadata: object = "") -> None:
        """Raise what `mark` would raise, ConfigError, and change nothing: may be called from any thread."""
        if not isinstance(done, Record | Batch):
            raise ConfigError("done", done, "a Record or a Batch")
        if done.partition != self._partition or done.topic != self._topic:
            raise ConfigError("done", TopicPartition(done.topic, done.partition), f"a record of {self.tp}")
        check_metadata(metadata)

    def seek(self, offset: StartOffset) -> None:
        """Go on reading at `offset`; what is buffered is dropped, marks stay.

        `offset` is a number, `"earliest"`, `"latest"`, a datetime with a time zone (the first record of that time or
        later) or a timedelta (the first record not older than that). It returns at once: what has to be looked up is
        looked up before the next fetch, the next record comes from there, and `position` stays what it was until then.
        An error of the look-up that does not heal is raised by the iterator once; reading then goes on where it was.

        Raises ConfigError for what is none of these, and for a datetime without a time zone.
        """
        self._consumer.seek(offset)

    def end(self, cause: SessionEnd) -> None:
        """The session's call: stop iteration before its next record."""
        if not self.ended:
            self.cause = cause
            self._ended.set()
            self._consumer.end()
