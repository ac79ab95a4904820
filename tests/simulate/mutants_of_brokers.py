"""Mutations of the brokers: bugs introduced on purpose, each as a patch for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from asyncgroup.broker.groups import offsets
from asyncgroup.broker.groups.classic import classic_checks
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.classic.rebalance import Rebalance
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.shared.requests import RequestMember
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.broker.groups.store.replayed import ReplayedPartition
from asyncgroup.broker.handlers import offset_fetch
from asyncgroup.broker.log import recovery
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.log.partition_log import LogAppendInfo, PartitionLog
from asyncgroup.broker.metadata.topics import INTERNAL_TOPICS, Partition
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.batch_view import BatchView, iter_batches

__all__ = ["BROKER_MUTANTS"]

Mutation = Callable[[], AbstractContextManager[object]]
Patched = AbstractContextManager[object]


# --- the group's state ----------------------------------------------------------------------------------------------


def _any_generation() -> Patched:
    """The coordinator accepts commits of former members and generations."""
    return _commits_checked_by(lambda *_, **_how: ErrorCode.NONE)


def _stale_generation() -> Patched:
    """The coordinator accepts commits of current members with a former generation."""
    check = classic_checks.check_commit

    def lenient(group: ClassicGroup, member: RequestMember, **how: Any) -> ErrorCode:
        newest = group.generation_id if member.generation_id >= 0 else -1
        return check(group, member._replace(generation_id=newest), **how)

    return _commits_checked_by(lenient)


@contextmanager
def _commits_checked_by(check: Callable[..., ErrorCode]) -> Iterator[None]:
    with patch.object(classic_checks, "check_commit", check), patch.object(offsets, "check_commit", check):
        yield


def _same_generation() -> Patched:
    """A rebalance does not increment the generation."""
    begin = ClassicGroup.init_next_generation

    def again(self: ClassicGroup) -> None:
        generation = self.generation_id
        begin(self)
        self.generation_id = max(1, generation)

    return patch.object(ClassicGroup, "init_next_generation", again)


def _waits_for_nobody() -> Patched:
    """A rebalance completes when the first member has joined; the others are removed."""
    return patch.object(
        ClassicGroup, "has_all_members_joined", property(lambda group: group.awaiting_join_count > 0)
    )


def _keeps_members() -> Patched:
    """A rebalance completes when the first member has joined; the others keep their old assignments."""

    def complete(self: Rebalance, group: ClassicGroup) -> None:
        with patch.object(ClassicGroup, "not_yet_rejoined_dynamic_members", lambda _group: ()):
            finish(self, group)

    finish = Rebalance.complete_join
    return patch.multiple(
        Rebalance, complete_join=complete, maybe_complete_join=complete, _join_timer=_at_once(complete)
    )


def _at_once(complete: Callable[[Rebalance, ClassicGroup], None]) -> Any:
    def join_timer(self: Rebalance, group: ClassicGroup, _delay: float, _action: Any) -> None:
        timers = self._timers
        timers.schedule(("join", group.group_id), 0.01, lambda: complete(self, group))

    return join_timer


def _sessions_never_end() -> Patched:
    """The sessions of dead members never expire."""
    expire = Rebalance.expire_session

    def patient(self: Rebalance, group: ClassicGroup, member_id: str) -> None:
        if member_id not in group.members:
            expire(self, group, member_id)

    return patch.object(Rebalance, "expire_session", patient)


def _secret_rebalances() -> Patched:
    """Heartbeat responses do not contain REBALANCE_IN_PROGRESS."""
    beat = GroupCoordinator.heartbeat

    def calm(self: GroupCoordinator, *args: Any) -> ErrorCode:
        error = beat(self, *args)
        return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error

    return patch.object(GroupCoordinator, "heartbeat", calm)


def _two_coordinators() -> Patched:
    """A coordinator continues after its partition has moved to another node."""
    return patch.object(GroupCoordinator, "unload", lambda *_: None)


# --- __consumer_offsets ---------------------------------------------------------------------------------------------


def _hasty_answers() -> Patched:
    """Commits are answered before they are written."""
    write = OffsetStore.write_offsets

    def hasty(self: OffsetStore, group_id: str, offsets: Any, done: Any, *producer: Any) -> None:
        done(ErrorCode.NONE)
        write(self, group_id, offsets, lambda _error: None, *producer)

    return patch.object(OffsetStore, "write_offsets", hasty)


def _half_loaded() -> Patched:
    """A new coordinator skips every fourth batch when it loads its partition."""
    take = ReplayedPartition._replay_batch

    def careless(self: ReplayedPartition, batch: BatchView) -> None:
        if batch.base_offset % 4 != 3:
            take(self, batch)

    return patch.object(ReplayedPartition, "_replay_batch", careless)


def _plans_not_written() -> Patched:
    """The group's log contains the members without their assignments."""

    def snapshot(self: GroupMember, protocol_name: str | None, _assignment: bytes) -> Any:
        return whole(self, protocol_name, b"")

    whole = GroupMember.snapshot
    return patch.object(GroupMember, "snapshot", snapshot)


