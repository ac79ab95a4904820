"""What a member of a group has told about itself, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncgroup import Claim, Handler, Record, Session

__all__ = ["MemberLog", "RecordingHandler", "ReportingHooks", "SeenSession", "Tell"]

Tell = Callable[..., None]
"""`tell(kind, **facts)`; facts are values that JSON can carry, as a member may live in another process."""


@dataclass
class SeenSession:
    """One session of a member, from its assignment on; `cause` is the name of its end's class."""

    member_id: str
    generation: int
    is_leader: bool
    assignment: dict[str, list[int]]
    cause: str | None = None
    lost: bool = False


@dataclass
class MemberLog:
    """All that a member told. `handled` holds (topic, partition, offset) in order, repeats included."""

    name: str
    sessions: list[SeenSession] = field(default_factory=list)
    handled: list[tuple[str, int, int]] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    running: bool = False
    _leader: bool = False

    @property
    def session(self) -> SeenSession | None:
        """The session that lives now."""
        return self.sessions[-1] if self.sessions and self.sessions[-1].cause is None else None

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event in."""
        facts = dict(event)
        getattr(self, "_on_" + facts.pop("kind"))(**facts)

    def _on_running(self) -> None:
        self.running = True

    def _on_joined(self, *, leader: bool) -> None:
        self._leader = leader

    def _on_assigned(self, *, member_id: str, generation: int, assignment: dict[str, list[int]]) -> None:
        self.sessions.append(SeenSession(member_id, generation, self._leader, assignment))

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
    """Tells of everything and marks every record when its work is done."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    async def on_assigned(self, session: Session, partitions: object) -> None:
        self.tell(
            "assigned",
            member_id=session.member_id,
            generation=session.generation_id,
            assignment=session.assignment,
        )

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            await self.work(record)
            self.tell("record", topic=record.topic, partition=record.partition, offset=record.offset)
            claim.mark(record)

    async def work(self, record: Record) -> None:
        """What there is to do with a record; nothing here."""

    async def on_lost(self, session: Session, partitions: object) -> None:
        self.tell("lost")


class ReportingHooks:
    """What a handler does not see: leadership, commits, the end of a session and its cause."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def on_join(self, _group: str, _member: str, _generation: int, leader: bool) -> None:
        self.tell("joined", leader=leader)

    def on_commit(self, _group: str, offsets: dict[Any, Any], error: object) -> None:
        committed = {str(tp): committed.offset for tp, committed in offsets.items()}
        self.tell("commit", offsets=committed, error=repr(error) if error else None)

    def on_session_end(self, _session: Session, cause: object) -> None:
        self.tell("ended", cause=type(cause).__name__)
