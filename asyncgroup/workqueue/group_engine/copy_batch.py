"""CopyBatch: the copies of one transaction of a work queue, and which of them a failure concerns. Pure state."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    ProducerFencedError,
    TransactionError,
)
from asyncgroup.group.transactions.errors import fenced_error, reasons_of
from asyncgroup.lifecycle import copy_error, mark_retrieved
from asyncgroup.model import CommittedOffset, RecordMetadata, TopicPartition
from asyncgroup.workqueue.engine import OnWritten, OutgoingCopy
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow

__all__ = ["CopiesFailed", "CopyBatch", "Stopped", "WaitingCopy", "failed_copies", "fenced_reason", "shrinks"]

_log = logging.getLogger("asyncgroup.workqueue")

MEMBER_CODES: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""The group rebalances: the member joins again with its partitions, or the claims end, which gives up their copies."""


class WaitingCopy:
    """A copy that waits, or is in a transaction."""

    __slots__ = (
        "is_alone",
        "is_given_up",
        "is_proven",
        "offset",
        "on_written",
        "outcome",
        "record",
        "target",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, offset: int, record: OutgoingCopy, on_written: OnWritten, is_alone: bool
    ) -> None:
        self.tp = tp
        self.offset = offset
        self.record = record
        self.on_written = on_written
        self.is_alone = is_alone
        self.is_given_up = False
        self.target: TopicPartition | None = None
        """The partition that it goes to; None if that is chosen later."""
        self.is_proven = False
        """Whether it was written in a transaction that was aborted because others were not written in time."""
        self.outcome: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(mark_retrieved)

    def __repr__(self) -> str:
        return f"<copy of {self.tp}@{self.offset} to {self.record.topic!r}>"

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len(self.record.value or b"")

    def fail(self, error: BaseException) -> None:
        """`write` raises the error."""
        if not self.outcome.done():
            # a copy of the error: the same one, raised in several tasks, would collect their tracebacks
            self.outcome.set_exception(copy_error(error) if isinstance(error, AsyncGroupError) else error)

    def written(self, metadata: RecordMetadata) -> None:
        """Acknowledge the original, unless it was given up; `write` returns."""
        # its partition was given up: the next owner delivers the original again
        if not self.is_given_up:
            try:
                self.on_written(metadata)
            except Exception:  # noqa: BLE001  the others are also written
                _log.exception("%r: bug in the acknowledgement", self)
        if not self.outcome.done():
            self.outcome.set_result(metadata)


class CopyBatch:
    """The copies of a transaction."""

    def __init__(self, copies: list[WaitingCopy], windows: dict[TopicPartition, ClaimWindow]) -> None:
        self.copies = copies
        self.windows = windows
        """Of the partitions of the originals."""
        self.size = 0
        """Bytes of the values."""
        self.is_trial = False
        """Whether its copies go to partitions that have not answered before."""
        self.has_stalled = False
        """Whether partitions did not answer within the time of a transaction."""
        self.has_coordinator_failed = False
        """Whether requests to a coordinator had to be repeated: how long it took says nothing about the partitions then."""
        self.metadata: dict[WaitingCopy, RecordMetadata] = {}
        """The copies that were written, each with its place."""
        self.values: dict[TopicPartition, CommittedOffset] = {}
        """What the transaction commits."""
        self.is_stopped = asyncio.Event()
        """Set to abort it: a partition was given up before the commit was sent."""
        self.is_ending = False
        """Whether the commit may have been sent: from then on only its response says whether it is made."""

    def __repr__(self) -> str:
        return f"<transaction of {len(self.copies)} copies{', ending' if self.is_ending else ''}>"

    @property
    def topic(self) -> str:
        """The topic that all its copies go to."""
        return self.copies[0].record.topic

    @property
    def written(self) -> set[TopicPartition]:
        """The partitions that copies were written to."""
        return {TopicPartition(metadata.topic, metadata.partition) for metadata in self.metadata.values()}

    def note_written(self, copy: WaitingCopy, metadata: RecordMetadata) -> None:
        """A copy is in its topic; readers see it there if the transaction is committed."""
        # known from here on, so that a repetition goes to the same partition
        copy.target = TopicPartition(metadata.topic, metadata.partition)
        self.metadata[copy] = metadata

    def offsets_of(self, tp: TopicPartition) -> list[int]:
        """Return the offsets of the originals."""
        return [copy.offset for copy in self.copies if copy.tp == tp]

    def end(self, *, is_committed: bool) -> None:
        """Let ordinary commits go on."""
        for window in self.windows.values():
            window.transaction.end(is_committed=is_committed)


class Stopped(Exception):
    """Aborts the producer's transaction, as a partition was given up."""


class CopiesFailed(Exception):
    """Aborts the producer's transaction, as copies could not be written."""

    def __init__(self, errors: dict[WaitingCopy, Exception]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} copies failed")


def shrinks(batch: CopyBatch, error: Exception) -> bool:
    """Whether a window that the group coordinator refused as too large can be committed in part."""
    if not isinstance(error, CommitFailedError):
        return False
    # all of them, not only the first: each one may be too large
    shrunk = [
        tp
        for tp, reason in error.errors.items()
        if tp in batch.windows
        and isinstance(reason, BrokerError)
        and batch.windows[tp].transaction.shrink(reason.code)
    ]
    return bool(shrunk)


def failed_copies(batch: CopyBatch, error: Exception) -> dict[WaitingCopy, Exception]:
    """Return the copies to report as failed, each with its error; none if the group is the reason."""
    if _is_rebalance(error):
        return {}
    if not isinstance(error, CopiesFailed):
        return dict.fromkeys(batch.copies, error)
    # the others failed only because the transaction did: they are not the reason
    own = {copy: each for copy, each in error.errors.items() if not isinstance(each, TransactionError)}
    return own or error.errors


def _is_rebalance(error: Exception) -> bool:
    if not isinstance(error, CommitFailedError):
        return False
    return all(
        isinstance(reason, BrokerError) and reason.code in MEMBER_CODES for reason in reasons_of(error)
    )


def fenced_reason(error: Exception) -> ProducerFencedError | None:
    """Return the reason if the producer was fenced."""
    errors = error.errors.values() if isinstance(error, CopiesFailed) else (error,)
    return next((fenced for each in errors if (fenced := fenced_error(each)) is not None), None)
