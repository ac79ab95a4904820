"""SessionState: assignment, claims, and why a session ends. ClaimSet: what an assignment revokes and adds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set as AbstractSet
from typing import Any, TypeVar

from asyncgroup.errors import AsyncGroupError, HandlerFailed, MemberLost, SessionEnd, SessionFailed
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.health.problems import ProblemKind
from asyncgroup.group.membership import ClaimChanges, JoinedGroup
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.lifecycle import add_note, describe_error, run_until
from asyncgroup.log_events import log_fields
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.offsets import Committer

__all__ = ["ClaimSet", "SessionState"]

_log = logging.getLogger("asyncgroup.group")

T = TypeVar("T")


class ClaimSet:
    """The claims of a session by partition; claims in neither part of a change go on untouched.

    An assigned partition is *starting* until its start offset is known and its claim is added. A revoked claim stays in
    the set until `remove`: its marks can be committed while its handler drains.
    """

    def __init__(self) -> None:
        self._claims: dict[tuple[str, int], Claim] = {}
        self._starting: dict[TopicPartition, int] = {}  # with the `version` that added them
        self.version = 0
        """The number of assignments so far."""

    def __repr__(self) -> str:
        return f"<ClaimSet: {len(self._claims)} claims, {len(self._starting)} starting>"

    def __iter__(self) -> Iterator[Claim]:
        # a copy: claims are removed while a loop ends them
        return iter(list(self._claims.values()))

    def get(self, tp: tuple[str, int]) -> Claim | None:
        """Return the claim of a partition, or None."""
        return self._claims.get(tp)

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that are claimed or starting, sorted: those that the member owns in the group."""
        return sorted({*(claim.tp for claim in self), *self._starting})

    @property
    def starting(self) -> AbstractSet[TopicPartition]:
        """The assigned partitions whose claims have not been added yet."""
        return self._starting.keys()

    def apply(self, assignment: Mapping[str, Sequence[int]]) -> ClaimChanges:
        """Make this the assignment; return what it revokes and what it adds. An empty one revokes all (eager)."""
        self.version += 1
        wanted = {
            TopicPartition(topic, number) for topic, numbers in assignment.items() for number in numbers
        }
        changes = ClaimChanges(
            sorted(claim.tp for claim in self if claim.tp not in wanted),
            # one that is starting already keeps its lookup
            sorted(tp for tp in wanted if tp not in self._claims and tp not in self._starting),
        )
        # those that are revoked before they have started have no claim to end
        starting = {tp: version for tp, version in self._starting.items() if tp in wanted}
        self._starting = starting | dict.fromkeys(changes.added, self.version)
        return changes

    def is_starting(self, tp: TopicPartition, version: int) -> bool:
        """Whether a claim may be added whose start offset was requested under this `version`.

        The partition has no claim, and was assigned all the time since then: else another member may have owned it and
        committed a later offset.
        """
        return tp in self._starting and self._starting[tp] <= version

    def add(self, claim: Claim) -> None:
        """Add the claim of a partition that is starting."""
        self._starting.pop(claim.tp, None)
        self._claims[claim.tp] = claim

    def remove(self, tp: TopicPartition) -> None:
        """Remove a claim that has ended."""
        self._claims.pop(tp, None)


