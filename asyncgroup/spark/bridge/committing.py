"""Mark and commit the offsets of a batch whose function has returned; retriable commit errors are retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    TransportError,
)
from asyncgroup.group import Session
from asyncgroup.lifecycle import run_until, wait_within
from asyncgroup.model import Record, TopicPartition
from asyncgroup.spark.bridge.commit_metadata import to_metadata
from asyncgroup.spark.bridge.running_batch import BridgedClaim, RunningBatch

__all__ = ["mark_and_commit"]

_log = logging.getLogger("asyncgroup.spark")

COMMIT_BACKOFF: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses in seconds between attempts of a commit, in addition to the session's own retries; the last one repeats."""

_DELETED_TOPIC_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

Claims = Mapping[TopicPartition, BridgedClaim]


async def mark_and_commit(
    session: Session, batch: RunningBatch, claims: Claims, closing: asyncio.Event
) -> CommitFailedError | None:
    """Mark the batch's offsets and commit them, with retries; return the error if it is not retriable.

    Claims that are no longer in `claims` are not marked, and errors of their commits are ignored.
    """
    _mark(batch, claims)
    for pause in _pauses():
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
        await wait_within(closing, pause)
    return None


def _mark(batch: RunningBatch, claims: Claims) -> None:
    ends = {chunk.tp: chunk for chunk in batch.chunks}
    for tp, chunk in ends.items():
        if (state := claims.get(tp)) is not None:
            # the mark of a record, not of an offset, so that the leader epoch is committed, too (KIP-320)
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
        if tp in batch.partitions
        and tp in claims
        and not (claims[tp].claim.ended and _is_deleted_topic(reason))
    ]


def _is_deleted_topic(error: AsyncGroupError) -> bool:
    """Return whether the topic was deleted or recreated: then offsets of a claim that ended cannot be committed."""
    return isinstance(error, BrokerError) and error.code in _DELETED_TOPIC_CODES


def _is_retriable(error: AsyncGroupError) -> bool:
    if isinstance(error, BrokerError):
        # between JoinGroup and SyncGroup; the marks are committed under the next generation, or not at all
        return error.retriable or error.code == ErrorCode.REBALANCE_IN_PROGRESS
    return isinstance(error, TransportError)


def _pauses() -> Iterator[float]:
    yield from COMMIT_BACKOFF
    while True:
        yield COMMIT_BACKOFF[-1]
