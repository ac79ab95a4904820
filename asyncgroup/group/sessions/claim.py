"""Claim: one assigned partition, as an async iterator of its records.

`Claim` shows what a handler may call; `ClaimState`, its `_inner`, is for the other files of the package. Handlers import
Claim for their annotations, so importing this file loads little: no asyncio, and nothing that fetches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from asyncgroup.checks import check_duration_or_zero
from asyncgroup.errors import ConfigError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.group.foreign_names import CLAIM
from asyncgroup.model import Batch, Record, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from asyncgroup.consumer.list_offsets import StartOffset
    from asyncgroup.consumer.partition_consumer import Batches, PartitionConsumer
    from asyncgroup.errors import SessionEnd
    from asyncgroup.offsets import PartitionMarks
    from asyncgroup.offsets.fetch_offsets import StoredCommit

__all__ = ["Claim", "ClaimCounts", "ClaimState", "claim_counts"]


class ClaimState:
    """The parts of a claim: where its records come from, its marks, and its end."""

    __slots__ = (
        "_ended",
        "_nothing_read",
        "_renewed",
        "cause",
        "consumer",
        "initial_metadata",
        "offsets",
        "renewals",
        "set_paused",
        "stored",
        "thread_reads",
    )

    def __init__(
        self,
        consumer: PartitionConsumer,
        offsets: PartitionMarks,
        stored: StoredCommit | None = None,
        set_paused: Callable[[Claim, bool], None] | None = None,
    ) -> None:
        from asyncio import Event

        self.consumer = consumer
        self._nothing_read = consumer._inner.buffer.progress
        self.offsets = offsets
        self.initial_metadata = offsets.metadata
        self.stored = stored
        """The group's commit at which the claim began; None if there was none."""
        self.set_paused = set_paused
        """Pauses or resumes the claim's partition in its group."""
        self.cause: SessionEnd | None = None
        """Why the claim ended; None while it is live."""
        self.renewals = 0
        """Number of calls of `renew`."""
        self.thread_reads = 0
        """Number of records that a thread has taken from the batch that it holds."""
        # the progress at the last renewal, and the loop time until which that counts
        self._renewed: tuple[object, float] | None = None
        self._ended = Event()

    @property
    def ended(self) -> bool:
        """Whether iteration has ended."""
        return self.cause is not None

    async def wait_ended(self) -> None:
        """Wait until the claim ends."""
        await self._ended.wait()

    def end(self, cause: SessionEnd) -> None:
        """Stop iteration before the next record; a second call does nothing."""

        if self.cause is None:
            self.cause = cause
            self._ended.set()
            # last: where the iteration ends, its cause is known
            self.consumer._inner.end()

    def report_nothing(self) -> None:
        """Call no hooks for what is read: a work queue reports its deliveries instead."""

        partition = self.consumer._inner
        partition.set_listeners(partition.intercept, None)

    # --- progress ---------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> tuple[object, ...]:
        """A value that changes with each record that is delivered, each mark, seek and renewal; a timer compares it."""

        partition = self.consumer._inner
        return (
            *partition.buffer.progress,
            partition.jumps,
            self.offsets.progress,
            self.renewals,
            self.thread_reads,
        )

    @property
    def holds_record(self) -> bool:
        """Whether the handler works on a record: it was given one and has not asked for the next."""

        partition = self.consumer._inner
        was_read = partition.buffer.progress != self._nothing_read
        # a loop that waits, or is paused, has asked for the next record
        return was_read and not (partition.waiting or partition.paused or self.ended)

    def renew(self, until: float) -> None:
        """The handler is at work, and without any other progress until this loop time."""
        self.renewals += 1
        self._renewed = self.progress, until

    def is_renewed(self, now: float) -> bool:
        """Whether the last renewal still counts at loop time `now`."""
        return self._renewed is not None and now < self._renewed[1] and self._renewed[0] == self.progress

    def check_mark(self, done: object) -> None:
        """Raise ConfigError for a value that `Claim.mark` refuses: no Record or Batch, or one of another partition.

        Changes nothing, and is safe to call from any thread. The metadata of a mark is checked elsewhere.
        """
        if not isinstance(done, Record | Batch):
            raise ConfigError("done", done, "a Record or a Batch; session.mark_offset marks an offset")
        tp = self.consumer.tp
        if done.partition != tp.partition or done.topic != tp.topic:
            raise ConfigError("done", TopicPartition(done.topic, done.partition), f"a record of {tp}")


