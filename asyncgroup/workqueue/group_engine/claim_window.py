"""ClaimWindow: the acknowledged offsets of a claim, restored from the group's last commit, committed with those of the session.

`AckGrouping` says when: as Pulsar's `acknowledgmentGroupTime`, and its 1,000 acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import ClosedError, CommitFailedError, UsageError
from asyncgroup.escaping import escaping_logger, printable
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.session import Session
from asyncgroup.lifecycle import wait_within
from asyncgroup.model import Record, TopicPartition
from asyncgroup.offsets.commit_metadata import MAX_METADATA, CommitMetadata
from asyncgroup.offsets.fetch_offsets import StoredCommit
from asyncgroup.offsets.parallel_consumer_metadata import decode_parallel_consumer
from asyncgroup.offsets.window_encoding import decode_window
from asyncgroup.offsets.window_marks import WindowMarks
from asyncgroup.wire.messages import NO_UUID
from asyncgroup.workqueue.group_engine.window_transaction import WindowTransaction

__all__ = ["PARALLEL_CONSUMER", "AckGrouping", "ClaimWindow", "commit_windows"]

PARALLEL_CONSUMER: Final = "parallel-consumer"
"""The value of `migrate_from` with which the metadata of Confluent's parallel-consumer is read."""

_SHOWN: Final = 60
"""Characters of foreign metadata in a warning."""

_log = escaping_logger("asyncgroup.offsets")


