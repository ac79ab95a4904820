"""Mutations of the clients: bugs introduced on purpose, each as a patch for the duration of a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.group.classic import heartbeats as classic_heartbeats, membership as classic_membership
from asyncgroup.group.classic.group_members import CurrentAssignment
from asyncgroup.group.classic.join_requests import JoinProtocols
from asyncgroup.group.membership import HeartbeatResult
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.commits import SessionCommits
from asyncgroup.group.sessions.handler_calls import HandlerCalls
from asyncgroup.group.sessions.life import SessionLife
from asyncgroup.offsets import CommittedOffset, PartitionMarks
from asyncgroup.producer.batches.batch import ProducerBatch

__all__ = ["CLIENT_MUTANTS"]

Mutation = Callable[[], AbstractContextManager[object]]


@contextlib.contextmanager
def _mark_before_handling() -> Iterator[None]:
    """A record is marked when it is delivered (as the automatic commits of other clients do)."""
    marks: WeakKeyDictionary[PartitionConsumer, PartitionMarks] = WeakKeyDictionary()
    make, take = ClaimSource.make_claim, PartitionConsumer.__anext__

    def make_claim(*args: Any) -> Any:
        claim = make(*args)
        marks[claim._inner.consumer] = claim._inner.offsets
        return claim

    async def anext_marked(self: PartitionConsumer) -> Any:
        record = await take(self)
        if self in marks:
            marks[self].advance(record.offset + 1, "", -1)
        return record

    with (
        patch.object(ClaimSource, "make_claim", make_claim),
        patch.object(PartitionConsumer, "__anext__", anext_marked),
    ):
        yield


def _commit_one_more() -> AbstractContextManager[object]:
    """A commit contains one more than the mark."""

    def value(self: PartitionMarks) -> CommittedOffset:
        return CommittedOffset(self.next_offset + self.dirty, self.metadata, self.leader_epoch)

    return patch.object(PartitionMarks, "value", property(value))


def _deaf_to_rebalances() -> AbstractContextManager[object]:
    """REBALANCE_IN_PROGRESS is ignored."""
    actions = {**classic_heartbeats.HEARTBEAT_RESULTS, ErrorCode.REBALANCE_IN_PROGRESS: HeartbeatResult.ALIVE}
    return patch.object(classic_heartbeats, "HEARTBEAT_RESULTS", actions)


def _skip_after_reconnect() -> AbstractContextManager[object]:
    """After a failed fetch one record is skipped."""
    retry = FetchScheduler._retry

    def skipping(self: FetchScheduler, partitions: Any, error: Exception, now: float, **more: Any) -> None:
        for partition in partitions:
            partition.seek_to(partition.fetch_offset + 1)
        retry(self, partitions, error, now, **more)

    return patch.object(FetchScheduler, "_retry", skipping)


def _repeat_after_reconnect() -> AbstractContextManager[object]:
    """After a failed fetch one record is repeated."""
    retry = FetchScheduler._retry

    def repeating(self: FetchScheduler, partitions: Any, error: Exception, now: float, **more: Any) -> None:
        for partition in partitions:
            partition.seek_to(max(partition._lowest, partition.position - 1))
        retry(self, partitions, error, now, **more)

    return patch.object(FetchScheduler, "_retry", repeating)


def _no_commit_at_the_end() -> AbstractContextManager[object]:
    """A session ends without its last commit."""
    commit = SessionCommits._commit

    async def lazy(self: SessionCommits, **options: Any) -> None:
        if not self._state.ended:
            await commit(self, **options)

    return patch.object(SessionCommits, "_commit", lazy)


def _no_automatic_commits() -> AbstractContextManager[object]:
    """Marks are committed only at the end of a session."""

    async def lazy(_self: SessionCommits) -> None:
        await asyncio.Event().wait()

    return patch.object(SessionCommits, "auto_commit", lazy)


def _loss_ignored() -> AbstractContextManager[object]:
    """A member that was removed from the group, or has no connection, continues."""
    told = SessionLife.on_heartbeat

    def calm(self: Any, result: HeartbeatResult, error: Any) -> None:
        if result is not HeartbeatResult.LOST:
            told(self, result, error)

    return patch.object(SessionLife, "on_heartbeat", calm)


def _two_owners() -> AbstractContextManager[object]:
    """The assignment gives the first partition to two members."""
    assign = JoinProtocols.assign

    def doubled(self: JoinProtocols, *args: Any) -> Any:
        plans = assign(self, *args)
        owned = [ids for ids in plans.values() if ids.partitions]
        if len(owned) > 1:
            member_id = next(reversed(plans))
            first = owned[0].partitions[0]
            other = plans[member_id]
            if first not in other.partitions:
                plans[member_id] = replace(other, partitions=(first, *other.partitions))
        return plans

    return patch.object(JoinProtocols, "assign", doubled)


def _start_one_later() -> AbstractContextManager[object]:
    """A claim begins one record after the committed offset."""
    make = ClaimSource.make_claim

    def later(self: ClaimSource, committer: Any, budget: Any, tp: Any, start: Any) -> Any:
        return make(self, committer, budget, tp, start._replace(offset=start.offset + (start.offset > 0)))

    return patch.object(ClaimSource, "make_claim", later)


def _handlers_not_waited_for() -> AbstractContextManager[object]:
    """A session ends while its handlers are still running."""

    async def drain(self: HandlerCalls) -> None:
        self._drained = True

    return patch.object(HandlerCalls, "drain", drain)


def _no_cleanup_after_loss() -> AbstractContextManager[object]:
    """A lost session does not call its last hooks."""
    end = HandlerCalls.end

    async def forgetful(self: HandlerCalls, partitions: Any) -> None:
        if not self._session.is_lost:
            await end(self, partitions)

    return patch.object(HandlerCalls, "end", forgetful)


def _never_leaves() -> AbstractContextManager[object]:
    """LeaveGroup is not sent."""

    async def silent(*_args: Any, **_limits: Any) -> None: ...

    return patch.object(classic_membership, "leave_group", silent)


def _failed_is_written() -> AbstractContextManager[object]:
    """A producer acknowledges a batch that has failed."""

    def complete(self: ProducerBatch, *_errors: object) -> None:
        self.complete(10_000)

    return patch.object(ProducerBatch, "fail", complete)


def _marks_move_back() -> AbstractContextManager[object]:
    """Some marks move backwards."""

    def advance(self: PartitionMarks, offset: int, metadata: str, leader_epoch: int) -> None:
        self._move(max(0, offset - offset % 3), metadata, leader_epoch)

    return patch.object(PartitionMarks, "advance", advance)


def _static_leader_assumes_counts() -> AbstractContextManager[object]:
    """A returning static leader assumes that its old assignment was made for the present partitions (an old bug)."""

    async def present(_cluster: Any, _group_id: str, counts: Any, **_options: Any) -> CurrentAssignment:
        return CurrentAssignment(counts)

    return patch.object(classic_membership, "describe_current_assignment", present)


CLIENT_MUTANTS: Final[dict[str, Mutation]] = {
    "mark before handling": _mark_before_handling,
    "commit one record more": _commit_one_more,
    "rebalances are ignored": _deaf_to_rebalances,
    "skip a record after a reconnect": _skip_after_reconnect,
    "repeat a record after a reconnect": _repeat_after_reconnect,
    "no commit at the end": _no_commit_at_the_end,
    "no automatic commits": _no_automatic_commits,
    "a lost membership is ignored": _loss_ignored,
    "two owners": _two_owners,
    "start one record later": _start_one_later,
    "handlers are not waited for": _handlers_not_waited_for,
    "no cleanup after a loss": _no_cleanup_after_loss,
    "never leaves": _never_leaves,
    "failed batches are acknowledged": _failed_is_written,
    "marks move backwards": _marks_move_back,
    "a static leader assumes current partition counts": _static_leader_assumes_counts,
}
