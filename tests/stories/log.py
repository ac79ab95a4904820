"""The events that a group member reports, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from asyncgroup import Claim, Handler, Record, Session
from asyncgroup.model import TopicPartition, by_topic

__all__ = ["MemberLog", "RecordedSession", "RecordingHandler", "Report", "ReportingHooks"]

Report = Callable[..., None]
"""`report(kind, **facts)`; the facts must be JSON values, because a member may run in another process."""


@dataclass
class RecordedSession:
    """One session of a member, from its first assignment on; `cause` is the class name of the cause of its end.

    Generation, leader and assignment are the newest ones, as a session may last over rebalances.
    """

    member_id: str
    generation: int
    is_leader: bool
    assignment: dict[str, list[int]]
    cause: str | None = None
    lost: bool = False


@dataclass
class MemberLog:
    """All events of a member. `handled` has (topic, partition, offset) in order, including repeats."""

    name: str
    sessions: list[RecordedSession] = field(default_factory=list)
    handled: list[tuple[str, int, int]] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    running: bool = False
    _leader: bool = False

    @property
    def session(self) -> RecordedSession | None:
        """The active session."""
        return self.sessions[-1] if self.sessions and self.sessions[-1].cause is None else None

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply one event."""
        facts = dict(event)
        getattr(self, "_on_" + facts.pop("kind"))(**facts)

    def _on_running(self) -> None:
        self.running = True

    def _on_joined(self, *, member_id: str, generation: int, leader: bool) -> None:
        self._leader = leader
        if (session := self.session) is not None:  # it goes on
            session.member_id, session.generation, session.is_leader = member_id, generation, leader

    def _on_assigned(self, *, member_id: str, generation: int, assignment: dict[str, list[int]]) -> None:
        if self.session is None:
            self.sessions.append(RecordedSession(member_id, generation, self._leader, assignment))
        else:
            self.session.assignment = assignment

    def _on_revoked(self, *, assignment: dict[str, list[int]]) -> None:
        if self.session is not None:
            self.session.assignment = assignment

    def _on_record(self, *, topic: str, partition: int, offset: int) -> None:
        self.handled.append((topic, partition, offset))

    def _on_lost(self) -> None:
        self.sessions[-1].lost = True

    def _on_commit(self, *, offsets: dict[str, int], error: str | None) -> None:
        self.commits.append({"offsets": offsets, "error": error})

    def _on_ended(self, *, cause: str) -> None:
        if self.sessions:
            self.sessions[-1].cause = cause

    def _on_stopped(self, *, failure: str | None) -> None:
        self.running, self.failure = False, failure

    def __str__(self) -> str:
        state = f"{self.session}" if self.session else f"no session after {self.sessions[-1:]}"
        end = "" if self.running else f", stopped: {self.failure}"
        return f"{self.name}: {state}, {len(self.handled)} records handled{end}"


class RecordingHandler(Handler):
    """Reports every event and marks each record after handling it."""

    def __init__(self, report: Report) -> None:
        self.report = report

    async def on_assigned(self, session: Session, partitions: object) -> None:
        self.report(
            "assigned",
            member_id=session.member_id,
            generation=session.generation_id,
            assignment=session.assignment,
        )

    async def on_revoked(self, session: Session, partitions: object) -> None:
        if session.ended:
            return
        kept = [tp for tp in session.partitions if tp not in cast("list[TopicPartition]", partitions)]
        self.report("revoked", assignment=by_topic(kept))

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            await self.work(record)
            self.report("record", topic=record.topic, partition=record.partition, offset=record.offset)
            claim.mark(record)

    async def work(self, record: Record) -> None:
        """Handle a record; does nothing by default."""

    async def on_lost(self, session: Session, partitions: object) -> None:
        self.report("lost")


class ReportingHooks:
    """Reports what a handler does not see: leadership, commits, the end of a session and its cause."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def on_join(self, _group: str, member: str, generation: int, leader: bool) -> None:
        self.report("joined", member_id=member, generation=generation, leader=leader)

    def on_commit(self, _group: str, offsets: dict[Any, Any], error: object) -> None:
        committed = {str(tp): committed.offset for tp, committed in offsets.items()}
        self.report("commit", offsets=committed, error=repr(error) if error else None)

    def on_session_end(self, _session: Session, cause: object) -> None:
        self.report("ended", cause=type(cause).__name__)