class SessionState:
    """The state of a session: identity, assignment, claims, why it ends, and the exception for `consume()`."""

    def __init__(
        self,
        group_id: str,
        joined: JoinedGroup,
        offsets: Committer,
        member_health: MemberHealth,
        *,
        auto_commit: bool = True,
    ) -> None:
        self.member_health = member_health
        self.group_id = group_id
        self.identity = joined.identity
        """The member that commits now; its generation changes if the session lasts through a rebalance."""
        self.assignment = joined.assignment
        self.user_data = joined.user_data
        """The user data of the assignment, for assignors that send some; else None."""
        self.auto_commit = auto_commit
        """Whether marks are committed automatically, and so outside of transactions."""
        self.claims = ClaimSet()
        self.offsets = offsets
        self.cause: SessionEnd | None = None
        """Why the session ends; None while it is live."""
        self.failure: BaseException | None = None
        """The first failure, which `consume()` raises; None if there was none."""
        self.failed_by_handler = False
        """Whether it is the handler's exception."""
        self.on_end: Callable[[SessionEnd], None] | None = None
        self.accepts_marks = True
        """Whether new marks can still be committed: False once the last commit has begun, and after a loss."""
        self.is_over = False
        """Whether the session has ended completely, so that nothing can be committed."""
        self._ending = asyncio.Event()
        self._lost = asyncio.Event()

    @property
    def partitions(self) -> list[TopicPartition]:
        """All assigned partitions, sorted."""
        return [TopicPartition(topic, p) for topic in sorted(self.assignment) for p in self.assignment[topic]]

    @property
    def ended(self) -> bool:
        """Whether the session is ending or has ended."""
        return self.cause is not None

    @property
    def is_lost(self) -> bool:
        """Whether the membership was lost, so that nothing can be committed."""
        return isinstance(self.cause, MemberLost)

    async def wait_ended(self) -> None:
        """Wait until the session begins to end."""
        await self._ending.wait()

    async def wait_lost(self) -> None:
        """Wait until the membership is lost; forever if the session ends regularly."""
        await self._lost.wait()

    async def run_until_ended(self, work: Coroutine[Any, Any, T], what: str) -> T | None:
        """Return the result of `work`; None if it failed or the session ended first, which cancels it."""
        # the end of the session wins, also if both come in one turn of the event loop
        task = await run_until(self.wait_ended(), work, f"{self.group_id}: {what}")
        if task.cancelled():
            return None
        error = task.exception()
        if error is None:
            return None if self.ended else task.result()
        # a bug: it ends the member and not only the session
        if not isinstance(error, AsyncGroupError):
            raise error
        self.fail(error, f"the session could not find its {what}", by_handler=False)
        return None

    def end(self, cause: SessionEnd) -> None:
        """Begin to end the session: the iterators of all claims stop before their next record.

        The first cause is kept, except that a loss replaces it: nothing may be committed after a loss.
        """
        is_news = self.cause is None or (isinstance(cause, MemberLost) and not self.is_lost)
        if is_news:
            self.cause = cause
            # before the iterators end: a mark made by that must not count
            if isinstance(cause, MemberLost):
                self.accepts_marks = False
                self._lost.set()
                reason = cause.__cause__
                self.offsets.mark_lost(reason if isinstance(reason, AsyncGroupError) else cause)
            for claim in self.claims:
                claim._inner.end(cause)
            self._ending.set()
        # called for each cause, counted or not: the member decides what it does next
        if self.on_end is not None:
            self.on_end(cause)

    def lose(
        self, text: str, error: AsyncGroupError | None, *, is_fatal: bool, is_logged: bool = False
    ) -> None:
        """End the session because the membership is lost; the caller gets an error that is fatal for the group object.

        The loss is a problem from now on. `is_logged`: the reason has been logged as a warning already.
        """
        cause = MemberLost(text)
        if is_fatal and self.failure is None:
            self.failure = error
        if not self.is_lost:
            fields = log_fields(
                "lost", group=self.group_id, generation=self.identity.generation_id, error=error
            )
            level = logging.INFO if is_logged else logging.WARNING
            _log.log(level, "group %s: %s", self.group_id, text, extra=fields)
            self.member_health.report(ProblemKind.LOST, error or cause)
        if error is not None and is_fatal:
            self.member_health.count_error(error)
        elif error is not None:
            self.member_health.report_error(error)
        self._end_because_of(error, cause)

    def fail(self, error: BaseException, what: str, *, by_handler: bool = True) -> None:
        """End the session. The caller gets the first failure, with later ones as notes. Handler failures are logged."""
        text = f"{what}: {describe_error(error)}"
        is_first = self.failure is None
        if self.failure is None:
            self.failure, self.failed_by_handler = error, by_handler
        else:
            add_note(self.failure, f"at the same time: {text}")
        if by_handler:
            self.member_health.count_error(error, text)
            if is_first:
                self.member_health.report(ProblemKind.HANDLER, error, text)
        else:
            self.member_health.count_error(error)
        # the cause is a text for all claims; the exception itself goes to the caller
        kind = HandlerFailed if by_handler else SessionFailed
        self._end_because_of(error, kind(text))
        # logged after the end: a program's log filter that raises must not keep the session alive
        if by_handler or not is_first:
            fields = log_fields("handler_failed", group=self.group_id, error=error)
            _log.error("group %s: %s", self.group_id, text, exc_info=error, extra=fields)

    def _end_because_of(self, error: BaseException | None, cause: SessionEnd) -> None:
        cause.__cause__ = error
        self.end(cause)

    def group_offsets(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> GroupOffsets:
        """Return offsets for a transaction, with the member that commits them now."""
        identity = self.identity
        return GroupOffsets(
            self.group_id,
            offsets,
            identity.member_id,
            identity.generation_id,
            identity.group_instance_id,
        )

    def close(self) -> None:
        """The session has ended completely: reject later commits and marks."""
        self.is_over = True
        for claim in self.claims:
            self.offsets.drop(claim.tp)
