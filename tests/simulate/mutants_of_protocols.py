"""Mutations of cooperative members and of those of the consumer protocol: bugs introduced on purpose, each as a patch."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from asyncgroup.broker.groups import offsets as group_offsets
from asyncgroup.broker.groups.consumer import consumer_checks, consumer_groups, heartbeat
from asyncgroup.broker.groups.consumer.consumer_group_records import ConsumerGroupRecord
from asyncgroup.broker.groups.consumer.consumer_groups import ConsumerGroups
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.cluster.connection_pool import ConnectionPool
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group.assignors import cooperative
from asyncgroup.group.classic.cooperative_stay import CooperativeStay, WithheldPartitions
from asyncgroup.group.consumer import heartbeats as consumer_heartbeats, membership as consumer_membership
from asyncgroup.group.consumer.heartbeat_errors import HeartbeatAction
from asyncgroup.group.consumer.member_state import ConsumerMemberState, Reconciliation
from asyncgroup.group.consumer.membership import ConsumerMembership
from asyncgroup.group.membership import Assignable, HeartbeatResult, JoinedGroup
from asyncgroup.group.sessions.claims import SessionClaims
from asyncgroup.group.sessions.commits import SessionCommits
from asyncgroup.group.sessions.life import SessionLife
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer, commit_requests
from asyncgroup.wire import messages as m

__all__ = ["CONSUMER_MUTANTS", "COOPERATIVE_MUTANTS"]

Mutation = Callable[[], AbstractContextManager[object]]
Patched = AbstractContextManager[object]

LATE: Final = 1.5
"""Seconds that the marks of a revoked claim are kept by the mutant that commits them late."""


# --- sessions that last over rebalances -----------------------------------------------------------------------------


@contextlib.contextmanager
def _late_commits() -> Iterator[None]:
    """The marks of a revoked claim are not committed at its end, but with the next automatic commit."""
    last, drop, manage = SessionCommits.commit_last, Committer.drop, Committer.manage

    async def only_of_sessions(
        self: SessionCommits, limit: float, revoked: list[TopicPartition] | None = None
    ) -> None:
        if revoked is None:
            await last(self, limit)

    def drop_later(self: Committer, tp: TopicPartition) -> None:
        asyncio.get_running_loop().call_later(LATE, drop, self, tp)

    def manage_again(self: Committer, tp: TopicPartition, *args: Any) -> Any:
        drop(self, tp)
        return manage(self, tp, *args)

    with (
        patch.object(SessionCommits, "commit_last", only_of_sessions),
        patch.multiple(Committer, drop=drop_later, manage=manage_again),
    ):
        yield


def _no_commit_at_a_revocation() -> Patched:
    """The marks of a revoked claim are dropped."""
    last = SessionCommits.commit_last

    async def lazy(self: SessionCommits, limit: float, revoked: list[TopicPartition] | None = None) -> None:
        if revoked is None:
            await last(self, limit)

    return patch.object(SessionCommits, "commit_last", lazy)


def _revoked_claims_go_on() -> Patched:
    """A claim is not revoked."""

    async def keep(_self: SessionClaims, *_arguments: Any) -> None:
        pass

    return patch.object(SessionClaims, "revoke", keep)


def _first_generation() -> Patched:
    """A session commits under its first generation or epoch."""
    assign = SessionLife.assign

    async def forgetful(self: SessionLife, joined: JoinedGroup) -> Any:
        return await assign(self, joined._replace(identity=self.state.identity))

    return patch.multiple(SessionLife, assign=forgetful, on_epoch=lambda *_: None)


def _epoch_with_assignments() -> Patched:
    """A session that ends commits under the epoch of its last assignment (an old bug, with coordinators before Kafka 4.3)."""
    return patch.object(SessionLife, "on_epoch", lambda *_: None)


# --- cooperative ----------------------------------------------------------------------------------------------------


def _moves_at_once() -> Patched:
    """A cooperative leader gives partitions to their next owners before they are revoked."""

    def all_of_it(_members: Any, plan: Any, _counts: Any) -> Any:
        return {member_id: list(partitions) for member_id, partitions in plan.items()}

    return patch.object(cooperative, "withhold_claimed", all_of_it)


@contextlib.contextmanager
def _no_second_join() -> Iterator[None]:
    """A cooperative member that has revoked partitions does not join again, and the leader does not wait for it."""

    async def live(self: CooperativeStay, joined: JoinedGroup, *, is_first: bool) -> list[str] | None:
        if not is_first:
            await self._member.assign(joined)
        await self._joins_again.wait()
        return await self._member.prepare_join()

    with (
        patch.object(CooperativeStay, "_live", live),
        patch.object(WithheldPartitions, "replace", lambda *_: None),
    ):
        yield


def _old_assignment() -> Patched:
    """A cooperative member that has joined again keeps what it had."""

    async def keep(self: SessionLife, joined: JoinedGroup) -> Any:
        return await assign(self, joined._replace(assignment=self.state.assignment))

    assign = SessionLife.assign
    return patch.object(SessionLife, "assign", keep)


# --- the consumer protocol ------------------------------------------------------------------------------------------


def _reports_first() -> Patched:
    """A revoked partition is reported as such before its claim has ended and its marks are committed."""
    apply = ConsumerMembership._apply

    async def early(self: ConsumerMembership, step: Reconciliation, member: Assignable) -> None:
        self._state.reconciled(step)
        self.heartbeats.send_now()
        await apply(self, step, member)

    return patch.object(ConsumerMembership, "_apply", early)


def _never_reports() -> Patched:
    """The partitions that a member owns are sent only when it joins."""
    next_request = ConsumerMemberState.next_request

    def silent(self: ConsumerMemberState) -> Any:
        request = next_request(self)
        if request.member_epoch > 0:
            request.topic_partitions = None
        return request

    return patch.object(ConsumerMemberState, "next_request", silent)


def _old_epoch() -> Patched:
    """Heartbeats do not update the member's epoch after the first one."""
    on_response = ConsumerMemberState.on_response

    def deaf(self: ConsumerMemberState, response: Any) -> bool:
        if self.epoch > 0:
            response.member_epoch = self.epoch
        return on_response(self, response)

    return patch.object(ConsumerMemberState, "on_response", deaf)


