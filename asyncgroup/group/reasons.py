"""Reasons of JoinGroup and LeaveGroup requests, for the broker's log (KIP-800)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from asyncgroup.errors import (
    CallerCancelled,
    ClaimReturned,
    GroupClosed,
    HandlerFailed,
    MemberLost,
    PartitionsChanged,
    Rebalanced,
    SessionEnd,
    SessionFailed,
    TopicsChanged,
)

__all__ = ["CANCELLED", "CLOSED", "MAX_LENGTH", "join_reason", "shorten"]

MAX_LENGTH: Final = 255
"""Most characters of a reason, as in Java (`JoinGroupRequest.maybeTruncateReason`)."""

CLOSED: Final = "closing: the group object was closed"
"""The reason to leave at `aclose()`."""

CANCELLED: Final = "closing: the task that consumes was cancelled"
"""The reason to leave when `consume()` or `run()` was cancelled."""

_JOINING: Final = "joining"
_WHY: Final[Mapping[type[SessionEnd], str]] = {
    Rebalanced: "rebalance: a member joined, left or changed its topics",
    PartitionsChanged: "topics changed: {}",
    TopicsChanged: "topics changed: {}",
    MemberLost: "membership lost: {}",
    ClaimReturned: "claim returned: {}",
    HandlerFailed: "handler failed: {}",
    SessionFailed: "session failed: {}",
    GroupClosed: _JOINING,  # after these the member has left, and joins as a new one
    CallerCancelled: _JOINING,
}


def join_reason(cause: SessionEnd | None, last_topics: Iterable[str] | None, topics: Iterable[str]) -> str:
    """Return the reason of a join after a session that ended for `cause`; `last_topics` are those of the last join."""
    now, before = set(topics), set(topics if last_topics is None else last_topics)
    if now != before:
        signed = [*(f"+{topic}" for topic in sorted(now - before)), *(f"-{t}" for t in sorted(before - now))]
        return shorten(f"topics changed: {' '.join(signed)}")
    if cause is None:
        return _JOINING
    template = next((_WHY[kind] for kind in type(cause).__mro__ if kind in _WHY), "rebalance: {}")
    return shorten(template.format(cause))


def shorten(reason: str) -> str:
    """Return the reason, truncated to MAX_LENGTH."""
    return reason if len(reason) <= MAX_LENGTH else reason[: MAX_LENGTH - 1] + "…"