class Claim:
    """An assigned partition: an async iterator of its records, with `mark` for those that are done.

    Iteration ends when the claim is revoked or the session ends. After `break`, a second loop continues at the next
    record. Use a claim in the event loop only; for blocking handlers see `in_thread`.
    """

    __slots__ = ("__weakref__", "_consumer", "_inner", "_offsets", "_partition", "_topic")

    def __init__(self, state: ClaimState) -> None:
        self._inner = state
        self._consumer = state.consumer
        self._offsets = state.offsets
        # copied to attributes, as `mark` is called per record
        self._topic, self._partition = state.consumer.tp

    def __repr__(self) -> str:
        if self.ended:
            state = f"ended: {type(self.cause).__name__}"
        else:
            state = "paused" if self.paused else "stalled" if self.stalled else "live"
        return f"<Claim {self.tp}: {state}, lag {self.lag}, next commit {self.next_mark}>"

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self._consumer.tp

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def partition(self) -> int:
        """The partition number."""
        return self._partition

    @property
    def initial_offset(self) -> int:
        """The offset at which the claim began to read."""
        return self._consumer.initial_offset

    @property
    def initial_metadata(self) -> str:
        """The metadata committed with `initial_offset`; empty if there is none."""
        return self._inner.initial_metadata

    @property
    def position(self) -> int:
        """The offset of the next record that iteration returns."""
        return self._consumer.position

    @property
    def next_mark(self) -> int:
        """The first offset that is not marked as done: the offset to commit."""
        return self._offsets.base

    @property
    def high_watermark(self) -> int:
        """The high watermark as of the last fetch; -1 before it."""
        return self._consumer.high_watermark

    @property
    def lag(self) -> int:
        """Offsets from the position to the high watermark, with `read_committed` to the last stable offset."""
        return self._consumer.lag

    @property
    def stalled(self) -> bool:
        """Whether no record was read for `max_processing_time` while some were buffered; fetching is suspended."""
        return self._consumer.stalled

    @property
    def paused(self) -> bool:
        """Whether the user paused the partition."""
        return self._consumer.paused

    @property
    def ended(self) -> bool:
        """Whether iteration has ended."""
        return self._inner.ended

    @property
    def cause(self) -> SessionEnd | None:
        """Why the claim ended; None while it is live."""
        return self._inner.cause

    async def wait_ended(self) -> None:
        """Wait until the claim ends."""
        await self._inner.wait_ended()

    def __aiter__(self) -> PartitionConsumer:
        """Return the iterator of the records; `anext(claim)` reads from the same one, at the cost of one more call."""
        return self._consumer

    def __anext__(self) -> Coroutine[Any, Any, Record]:
        return self._consumer.__anext__()

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """Iterate over batches of buffered records and those that arrive within `max_wait` seconds, up to the limits.

        `max_bytes` are wire bytes; records that decompress to more than sixteen times as many are returned in several
        batches.

        If a batch raises CorruptRecordsError while its records are read (invalid content with a valid checksum),
        reading goes back to its start: the next read raises again, and marks do not advance past it until a seek
        does. Raises ConfigError for limits below 1.
        """
        return self._consumer.batches(max_records=max_records, max_bytes=max_bytes, max_wait=max_wait)

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Mark everything up to and including this record or batch as done, so that it may be committed.

        Marks only move forwards: with parallel work, do not mark a record while an earlier one is unfinished. The mark
        is dropped if the claim was lost or its session has ended. Raises ConfigError for a record of another partition,
        for a value that is neither a Record nor a Batch, and for invalid metadata.
        """
        try:
            if done.partition != self._partition or done.topic != self._topic:
                # its offset would be committed for this partition, past records that were not read
                raise ConfigError(
                    "done", TopicPartition(done.topic, done.partition), f"a record of {self.tp}"
                )
            # tested in this order because isinstance is slow for Batch, a subclass of an abstract class
            last = done.offset if isinstance(done, Record) else done.last_offset
        except AttributeError:
            raise ConfigError(
                "done", done, "a Record or a Batch; session.mark_offset marks an offset"
            ) from None
        self._offsets.advance(last + 1, metadata, done.leader_epoch)

    def renew(self, seconds: float = 0.0) -> None:
        """Say that the handler is at work on a record: `max_poll_interval` begins again.

        With `seconds` the claim does not count as stuck for that long, if it is longer, or until its next progress;
        infinity is allowed. Raises ConfigError for a negative value.
        """
        from asyncio import get_running_loop

        check_duration_or_zero("seconds", seconds)
        self._inner.renew(get_running_loop().time() + seconds)

    def pause(self) -> None:
        """Stop iteration before the next record, and stop fetching, until `resume`. As `group.pause` of its partition.

        The partition stays paused when it is assigned to this member again. Does nothing after the claim has ended.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Undo `pause`, and `group.pause` of its partition. Does nothing after the claim has ended."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        # the partition may be another member's by now, or a later claim's
        if not self.ended and self._inner.set_paused is not None:
            self._inner.set_paused(self, paused)

    def seek(self, offset: StartOffset) -> None:
        """Continue reading at `offset`: buffered records are dropped, marks stay.

        `offset` is a number, `"earliest"`, `"latest"`, a datetime with a time zone (the first record with that
        timestamp or later) or a timedelta (the first record not older than that). It returns at once: an offset
        lookup happens before the next fetch, and `position` is unchanged until then. An error of the lookup that is
        not retriable is raised by the iterator once; reading then continues at the old position.

        Raises ConfigError for any other value, and for a datetime without a time zone.
        """
        self._consumer.seek(offset)


class ClaimCounts(NamedTuple):
    """What a claim has delivered since it began. Counted for each record batch, and exact between two records."""

    records: int
    """Records that its handler was given; those that it was given again after a seek count again."""
    size: int
    """Wire bytes of the record batches that were delivered to their last record."""
    buffered: int
    """Wire bytes that are fetched and not delivered yet."""


def claim_counts(claim: Claim) -> ClaimCounts:
    """Return the counts of a claim, for metrics; also of one that has ended."""

    buffer = claim._inner.consumer._inner.buffer
    return ClaimCounts(buffer.records_delivered, buffer.bytes_delivered, buffer.bytes)


add_foreign_names(Claim, CLAIM)
