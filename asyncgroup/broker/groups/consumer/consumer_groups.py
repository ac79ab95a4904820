"""The consumer groups of one node: their values, their timers, and the writes to `__consumer_offsets`.

What a request does to a group is decided in `heartbeat`; here the next value takes the place of the present one, its
records are written, and timers follow the states of members. The response is sent when the records are replicated.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from asyncgroup.broker.clock import Clock, Timers
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.consumer_group_member import (
    ConsumerGroupMember,
    ReconciliationState,
    TopicIdPartition,
)
from asyncgroup.broker.groups.consumer.consumer_group_records import ConsumerGroupRecord, changes
from asyncgroup.broker.groups.consumer.heartbeat import HeartbeatContext, Step, heartbeat, leave, remove
from asyncgroup.broker.groups.consumer.heartbeat_messages import (
    MemberHeartbeat,
    MemberHeartbeatReply,
    MemberHeartbeatResult,
)
from asyncgroup.broker.groups.consumer.member_timers import MemberTimers
from asyncgroup.broker.groups.consumer.modern_group import ConsumerGroupState, ModernGroup, ResolvedRegex
from asyncgroup.broker.groups.consumer.protocol_change import Downgrade, ToClassic, Upgrade, WriteRecords
from asyncgroup.broker.groups.consumer.regexes import is_unresolved, resolved, used_regexes
from asyncgroup.broker.groups.consumer.topics import TopicsImage
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig, WriteCallback
from asyncgroup.broker.groups.shared.requests import LeavingMember
from asyncgroup.counting import counted
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger

__all__ = ["ConsumerGroups"]

log = escaping_logger(__name__)

_REGEX_REFRESH_MS: Final = 10_000
"""Shortest time between two resolutions after topics have changed (`REGEX_BATCH_REFRESH_MIN_INTERVAL_MS`)."""

_RETRY_BACKOFF: Final = 0.5
"""Seconds until the removal of a member is tried again after a failed write (`CoordinatorRuntime`'s timers)."""

_NOWHERE: Final = TopicIdPartition(UUID(int=0), -1)


@dataclass(slots=True)
class _Entry:
    """A group, and its value according to the log."""

    group: ModernGroup
    written: ModernGroup
    resolved_names: frozenset[str] | None = None
    """The topics that existed when regular expressions were resolved, at `resolved_at` (ms since 1970)."""
    resolved_at: int = 0
    promised: ModernGroup | None = None
    """The value that a response without changes waits to be replicated with: it may not be taken back any more."""


class ConsumerGroups:
    """The consumer groups of one coordinator. `clock` gives ms since 1970, `configs` a group's dynamic configs."""

    def __init__(
        self,
        config: CoordinatorConfig,
        timers: Timers,
        write: WriteRecords,
        topics: TopicsImage,
        configs: Callable[[str], Mapping[str, str]],
        *,
        rng: random.Random,
        clock: Clock,
        on_added: Callable[[], None],
        to_classic: ToClassic,
    ) -> None:
        self.topics = topics
        self.timers = MemberTimers(timers, self._fence)
        self._config = config
        self._write = write
        self._configs = configs
        self._rng = rng
        self._clock = clock
        self._on_added = on_added
        self._to_classic = to_classic
        self._entries: dict[str, _Entry] = {}

    def __repr__(self) -> str:
        return f"<ConsumerGroups {len(self._entries)}>"

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, group_id: str) -> ModernGroup | None:
        """Return the group, None if there is none."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.group

    def all(self) -> list[ModernGroup]:
        """Return all groups."""
        return [entry.group for entry in self._entries.values()]

    # -- leadership ------------------------------------------------------------------------------------------

    def restore(self, groups: Iterable[ModernGroup]) -> None:
        """Add groups loaded from the log; each member gets a full session timeout for its next heartbeat."""
        for group in groups:
            self._restore(_Entry(group, group))
            self._on_added()

    def _restore(self, entry: _Entry) -> None:
        group = entry.group
        self._entries[group.group_id] = entry
        for member_id, member in group.members.items():
            self._restart_session(group.group_id, member_id)
            if member.state is ReconciliationState.UNREVOKED_PARTITIONS:
                self.timers.start_rebalance(member, partial(self.get, group.group_id))

    def discard(self, group_id: str) -> None:
        """Forget a group, which another node coordinates now or which was deleted."""
        entry = self._entries.pop(group_id, None)
        for member_id in () if entry is None else entry.group.members:
            self.timers.cancel(group_id, member_id)

    # -- requests --------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: MemberHeartbeat, reply: MemberHeartbeatReply, upgrade: Upgrade | None = None
    ) -> None:
        """Handle ConsumerGroupHeartbeat. A member that joins creates the group if it does not exist.

        A member without an id, as version 0 allows, gets one. `upgrade`: the classic group that becomes a consumer group.
        """
        if not request.member_id:
            request = dataclasses.replace(request, member_id=self.new_member_id())
        group = self.get(request.group_id) if upgrade is None else upgrade.group
        try:
            if group is None and request.member_epoch != 0:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
            group = group or ModernGroup(group_id=request.group_id)
            step = self._step(group, request)
        except Refused as error:
            reply(MemberHeartbeatResult(error=error.code, error_message=str(error)))
            return

        def written(error: ErrorCode) -> None:
            reply(MemberHeartbeatResult(error=error) if error else step.result)

        removed = group.members.keys() - step.group.members.keys()
        if request.member_epoch < 0 and removed:
            self._remove(group, removed, written)
            return
        if request.member_epoch >= 0 and step.result.member_id is not None:
            self._restart_session(request.group_id, step.result.member_id)
        self.put(step.group, written, upgrade)
        self._resolve_regexes(request.group_id)

    def _resolve_regexes(self, group_id: str) -> None:
        """Resolve regular expressions that are new, or old enough while topics were created or deleted."""
        entry = self._entries.get(group_id)
        if entry is None or not used_regexes(entry.group):
            return
        names, now = frozenset(self.topics.names()), self._clock()
        is_due = names != entry.resolved_names and now >= entry.resolved_at + _REGEX_REFRESH_MS
        if is_due or is_unresolved(entry.group):
            entry.resolved_names, entry.resolved_at = names, now
            group = resolved(entry.group, self.topics, now)
            if group is not entry.group:
                self.put(group, _ignore)

    def _step(self, group: ModernGroup, request: MemberHeartbeat) -> Step:
        if request.member_epoch < 0:
            return leave(group, request, self.topics)
        return heartbeat(group, request, self.context(request.group_id))

    def new_member_id(self) -> str:
        """Return a new member id."""
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def context(self, group_id: str) -> HeartbeatContext:
        """Return what the next request of a member depends on besides its group."""
        own = self._configs(group_id)
        config = self._config
        return HeartbeatContext(
            topics=self.topics,
            now=self._clock(),
            max_size=config.group_consumer_max_size,
            assignment_interval=_seconds(
                own, "consumer.assignment.interval.ms", config.group_consumer_assignment_interval
            ),
            heartbeat_interval=_seconds(
                own, "consumer.heartbeat.interval.ms", config.group_consumer_heartbeat_interval
            ),
        )

    def _restart_session(self, group_id: str, member_id: str) -> None:
        default = self._config.group_consumer_session_timeout
        timeout = _seconds(self._configs(group_id), "consumer.session.timeout.ms", default)
        self.timers.restart_session(group_id, member_id, timeout)

    def tombstones(self, group_id: str) -> Sequence[ConsumerGroupRecord]:
        """Return the tombstones of all records of a group; none if it is gone."""
        entry = self._entries.get(group_id)
        return [] if entry is None else changes(entry.written, None)

    # -- changes ---------------------------------------------------------------------------------------------

    def put(self, group: ModernGroup, done: WriteCallback, upgrade: Upgrade | None = None) -> None:
        """Replace the group, write the difference, set the timers; `done` is called when it is replicated."""
        entry = self._entries.get(group.group_id)
        if entry is None:
            entry = self._add(group.group_id, upgrade)
        if (
            entry.group is group
        ):  # a heartbeat that changes nothing: its response will say what the last change has made
            entry.promised = group
        before, entry.group = entry.group, group
        self._log(before, group)
        self.timers.follow(before, group, partial(self.get, group.group_id))
        previous = entry.written
        records = changes(previous, group)
        entry.written = group

        def written(error: ErrorCode) -> None:
            is_last = self._entries.get(group.group_id) is entry and entry.group is group
            if error and is_last and entry.promised is not group:
                # Nothing has built on it yet. If the records are in the log after all, the next ones replace them.
                entry.group, entry.written = before, previous
                self._revert(group, before)
                if upgrade is not None or before.assignment_epoch == 0:  # it was new
                    self.discard(group.group_id)
                if upgrade is not None:
                    upgrade.undo()
            elif error and self._entries.get(group.group_id) is entry:
                entry.written = _unknown(previous, entry.written)
            done(error)

        write = self._write if upgrade is None else upgrade.write
        write(group.group_id, records, written)

    def _add(self, group_id: str, upgrade: Upgrade | None) -> _Entry:
        new = ModernGroup(group_id=group_id)
        entry = self._entries[group_id] = _Entry(new, _unknown(new))
        self._on_added()
        if upgrade is not None:
            upgrade.begin()
            entry.group = upgrade.group
            for member_id, member in upgrade.group.members.items():
                if member.classic is not None:
                    self.timers.restart_session(group_id, member_id, member.classic.session_timeout)
        return entry

    def _revert(self, group: ModernGroup, before: ModernGroup) -> None:
        self.timers.follow(group, before, partial(self.get, group.group_id))
        for member_id in before.members.keys() - group.members.keys():
            self._restart_session(group.group_id, member_id)

    def _log(self, before: ModernGroup, group: ModernGroup) -> None:
        if group.epoch != before.epoch:
            members = counted(len(group.members), "member")
            log.info("consumer group %s: epoch %d, %s", group.group_id, group.epoch, members)

    # -- removal ---------------------------------------------------------------------------------------------

    def _fence(self, group_id: str, member_id: str, why: str) -> None:
        """Remove a member; its next heartbeat gets UNKNOWN_MEMBER_ID."""
        group = self.get(group_id)
        if group is not None and member_id in group.members:
            log.info("consumer group %s: member %s is removed: %s", group_id, member_id, why)

            def written(error: ErrorCode) -> None:
                if error and member_id in self._members(group_id):
                    self.timers.retry(group_id, member_id, _RETRY_BACKOFF, why)

            self._remove(group, [member_id], written)

    def _members(self, group_id: str) -> Collection[str]:
        group = self.get(group_id)
        return () if group is None else group.members

    def remove_members(
        self, group_id: str, leaving: Iterable[LeavingMember]
    ) -> tuple[tuple[LeavingMember, ErrorCode], ...]:
        """Handle LeaveGroup, of members or of an admin client: by id, static ones by group instance id."""
        group = self._entries[group_id].group
        results = []
        removed = set()
        for one in leaving:
            member_id, error = _leaving(group, one)
            if not error:
                removed.add(member_id)
            results.append((one, error))
        if removed:
            self._remove(group, removed, _ignore)
        return tuple(results)

    def _remove(self, group: ModernGroup, member_ids: Collection[str], done: WriteCallback) -> None:
        """Remove members. If only some with the classic protocol stay, the group becomes a classic one."""
        rest = group.without(member_ids)
        if rest.has_classic_members_only and self.may_downgrade(len(rest.members)):
            self.downgrade(rest, "its last member with the consumer protocol left", done)
        else:
            self.put(remove(group, member_ids, self.topics), done)

    def may_downgrade(self, members: int) -> bool:
        """Whether a group with this number of members may become a classic one."""
        allowed = self._config.group_consumer_migration_policy in ("bidirectional", "downgrade")
        return allowed and members <= self._config.group_max_size

    def downgrade(self, group: ModernGroup, reason: str | None, done: WriteCallback) -> None:
        """Let a classic group take the place of `group`, the last value of a group; `reason` as in `Downgrade`."""
        taken_out = self.taken_out(group.group_id)
        self._to_classic(dataclasses.replace(taken_out, group=group, reason=reason, done=done))

    def taken_out(self, group_id: str) -> Downgrade:
        """Remove a group that a classic group replaces."""
        entry = self._entries[group_id]
        tombstones = changes(entry.written, None)
        self.discard(group_id)
        return Downgrade(group=entry.group, tombstones=tombstones, undo=partial(self._restore, entry))

    def is_empty(self, group_id: str) -> bool:
        """Whether the group exists and has no members."""
        group = self.get(group_id)
        return group is not None and group.state is ConsumerGroupState.EMPTY


def _leaving(group: ModernGroup, one: LeavingMember) -> tuple[str, ErrorCode]:
    """Return the id of a member that leaves, or the error."""
    member_id = one.member_id
    if one.group_instance_id is not None:
        owner = group.static_members.get(one.group_instance_id)
        if owner is None:
            return "", ErrorCode.UNKNOWN_MEMBER_ID
        if member_id not in ("", owner):
            return "", ErrorCode.FENCED_INSTANCE_ID
        member_id = owner
    return member_id, ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _unknown(*groups: ModernGroup) -> ModernGroup:
    """Return a value from which all records differ, for a log of which only the names of its members are known."""
    ids = [member_id for group in groups for member_id in group.members]
    regexes = [text for group in groups for text in group.regexes]
    return ModernGroup(
        group_id=groups[0].group_id,
        epoch=-1,
        assignment_epoch=max(group.assignment_epoch for group in groups),
        assignment_timestamp=-1,
        members={key: ConsumerGroupMember(member_id=key, epoch=-9, client_id="?") for key in ids},
        targets={key: frozenset([_NOWHERE]) for key in ids},
        regexes={text: ResolvedRegex(frozenset(), -1) for text in regexes},
    )


def _seconds(own: Mapping[str, str], name: str, default: float) -> float:
    return int(own[name]) / 1000 if name in own else default


def _ignore(_error: ErrorCode) -> None:
    """No member waits for the removal of another one."""