def _fenced_goes_on() -> Patched:
    """A member that was removed or fenced joins again, and its claims go on."""
    rejoins = (HeartbeatAction.REJOIN, HeartbeatAction.REJOIN_WITH_NEW_ID)
    results = {**consumer_heartbeats.RESULTS, **dict.fromkeys(rejoins, HeartbeatResult.ALIVE)}
    return patch.object(consumer_heartbeats, "RESULTS", results)


def _keeps_revoked() -> Patched:
    """The member ignores assignments with fewer partitions."""
    on_response = ConsumerMemberState.on_response

    def greedy(self: ConsumerMemberState, response: Any) -> bool:
        had = self._assigned or frozenset()
        found = on_response(self, response)
        if self._assigned is not None and self._assigned < had:
            self._assigned = had
        return found

    return patch.object(ConsumerMemberState, "on_response", greedy)


def _stale_is_final() -> Patched:
    """A commit with an older epoch is not repeated."""
    actions = {
        **commit_requests.COMMIT_ACTIONS,
        ErrorCode.STALE_MEMBER_EPOCH: commit_requests.CommitAction.COMMITTED,
    }
    return patch.object(commit_requests, "COMMIT_ACTIONS", actions)


def _never_leaves() -> Patched:
    """The heartbeat that leaves is not sent."""

    async def silent(*_args: Any, **_limits: Any) -> None: ...

    return patch.object(consumer_membership, "leave_group", silent)


def _session_timeout_once() -> Patched:
    """The group's session timeout is asked for only once (an old bug)."""
    find = consumer_membership.find_session_timeout

    async def once(*args: Any) -> float | None:
        with contextlib.suppress(AsyncGroupError):
            return await find(*args)
        return None

    return patch.object(consumer_membership, "find_session_timeout", once)