def _old_offsets() -> Patched:
    """OffsetFetch returns one less than the committed offset."""
    values = offset_fetch._values

    def less(*args: Any) -> Any:
        offset, *more = values(*args)
        return (offset - (offset > 0), *more)

    return patch.object(offset_fetch, "_values", less)


# --- records --------------------------------------------------------------------------------------------------------


def _lost_with_a_leader() -> Patched:
    """A new leader lacks the last batch."""
    lead = Partition.set_leader

    def lacking(self: Partition, node_id: int) -> None:
        if self.log.end_offset and self.topic not in INTERNAL_TOPICS:
            self.log.truncate(self.log.end_offset - 1)
        lead(self, node_id)

    return patch.object(Partition, "set_leader", lacking)


def _not_kept() -> Patched:
    """Some batches are acknowledged but not written."""
    append, numbers = PartitionLog.append, count(1)

    def forgetful(self: PartitionLog, data: Any, *args: Any, **options: Any) -> LogAppendInfo:
        appended = append(self, data, *args, **options)
        if self.topic not in INTERNAL_TOPICS and next(numbers) % 20 == 0:
            self.truncate(appended.base_offset)
        return appended

    return patch.object(PartitionLog, "append", forgetful)


def _skipped_batch() -> Patched:
    """Some fetches of several batches omit the first one."""
    read, numbers = PartitionLog.read, count(1)

    def skipping(self: PartitionLog, *args: Any, **options: Any) -> Any:
        data = memoryview(read(self, *args, **options))
        batches = list(iter_batches(data))
        skips = len(batches) > 1 and self.topic not in INTERNAL_TOPICS and next(numbers) % 5 == 0
        return data[batches[0].size :] if skips else data

    return patch.object(PartitionLog, "read", skipping)


def _read_too_early() -> Patched:
    """Consumers get records that the followers do not have yet."""
    read, bytes_from = PartitionLog.read, PartitionLog.bytes_from

    def all_of_it(self: PartitionLog, *args: Any, end: int | None = None, **options: Any) -> Any:
        return read(self, *args, **options)

    def all_bytes(self: PartitionLog, offset: int, _end: int | None = None) -> int:
        return bytes_from(self, offset)

    return patch.multiple(PartitionLog, read=all_of_it, bytes_from=all_bytes)


# --- files ----------------------------------------------------------------------------------------------------------


def _recovers_too_little() -> Patched:
    """Recovery takes the last batch of a file for a partial write."""
    batches = recovery._batches

    def fewer(files: OpenFiles, path: Path) -> Iterator[Any]:
        found = list(batches(files, path))
        return iter(found[:-1])

    return patch.object(recovery, "_batches", fewer)


BROKER_MUTANTS: Final[dict[str, Mutation]] = {
    "any generation may commit": _any_generation,
    "a stale generation may commit": _stale_generation,
    "the generation stays the same": _same_generation,
    "a rebalance does not wait": _waits_for_nobody,
    "members that do not rejoin keep their partitions": _keeps_members,
    "sessions never end": _sessions_never_end,
    "heartbeats do not report rebalances": _secret_rebalances,
    "two coordinators": _two_coordinators,
    "responses before the append": _hasty_answers,
    "offsets are loaded incompletely": _half_loaded,
    "assignments are not written": _plans_not_written,
    "older offsets are fetched": _old_offsets,
    "a new leader lacks records": _lost_with_a_leader,
    "some batches are not written": _not_kept,
    "some batches are not handed out": _skipped_batch,
    "records are read before they are replicated": _read_too_early,
    "a restart forgets the last batch": _recovers_too_little,
}