class ClaimWindow:
    """The window of acknowledged offsets of one claim, which its commits contain in place of a mark.

    Create it in `Handler.on_assigned`, before the claim's first fetch. It begins with the window of the group's last commit.
    If that has other metadata, it is empty, and the claim begins at the committed offset as any other.
    """

    def __init__(
        self,
        session: Session,
        claim: Claim,
        *,
        limit: int = MAX_METADATA,
        migrate_from: str | None = None,
        on_restart: Callable[[int], None] | None = None,
    ) -> None:
        state = claim._inner
        self.tp = claim.tp
        self._session = session
        self._offsets = session._inner.offsets
        self._marks = state.offsets
        self._consumer = state.consumer
        window, metadata = AckWindow(self._marks.next_offset), CommitMetadata()
        if state.stored is not None:
            window, metadata = _restore(session.group_id, claim.tp, state.stored, migrate_from=migrate_from)
        # with both, a truncated or recreated log is found by them, for certain
        is_verified = metadata.end_epoch >= 0 and metadata.topic_id != NO_UUID
        self._unverified_end = 0 if is_verified or not window.runs else window.end
        """Below it, leader epochs and topic id cannot identify another log of the same name: see `_check_end`."""
        self.is_new = state.stored is None
        """Whether the group has no commit of the partition."""
        self.was_open = metadata.is_open
        """Whether the last owner of the partition did not end its claim in order: its process was killed, or was lost."""
        start = self._marks.next_offset, self._marks.leader_epoch
        marks = WindowMarks(
            claim.tp, window, limit=limit, text=metadata.text, start=start, end_epoch=metadata.end_epoch
        )
        # after the window: nothing of the restore is a restart
        marks.on_restart = on_restart
        if state.stored is not None:
            marks.committed = state.stored.committed.offset
        # the committer asks the marks what to commit; this replaces a mark
        self._window_marks = self._marks.window = marks
        self.transaction = WindowTransaction(session.group_id, claim.tp, self._offsets, self._marks)

    def __repr__(self) -> str:
        state = "committed" if self.is_committed else "not committed"
        return f"<ClaimWindow of {self.tp}: {self.window!r}, {state}>"

    @property
    def window(self) -> AckWindow:
        """The acknowledged offsets; call `touch` after a change."""
        return self._window_marks.window

    @property
    def size(self) -> int:
        """Bytes of the metadata that was last encoded."""
        return self._window_marks.size

    @property
    def changes(self) -> int:
        """The number of changes of the window since it was last encoded for a commit."""
        return self._window_marks.changes

    @property
    def limit(self) -> int:
        """Bytes that the metadata may have; smaller than at the start once a broker has refused it as too large."""
        return self._window_marks.limit

    @property
    def is_committed(self) -> bool:
        """Whether nothing is left to commit."""
        return not self._marks.dirty

    @property
    def committed(self) -> int:
        """The committed offset; -1 if it is unknown, or belongs to records that are no longer in the log."""
        return self._window_marks.committed

    @property
    def log_start_offset(self) -> int:
        """The log start offset of the last fetch; -1 before it. Above the base of the window, unacknowledged records were deleted."""
        return self._consumer.log_start_offset

    @property
    def session(self) -> Session:
        """The session that the claim belongs to."""
        return self._session

    def note_arrival(self, position: int, records: Sequence[Record], end: int) -> None:
        """The next records, read from `position` up to the offset `end`; call it before they are looked up in the window.

        Their leader epochs are kept, and restored acknowledgements of offsets that the log does not have yet are forgotten.
        """
        # once the log was read beyond the window, its records say that it is the right one
        if position < self._unverified_end:
            self._check_end(position)
        if self._window_marks.note_epochs(records, end):
            self.touch()

    def _check_end(self, position: int) -> None:
        """Forget restored acknowledgements of offsets that the log does not have yet; records are read from `position` on.

        The log was truncated or recreated while no member read it. With the leader epoch and topic id in the metadata, that is
        detected by them, as the high watermark of a new leader or of a follower may be lower than the last one for a while.
        """
        if self._consumer.high_watermark < 0:
            return
        end = max(position, self._consumer.high_watermark)
        if self.window.end > end:
            _log.warning(
                "%s: the committed offset's metadata has acknowledged offsets up to %d, but the log ends at %d: those beyond "
                "it are ignored",
                self.tp,
                self.window.end,
                end,
            )
            self._window_marks.restart(end, is_recreated=False)
            self.touch()

    @property
    def on_change(self) -> Callable[[], None]:
        """`touch`, without a call in between: work queues call it for each record."""
        return self._marks.touch

    def touch(self) -> None:
        """The window has changed and has to be committed."""
        self._marks.touch()

    def open(self) -> None:
        """Open the claim: until `close`, commits contain that it has not ended in order."""
        self._window_marks.open()
        self.touch()

    def close(self) -> None:
        """Close the claim: the last commit contains that it has ended in order."""
        self._window_marks.close()
        self.touch()

    def seek(self, offset: int) -> None:
        """Continue at `offset`: everything before it counts as acknowledged. `on_restart(0)` is called."""
        self._marks.seek(offset)

    async def commit(self) -> None:
        """Commit the windows of the session that have changed, in one request that all callers share.

        While a transaction commits the window, wait for its end first. Raises CommitFailedError if this partition failed, or its
        claim has ended; the failures of others are not raised. Raises UsageError after the end of the session.
        """
        _check_live(self._session)
        if await self.transaction.wait_for_turn(self.window.version):
            return
        # a transaction that begins now waits until this commit is answered
        with self.transaction.commits:
            # a rejected window is tried again: the caller waits for its outcome
            failed = await _commit(self._session, retry_rejected=self._marks.rejected)
        if failed is not None and self.tp in failed.errors:
            raise CommitFailedError(failed.group_id, {self.tp: failed.errors[self.tp]}) from failed
        # the commit went out for others: this partition was dropped before
        if not self.transaction.is_live and not self.is_committed:
            error = UsageError(f"the claim of {self.tp} has ended: its offsets can no longer be committed")
            raise CommitFailedError(self._session.group_id, {self.tp: error})


async def commit_windows(session: Session) -> None:
    """Commit all windows of a session that have changed; those that a broker rejected wait for their next change.

    Raises CommitFailedError with the partitions that failed, UsageError after the end of the session.
    """
    _check_live(session)
    if (failed := await _commit(session, retry_rejected=False)) is not None:
        raise failed


