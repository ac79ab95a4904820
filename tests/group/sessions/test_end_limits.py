"""Deadlines of session shutdown: the most urgent cause counts, and each phase has a minimum of time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from asyncgroup import errors
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import Rebalanced, SessionEnd
from asyncgroup.group.sessions.end_limits import EndLimits, reserve_for
from asyncgroup.testing import run_virtual

OTHERS = [
    errors.ClaimReturned,
    errors.HandlerFailed,
    errors.MemberLost,
    errors.PartitionsChanged,
    errors.TopicsChanged,
]
CLOSING = [errors.GroupClosed, errors.CallerCancelled]


def limits_of(last_stable_sent_at: float = 0.0, rebalance: float = 60.0, close: float = 30.0) -> EndLimits:
    config = ConsumerConfig(rebalance_timeout=rebalance, heartbeat_interval=0.1, close_timeout=close)
    return EndLimits(config, lambda: last_stable_sent_at)


@pytest.mark.parametrize(
    ("timeout", "reserve"), [(5.0, 1.0), (10.0, 2.0), (25.0, 5.0), (60.0, 5.0), (0.1, 0.02)]
)
def test_the_reserve(timeout: float, reserve: float) -> None:
    assert reserve_for(timeout) == pytest.approx(reserve)


async def test_a_rebalance_counts_from_the_last_successful_heartbeat() -> None:
    await asyncio.sleep(10)
    limits = limits_of(last_stable_sent_at=7.0)
    limits.add_cause(Rebalanced("x"))
    assert limits.deadline == 67.0
    assert limits.handler_seconds == 52.0
    await asyncio.sleep(52)
    assert limits.handler_seconds == 0
    assert limits.hook_seconds == 2.5
    assert limits.commit_seconds == 3.75


async def test_a_last_successful_heartbeat_long_ago_leaves_a_minimum() -> None:
    """The coordinator was down for a minute, so the start of the rebalance is unknown."""
    await asyncio.sleep(100)
    limits = limits_of(last_stable_sent_at=20.0)
    limits.add_cause(Rebalanced("x"))
    assert limits.deadline == 115.0


@pytest.mark.parametrize("kind", OTHERS)
async def test_other_causes_count_from_now(kind: type[SessionEnd]) -> None:
    await asyncio.sleep(10)
    limits = limits_of()
    limits.add_cause(kind("x"))
    assert limits.deadline == 70.0


@pytest.mark.parametrize("kind", CLOSING)
async def test_a_close_has_close_timeout_in_total(kind: type[SessionEnd]) -> None:
    limits = limits_of(close=10.0)
    limits.add_cause(kind("x"))
    assert (limits.deadline, limits.handler_seconds) == (10.0, 8.0)


async def test_the_most_urgent_cause_counts_and_a_repeated_one_changes_nothing() -> None:
    limits = limits_of(last_stable_sent_at=0.0, rebalance=60.0, close=10.0)
    limits.add_cause(Rebalanced("x"))
    assert limits.deadline == 60.0
    await asyncio.sleep(5)
    limits.add_cause(Rebalanced("again"))
    assert (limits.deadline, limits.ending_since) == (60.0, 0.0)
    limits.add_cause(errors.GroupClosed("x"))
    assert limits.deadline == 15.0
    await asyncio.sleep(5)
    limits.add_cause(errors.CallerCancelled("x"))
    assert limits.deadline == 15.0


async def test_a_revocation_has_no_more_time_than_the_end_of_its_session() -> None:
    session = limits_of(rebalance=60.0, close=10.0)
    revocation = EndLimits(ConsumerConfig(rebalance_timeout=60.0), lambda: 0.0, within=session)
    revocation.add_cause(Rebalanced("x"))
    parts = ("handler_seconds", "hook_seconds", "commit_seconds")
    assert [getattr(revocation, part) for part in parts] == [55.0, 57.5, 58.75], "while the session goes on"
    session.add_cause(errors.GroupClosed("x"))
    assert [getattr(revocation, part) for part in parts] == [8.0, 9.0, 9.5]
    assert revocation.deadline == 60.0
    assert session.handler_seconds == 8.0


@given(
    timeout=st.floats(0.5, 300.0),
    kind=st.sampled_from([*OTHERS, *CLOSING, Rebalanced]),
    late=st.floats(0.0, 400.0),
)
def test_each_phase_has_a_minimum_and_all_end_in_time(
    timeout: float, kind: type[SessionEnd], late: float
) -> None:
    """Handlers, two hooks and the commit each use all their time."""

    async def end() -> None:
        loop = asyncio.get_running_loop()
        limits = limits_of(loop.time(), rebalance=timeout, close=timeout)
        limits.add_cause(kind("x"))
        start = loop.time()
        await asyncio.sleep(max(limits.handler_seconds, 0.0) + late)
        for part in ("hook_seconds", "hook_seconds", "commit_seconds"):
            seconds = getattr(limits, part)
            assert seconds >= reserve_for(timeout) / 6 - 1e-9
            await asyncio.sleep(seconds)
        if not late:
            assert loop.time() - start <= timeout + 1e-6
            assert limits.deadline - loop.time() >= reserve_for(timeout) / 6 - 1e-6, (
                "for the LeaveGroup or the JoinGroup"
            )

    run_virtual(end())
