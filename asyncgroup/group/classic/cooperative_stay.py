"""A member's stay in a cooperative group: heartbeats, and joins during which its claims go on (KIP-429).

For each generation: the assignment is applied (`Assignable.assign`), which revokes what another member is to get, and
heartbeats are sent. The member joins again when a heartbeat says that the group rebalances, or at once when it has
revoked partitions, as only the next assignment can give them to their new owners (`onJoinComplete` in Java's
`ConsumerCoordinator`); the leader also if no such member does (`WithheldPartitions`). What it keeps is consumed all the time, and committed under the newest generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, Protocol

from asyncgroup.errors import AssignmentError, AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.group.classic.heartbeat_schedule import EARLY_HEARTBEATS
from asyncgroup.group.classic.heartbeats import ClassicHeartbeats
from asyncgroup.group.classic.join_requests import JoinAction, join_action, shorten
from asyncgroup.group.membership import JOIN_GRACE, Assignable, HeartbeatResult, JoinedGroup
from asyncgroup.group.topics.subscription_pattern import check_classic
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import TopicPartition

__all__ = ["CooperativeStay", "WithheldPartitions", "check_kept"]

_log = logging.getLogger("asyncgroup.group")

_MAX_NAMED: Final = 10
"""The largest number of partitions in a log message and a reason."""

GROUP_REBALANCES = "rebalance: a member joined, left or changed its topics"
REVOKED = "revoked partitions that another member gets"


def check_kept(
    group_id: str,
    former_generation: int,
    owned: Iterable[TopicPartition],
    joined: JoinedGroup,
    existing: Container[str],
) -> None:
    """Raise BrokerError if others may have got partitions that a member owned before it joined a consumer group again.

    Such a group (KIP-848) keeps a member in its epoch until it no longer reports what it is to revoke
    (`CurrentAssignmentBuilder`). A newer epoch without an owned partition therefore means that the coordinator had removed the
    member. A classic group refuses its JoinGroup then, with UNKNOWN_MEMBER_ID; a consumer group adds it as a new member that has
    the former id (`classicGroupJoinToConsumerGroup` in `GroupMetadataManager`), and accepts its commits for any partition.

    `existing` has the names of the topics: no member gets the partitions of a deleted one.
    """
    if joined.identity.generation_id == former_generation:
        return
    lost = [tp for tp in owned if tp.partition not in joined.assignment.get(tp.topic, ())]
    if names := ", ".join(str(tp) for tp in lost if tp.topic in existing):
        detail = f"others may have got {names}: the member was removed after generation {former_generation}"
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION, f"join of group {group_id!r}", detail)


class WithheldPartitions:
    """What this leader withheld in its last assignment, and by when another rebalance has to follow.

    A cooperative assignor gives a partition that another member owns to no member at first (KIP-429): its owner revokes it
    and joins again, and the rebalance that this begins assigns it. A static owner that is restarted in between does not begin
    one: the coordinator gives its new process the present assignment (KIP-345, in Kafka's `GroupMetadataManager`
    `updateStaticMemberThenRebalanceOrCompleteJoin`). The partition then has no owner until the group rebalances for another
    reason, as with Java's `ConsumerCoordinator`. Here the leader joins again, which begins a rebalance also in a stable
    group (`classicGroupJoinExistingMember` in the same file).

    It waits for its own `rebalance_timeout`, as a leader does not know those of other members, and for `JOIN_GRACE` and a
    heartbeat, by which it learns of a rebalance. If an owner revokes for longer than that, no rebalance is added: it joins
    in the one that the leader has begun. A partition that is withheld in the next generation as well has an owner that is
    still in the group and does not join: the wait doubles each time. (An owner that is down is removed by the rebalance as
    it sends no SyncGroup, KAFKA-12890, by older brokers at the end of its session.)

    A static leader that returns after a restart keeps its assignment (KIP-814); by `cooperative-sticky` it waits as long again,
    if a partition has no owner then. Not covered: leaders with a user's assignor that return, and other clients'.
    """

    def __init__(self, group_id: str, rebalance_timeout: float, heartbeat_interval: float) -> None:
        """`rebalance_timeout` and `heartbeat_interval` are the leader's, in seconds."""
        self._group_id = group_id
        self._first_wait = rebalance_timeout + JOIN_GRACE + heartbeat_interval
        self._wait = self._first_wait  # in this generation
        self._partitions: frozenset[TopicPartition] = frozenset()

    def __repr__(self) -> str:
        return f"<WithheldPartitions: {len(self._partitions)}>"

    def replace(self, partitions: frozenset[TopicPartition]) -> None:
        """Take note of a new generation, whose assignment withheld these; none if this member did not make it."""
        self._wait = 2 * self._wait if partitions & self._partitions else self._first_wait
        self._partitions = partitions

    @contextlib.contextmanager
    def watched(self, synced_at: float | None, rejoin: Callable[[str], bool]) -> Iterator[None]:
        """Call `rejoin(reason)` if the block, which lasts for a generation, outlasts the wait. It returns whether it joins again.

        `synced_at` is the loop time of the response to SyncGroup, by default now.
        """
        if not self._partitions:
            yield
            return
        loop = asyncio.get_running_loop()
        since = loop.time() if synced_at is None else synced_at
        timer = loop.call_at(since + self._wait, self._on_overdue, rejoin)
        try:
            yield
        finally:
            timer.cancel()

    def _on_overdue(self, rejoin: Callable[[str], bool]) -> None:
        named = ", ".join(map(str, sorted(self._partitions)[:_MAX_NAMED]))
        if (more := len(self._partitions) - _MAX_NAMED) > 0:
            named += f" and {more} more"
        if rejoin(f"no member owns {named}, and no rebalance has followed"):
            text = "group %s: no member owns %s: the former owner has not joined again within %.3g s; beginning a rebalance"
            _log.warning(text, self._group_id, named, self._wait)


