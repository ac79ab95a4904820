"""Reasons of JoinGroup requests (KIP-800)."""

from __future__ import annotations

import pytest

from asyncgroup import errors
from asyncgroup.errors import SessionEnd
from asyncgroup.group.classic.join_requests import MAX_REASON_LENGTH, join_reason, shorten


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (None, "joining"),
        (errors.Rebalanced("why"), "rebalance: a member joined, left or changed its topics"),
        (errors.PartitionsChanged("t has 6"), "topics changed: t has 6"),
        (errors.TopicsChanged("by set_topics"), "topics changed: by set_topics"),
        (errors.MemberLost("no answer"), "membership lost: no answer"),
        (errors.ClaimReturned("t-1"), "claim returned: t-1"),
        (errors.HandlerFailed("KeyError"), "handler failed: KeyError"),
        (errors.SessionFailed("offsets"), "session failed: offsets"),
        (errors.GroupClosed("by the user"), "joining"),
        (errors.CallerCancelled("by the user"), "joining"),
        (SessionEnd("something new"), "rebalance: something new"),
    ],
)
def test_the_cause_of_the_last_end_is_the_reason(cause: SessionEnd | None, reason: str) -> None:
    assert join_reason(cause, ["a"], ["a"]) == reason
    assert join_reason(cause, None, ["a"]) == reason


def test_every_cause_has_its_own_reason() -> None:
    known = {cause: join_reason(cause("x"), None, []) for cause in SessionEnd.__subclasses__()}
    assert len(known) > 5
    assert all(not reason.startswith("rebalance: x") for reason in known.values()), known


def test_changed_topics_are_the_reason() -> None:
    assert join_reason(errors.Rebalanced(""), ["a", "b"], ["c", "b", "d"]) == "topics changed: +c +d -a"


def test_reasons_are_truncated() -> None:
    assert shorten("x" * MAX_REASON_LENGTH) == "x" * MAX_REASON_LENGTH
    assert len(join_reason(errors.MemberLost("y" * 999), None, [])) == MAX_REASON_LENGTH