# --- coordinators of consumer groups --------------------------------------------------------------------------------


def _gives_at_once() -> Patched:
    """A partition is given to its next owner before the present one has reported it as revoked."""
    return patch.object(ModernGroup, "is_free", lambda *_: True)


@contextlib.contextmanager
def _any_epoch() -> Iterator[None]:
    """The coordinator accepts commits of former members and with former epochs."""

    def lenient(*_: Any, **_how: Any) -> ErrorCode:
        return ErrorCode.NONE

    with (
        patch.object(consumer_checks, "check_commit", lenient),
        patch.object(group_offsets, "check_member_commit", lenient),
    ):
        yield


def _sessions_never_end() -> Patched:
    """The sessions of dead members never expire."""
    return patch.object(ConsumerGroups, "_fence", lambda *_: None)


@contextlib.contextmanager
def _removed_unnoticed() -> Iterator[None]:
    """The group's epoch stays the same when a member is removed."""

    def quiet(group: ModernGroup, *args: Any) -> ModernGroup:
        return dataclasses.replace(remove(group, *args), epoch=group.epoch)

    remove = heartbeat.remove
    with patch.object(heartbeat, "remove", quiet), patch.object(consumer_groups, "remove", quiet):
        yield


def _assignments_not_written() -> Patched:
    """The group's log contains the members without their assignments."""
    changes = consumer_groups.changes

    def fewer(*groups: Any) -> list[ConsumerGroupRecord]:
        key = m.ConsumerGroupCurrentMemberAssignmentKey
        return [record for record in changes(*groups) if not isinstance(record.key, key)]

    return patch.object(consumer_groups, "changes", fewer)


def _answers_first() -> Patched:
    """Heartbeats are answered before their changes are written."""
    put = ConsumerGroups.put

    def hasty(
        self: ConsumerGroups, group: ModernGroup, done: Callable[[ErrorCode], None], *upgrade: Any
    ) -> None:
        done(ErrorCode.NONE)
        put(self, group, lambda _error: None, *upgrade)

    return patch.object(ConsumerGroups, "put", hasty)


COOPERATIVE_MUTANTS: Final[dict[str, Mutation]] = {
    "marks of revoked claims are committed late": _late_commits,
    "no commit at a revocation": _no_commit_at_a_revocation,
    "revoked claims go on": _revoked_claims_go_on,
    "a lasting session commits under its first generation": _first_generation,
    "a cooperative leader moves partitions at once": _moves_at_once,
    "no second join after a revocation": _no_second_join,
    "a member that joined again keeps its partitions": _old_assignment,
}
"""To be found with cooperative members."""


def _leaves_first() -> Patched:
    """A leave does not follow the join that is in flight (an old bug)."""
    return patch.object(ConnectionPool, "lane_awaiting", lambda *_: None)


CONSUMER_MUTANTS: Final[dict[str, Mutation]] = {
    "commits of revoked claims under the new epoch": _late_commits,
    "no commit before a partition is reported": _no_commit_at_a_revocation,
    "claims outlast their assignment": _revoked_claims_go_on,
    "commits have the first epoch": _first_generation,
    "commits have the epoch of the last assignment": _epoch_with_assignments,
    "heartbeats have the first epoch": _old_epoch,
    "owned partitions are reported before the commit": _reports_first,
    "owned partitions are not reported": _never_reports,
    "a fenced member goes on": _fenced_goes_on,
    "revocations are ignored": _keeps_revoked,
    "commits with a stale epoch are not repeated": _stale_is_final,
    "a consumer never leaves": _never_leaves,
    "a consumer leaves before it joins": _leaves_first,
    "the session timeout is asked for once": _session_timeout_once,
    "partitions move before they are revoked": _gives_at_once,
    "any epoch may commit": _any_epoch,
    "sessions of consumers never end": _sessions_never_end,
    "a removed consumer is not noticed": _removed_unnoticed,
    "assignments of consumers are not written": _assignments_not_written,
    "heartbeats are answered before the append": _answers_first,
}
"""To be found with members of the consumer protocol."""
