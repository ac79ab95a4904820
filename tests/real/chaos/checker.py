"""Check the journals of a chaos run: no record is lost or out of order, and every duplicate has a valid reason."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.real.chaos.journal import Delivery, Life, SessionLog

__all__ = ["Evidence", "Reason", "Verdict", "judge"]

REFUSALS = ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
GRACE = 1.0
"""Seconds after which a description of the group shows that a member was not removed."""


class Reason(Enum):
    """Why a record was delivered again: how the session of its previous delivery ended."""

    KILLED = "its member was killed"
    FROZEN = "its member was frozen"
    NO_BROKER = "no broker answered its member"
    OUTDATED = "its generation was refused, though its member was never frozen"
    EXPELLED = "the coordinator had expelled its member"
    FORMER_COORDINATOR = "a former coordinator refused its member, which the group still had"
    ORDERLY = "its session ended in order"
    SAME_SESSION = "its session had not ended"


ALLOWED = frozenset({Reason.KILLED, Reason.FROZEN, Reason.EXPELLED})


class Span(NamedTuple):
    """A time span in which a process was stopped."""

    begin: float
    end: float


@dataclass
class Evidence:
    """What the story knows in addition to the journals."""

    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    """The value of each acknowledged record by (partition, offset)."""
    killed: set[str] = field(default_factory=set)
    """The names of processes (`Life`) that were killed."""
    frozen: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    """The spans in which a process was stopped for longer than its session timeout."""
    described: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    """The group's member ids, with the time of the request for them."""
    reach: float = 0.0
    """Seconds for which a freeze can have consequences."""


@dataclass
class Verdict:
    """The outcome; `problems` names every broken promise."""

    delivered: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class _Receipt(NamedTuple):
    at: float
    life: Life
    session: SessionLog


def judge(lives: Sequence[Life], evidence: Evidence) -> Verdict:
    """Check the promises of the guide over all lives."""
    verdict = Verdict()
    receipts: dict[tuple[int, int], list[_Receipt]] = defaultdict(list)
    for life in lives:
        verdict.problems += _leaks(life)
        for session in life.sessions:
            verdict.problems += _disorder(life, session)
            for delivery in session.deliveries:
                verdict.delivered += 1
                verdict.problems += _wrong_value(delivery, evidence.acknowledged)
                receipts[delivery[:2]].append(_Receipt(delivery.at, life, session))
    missing = evidence.acknowledged.keys() - receipts.keys()
    if missing:
        verdict.problems.append(f"{len(missing)} acknowledged records were lost: {sorted(missing)[:5]}")
    for place, own in receipts.items():
        own.sort(key=lambda each: each.at)
        for before, after in itertools.pairwise(own):
            reason = _reason(before, after, evidence)
            verdict.reasons[reason] += 1
            if reason not in ALLOWED and verdict.reasons[reason] <= 3:
                verdict.problems.append(_duplicate(place, reason, before, after))
    return verdict


def _reason(before: _Receipt, after: _Receipt, evidence: Evidence) -> Reason:
    """How the earlier delivery's session ended."""
    life, session = before.life, before.session
    if session is after.session:
        return Reason.SAME_SESSION
    if _was_frozen(evidence.frozen.get(life.name, []), session, evidence.reach):
        return Reason.FROZEN
    # a member that continues delivers the records that it has buffered, until it learns that it lost its partitions
    if any(
        span.end <= after.at <= span.end + evidence.reach
        for span in evidence.frozen.get(after.life.name, [])
        if after.session.begin <= span.begin
    ):
        return Reason.FROZEN
    if session.end is None:
        return Reason.KILLED if life.name in evidence.killed else Reason.SAME_SESSION
    if session.cause == "MemberLost":
        return _loss(session, evidence)
    # a session that had begun to end when its process was killed has no last commit
    if life.name in evidence.killed and session is life.sessions[-1] and life.closed is None:
        return Reason.KILLED
    return Reason.ORDERLY


def _was_frozen(spans: Iterable[Span], session: SessionLog, reach: float) -> bool:
    """Whether a freeze may have affected this session or its end."""
    end = session.end if session.end is not None else float("inf")
    return any(span.begin <= end + reach and span.end + reach >= session.begin for span in spans)


def _loss(session: SessionLog, evidence: Evidence) -> Reason:
    """Return why a member considered itself lost, and whether the group had removed it."""
    if "ILLEGAL_GENERATION" in session.text:
        return Reason.OUTDATED
    if not any(name in session.text for name in REFUSALS):
        return Reason.NO_BROKER
    assert session.end is not None
    later = (members for at, members in evidence.described if at >= session.end + GRACE)
    still_there = any(session.member_id in members for members in later)
    return Reason.FORMER_COORDINATOR if still_there else Reason.EXPELLED


def _duplicate(place: tuple[int, int], reason: Reason, before: _Receipt, after: _Receipt) -> str:
    session, number = before.session, place[0]
    commits = (
        f"; committed {session.committed.get(number)}, the next began at {after.session.starts.get(number)}"
    )
    if session.failed_commits:
        commits += f"; failed commits: {session.failed_commits[-3:]}"
    return (
        f"partition {place[0]} offset {place[1]} came twice, {reason.value}: {before.life.name} at {before.at:.3f} "
        f"(session {session.generation_id} of {session.member_id} ended {session.end} by {session.cause}: "
        f"{session.text}{commits}), {after.life.name} at {after.at:.3f}"
    )


def _disorder(life: Life, session: SessionLog) -> list[str]:
    """Report offsets of a partition that do not increase within a session."""
    last: dict[int, int] = {}
    for partition, offset, _, at in session.deliveries:
        if offset <= last.get(partition, -1):
            return [f"{life.name}: partition {partition} went from {last[partition]} to {offset} at {at:.3f}"]
        last[partition] = offset
    return []


def _wrong_value(delivery: Delivery, acknowledged: Mapping[tuple[int, int], int]) -> list[str]:
    """Report a delivered value that differs from the acknowledged one; unacknowledged records may be delivered."""
    expected = acknowledged.get(delivery[:2], delivery.value)
    return [] if expected == delivery.value else [f"{delivery} has a value other than {expected}"]


def _leaks(life: Life) -> list[str]:
    if life.closed is None or not life.sockets_left + life.tasks_left:
        return []
    return [f"{life.name} left {life.sockets_left} sockets and {life.tasks_left} tasks"]
