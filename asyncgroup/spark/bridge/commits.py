"""Offsets of batches in the group: what a commit says about its batch, and marks and commits of a finished batch.

The metadata of a commit are the batch's number and the end of its range. The next owner of a partition reads them to continue
the numbering and to start its first range where the last one ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    TransportError,
)
from asyncgroup.group import Claim, Session
from asyncgroup.lifecycle import run_until
from asyncgroup.model import Record, TopicPartition
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.spark.bridge.batches import BridgedClaim, RunningBatch

__all__ = [
    "BatchNumbers",
    "LastBatch",
    "first_range_start",
    "from_metadata",
    "mark_and_commit",
    "to_metadata",
]

_log = logging.getLogger("asyncgroup.spark")

COMMIT_BACKOFF: Final = (0.1, 1.6)
"""First and longest pause in seconds between attempts of a commit, in addition to the session's own retries."""

_DELETED_TOPIC_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

Claims = Mapping[TopicPartition, BridgedClaim]

_METADATA: Final = re.compile(r"foreachBatch/1:(0|[1-9][0-9]{0,17})@(0|[1-9][0-9]{0,18})")


class LastBatch(NamedTuple):
    """The batch that a commit was made for."""

    number: int
    end: int
    """End offset (exclusive) of the batch's range of the partition."""


def to_metadata(number: int, end: int) -> str:
    """Return the commit metadata for a range that ends at `end`; begins with the version of the format.

    The committed offset may be larger than `end`, as transaction markers and aborted records are skipped.
    """
    return f"foreachBatch/1:{number}@{end}"


def from_metadata(metadata: str) -> LastBatch | None:
    """Return the batch that a commit was made for; None for metadata of other programs or later versions."""
    match = _METADATA.fullmatch(metadata)
    return None if match is None else LastBatch(int(match[1]), int(match[2]))


def first_range_start(claim: Claim) -> int:
    """Return where a claim's first range starts: at the end of the last committed range, not at the committed offset.

    The committed offset may include skipped offsets (transaction markers, aborted records), and may be another one when
    a batch is delivered again; the start of its range must be the same.
    """
    last = from_metadata(claim.initial_metadata)
    if last is None or claim.position != claim.initial_offset:
        return claim.position
    return min(last.end, claim.position)


class BatchNumbers:
    """Generates batch numbers: from 0, or from the largest number found in a commit of the member's partitions plus 1.

    Numbers only increase, and none is used twice in the life of the object, not even after an interrupted batch.
    """

    def __init__(self) -> None:
        self._next = 0

    def __repr__(self) -> str:
        return f"<BatchNumbers: next {self._next}>"

    def observe(self, metadata: str) -> None:
        """Continue after the batch number in a partition's commit metadata, if there is one."""
        last = from_metadata(metadata)
        if last is not None:
            self._next = max(self._next, last.number + 1)

    def next(self) -> int:
        """Return the next number."""
        number = self._next
        self._next += 1
        return number


# --- committing -------------------------------------------------------------------------------------------------------


async def mark_and_commit(
    session: Session, batch: RunningBatch, claims: Claims, closing: asyncio.Event
) -> CommitFailedError | None:
    """Mark the batch's offsets and commit them, with retries; return the error if it is not retriable.

    Claims that are no longer in `claims` are not marked, and errors of their commits are ignored.
    """
    _mark(batch, claims)
    retry = RetryLoop(RetryBackoff(*COMMIT_BACKOFF, None))
    while True:
        # a request may stay unanswered for longer than the bridge has time to close; the session waits for it anyway
        commit = await run_until(closing.wait(), session.commit(), "foreachBatch: commit")
        if commit.cancelled():
            return None
        try:
            return commit.result()
        except CommitFailedError as error:
            reasons = _errors_of_claims(session, error, batch, claims)
            if not reasons or closing.is_set():
                return None
            if not all(map(_is_retriable, reasons)):
                return error
            _log.warning(
                "batch %s: the function has returned, retrying the offset commit: %s", batch.batch_id, error
            )
        await retry.wait(closing)


def _mark(batch: RunningBatch, claims: Claims) -> None:
    ends = {chunk.tp: chunk for chunk in batch.chunks}
    for tp, chunk in ends.items():
        if batch.has_records_of(state := claims.get(tp)):
            assert state is not None
            # the mark of a record, not of an offset, so that the leader epoch is also committed (KIP-320)
            metadata = to_metadata(batch.batch_id, chunk.end)
            state.claim.mark(Record(*tp, chunk.end - 1, leader_epoch=chunk.leader_epoch), metadata)


def _errors_of_claims(
    session: Session, error: CommitFailedError, batch: RunningBatch, claims: Claims
) -> list[AsyncGroupError]:
    """Return the errors of those partitions of this batch that the member still owns."""
    if session.is_lost:
        return []
    return [
        reason
        for tp, reason in error.errors.items()
        if batch.has_records_of(claims.get(tp)) and not (claims[tp].claim.ended and _is_deleted_topic(reason))
    ]


def _is_deleted_topic(error: AsyncGroupError) -> bool:
    """Return whether the topic was deleted or recreated: then offsets of a claim that ended cannot be committed."""
    return isinstance(error, BrokerError) and error.code in _DELETED_TOPIC_CODES


def _is_retriable(error: AsyncGroupError) -> bool:
    if isinstance(error, BrokerError):
        # between JoinGroup and SyncGroup; the marks are committed under the next generation, or not at all
        return error.retriable or error.code == ErrorCode.REBALANCE_IN_PROGRESS
    return isinstance(error, TransportError)