class _Joins(Protocol):
    """What a stay needs of its membership."""

    heartbeats: ClassicHeartbeats
    withheld: WithheldPartitions

    def repeat_join(self) -> None: ...

    async def join_again(
        self, topics: list[str], reason: str, owned: list[TopicPartition]
    ) -> JoinedGroup: ...


class CooperativeStay:
    """Keeps one member in its group until the membership is lost."""

    def __init__(self, membership: _Joins, member: Assignable) -> None:
        self._membership = membership
        self._member = member
        self._reason = ""  # why to join again
        self._joins_again = asyncio.Event()

    async def run(self, joined: JoinedGroup) -> None:
        """Return when the membership is lost, which has been reported. The first assignment is applied already."""
        is_first = True
        while True:
            with self._membership.withheld.watched(joined.synced_at, self._rejoin_as_leader):
                topics = await self._stay_in_generation(joined, is_first=is_first)
            again = None if topics is None else await self._join_again(topics)
            if again is None:
                return
            joined, is_first = again, False

    def rejoin(self, reason: str) -> None:
        """Join again as soon as the assignment is applied; the coordinator gets the first of several reasons."""
        if not self._joins_again.is_set():
            self._reason = reason
            self._joins_again.set()

    def _rejoin_as_leader(self, reason: str) -> bool:
        """Begin the rebalance that withheld partitions wait for, unless the member joins again already."""
        if self._joins_again.is_set() or self._member.ended:
            return False
        self.rejoin(shorten(reason))
        return True

    async def _stay_in_generation(self, joined: JoinedGroup, *, is_first: bool) -> list[str] | None:
        """Apply the assignment and send heartbeats until the member has to join again; None if it was lost.

        Returns the topics to join with, once the partitions of all others are revoked.
        """
        if not is_first:
            self._joins_again.clear()
        heartbeats = start_task(
            self._membership.heartbeats.run(
                joined.identity, self._on_heartbeat, joined.synced_at, EARLY_HEARTBEATS
            )
        )
        living = start_task(self._live(joined, is_first=is_first))
        try:
            await asyncio.wait({heartbeats, living}, return_when=asyncio.FIRST_COMPLETED)
            if living.done() and living.result() is None:
                # the session ends: it needs its membership for the last commit, and cancels this when all is done
                await asyncio.wait({heartbeats})
            if heartbeats.done():
                heartbeats.result()
                self._joins_again.set()  # the session ends, and a revocation that has begun is completed before
                await living
                return None
            return living.result()
        finally:
            await cancel_and_wait(heartbeats, living)

    async def _live(self, joined: JoinedGroup, *, is_first: bool) -> list[str] | None:
        if not is_first:
            # not what was revoked: of claims that had not started yet there is nothing to revoke
            owned = set(self._member.owned)
            await self._member.assign(joined)
            if owned.difference(self._member.owned) and not self._member.ended:
                self.rejoin(REVOKED)
        await self._joins_again.wait()
        topics = await self._member.prepare_join()
        # `set_topics` refuses patterns for the broker
        return None if topics is None else check_classic(topics)

    def _on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        if result is HeartbeatResult.REBALANCE and not self._member.ended:
            self.rejoin(GROUP_REBALANCES)
        else:
            self._member.on_heartbeat(result, error)

    async def _join_again(self, topics: list[str]) -> JoinedGroup | None:
        """Join with the partitions that the member owns; None if it is no longer a member, which is reported."""
        heartbeats, joined = self._membership.heartbeats, None
        heartbeats.suspend(self._membership.repeat_join)
        try:
            joined = await self._join(topics)
        finally:
            heartbeats.resume(is_member=joined is not None)
        return joined

    async def _join(self, topics: list[str]) -> JoinedGroup | None:
        heartbeats, joined = self._membership.heartbeats, None
        result, error = HeartbeatResult.LOST, None
        try:
            joined = await self._membership.join_again(topics, self._reason, self._member.owned)
        except (AssignmentError, BrokerError, TransportError) as failure:
            error = failure
            if isinstance(error, AssignmentError) or join_action(error) is JoinAction.FAIL:
                result = HeartbeatResult.FATAL
        left_because = heartbeats.take_report()
        if left_because is not None:  # the event loop was blocked for too long; the leave may arrive later
            self._member.on_heartbeat(HeartbeatResult.LOST, left_because)
            return None
        if joined is None:
            self._member.on_heartbeat(result, error)
        return joined