def _check_live(session: Session) -> None:
    if session._inner.is_over:
        raise UsageError(f"{session!r} has ended: nothing can be committed any more")


async def _commit(session: Session, *, retry_rejected: bool) -> CommitFailedError | None:
    """Commit, and return the error of the partitions that failed."""
    offsets = session._inner.offsets
    try:
        await offsets.commit(retry_rejected=retry_rejected)
    except CommitFailedError as error:
        return error
    except ClosedError as error:
        return CommitFailedError(session.group_id, dict.fromkeys(offsets.dirty, error))
    return None


# --- restoring ---------------------------------------------------------------------------------------------------------


def _restore(
    group_id: str, tp: TopicPartition, stored: StoredCommit, *, migrate_from: str | None
) -> tuple[AckWindow, CommitMetadata]:
    """Return the window of a stored commit, and what else its envelope contains.

    Metadata of another kind is logged and ignored: the record at the committed offset is always delivered.
    """
    metadata, raw, base = stored.metadata, stored.raw, stored.committed.offset
    # decoding returns other text as it is
    if metadata != CommitMetadata(raw):  # an envelope for this offset
        try:
            window = decode_window(metadata.window, base)
        except ValueError as error:
            _warn(group_id, tp, base, raw, f"the acknowledged offsets in it cannot be decoded ({error})")
            window = AckWindow(base)
        return window, metadata
    if not raw:
        return AckWindow(base), CommitMetadata()
    if migrate_from != PARALLEL_CONSUMER:
        _warn(group_id, tp, base, raw, "it was not written by a work queue for this offset")
        return AckWindow(base), CommitMetadata()
    try:
        window = decode_parallel_consumer(raw, base)
    except ValueError as error:
        _warn(group_id, tp, base, raw, f"it is not that of parallel-consumer ({error})")
        return AckWindow(base), CommitMetadata()
    _log.info(
        "group %s, %s: took over %d ranges of completed offsets from parallel-consumer",
        group_id,
        tp,
        len(window.runs),
    )
    return window, CommitMetadata()


def _warn(group_id: str, tp: TopicPartition, offset: int, raw: str, reason: str) -> None:
    _log.warning(
        "group %s, %s: the metadata of the committed offset %d is ignored, and all records from there on are delivered: %s: "
        "%s",
        group_id,
        str(tp),
        offset,
        reason,
        repr(printable(raw, _SHOWN)),
    )


class AckGrouping:
    """Calls `commit` for acknowledgements `time` seconds after the first one, or earlier, as soon as there are `size`.

    With a time of 0 each acknowledgement is committed at once; those made during a commit share the next one. Commits at a
    revocation and at the end are made by the group.

    `is_worth(pending)` decides at `size` acknowledgements, and at each multiple of it, whether to commit before `time` has passed:
    the cost of a commit grows with its partitions.
    """

    def __init__(
        self,
        time: float,
        size: int,
        commit: Callable[[], Awaitable[None]],
        is_worth: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._time = time
        self._size = size
        self._commit = commit
        self._is_worth = is_worth
        self._pending = 0
        self._look_at = size
        self._begun = asyncio.Event()
        self._full = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AckGrouping: {self._pending} acknowledgements>"

    def note(self) -> None:
        """A record was acknowledged."""
        self._pending += 1
        if self._pending == 1:
            self._begun.set()
        # by equality: `is_worth` is asked once in each `size` acknowledgements, not for each of them
        if self._pending == self._look_at:
            if self._is_worth(self._pending):
                self._full.set()
            else:
                self._look_at += self._size

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self._begun.wait()
            if self._time:
                await wait_within(self._full, self._time)
            # before the commit: what is acknowledged during it belongs to the next one
            self._pending, self._look_at = 0, self._size
            self._begun.clear()
            self._full.clear()
            await self._commit()
