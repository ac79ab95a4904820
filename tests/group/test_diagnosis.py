"""From vitals to words, without a broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import BrokerError, ConnectError, ErrorCode
from asyncgroup.group.diagnosis import Busy, Scene, diagnose
from asyncgroup.group.vitals import KINDS_MAX, GroupState, Source, Vitals
from asyncgroup.offsets import MemberIdentity
from tests.group.parts import make_session

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


def now() -> float:
    return asyncio.get_running_loop().time()


def scene(vitals: Vitals, **more: Any) -> Scene:
    return Scene("g", ConsumerConfig(), MemberIdentity("member-1", 7), vitals, **more)


@pytest.mark.parametrize("state", GroupState)
async def test_every_state_has_a_line(state: GroupState) -> None:
    vitals = Vitals()
    vitals.enter(state)
    await asyncio.sleep(2.5)
    health = diagnose(scene(vitals), now())
    assert health.state == state.value
    assert state.value in str(health)
    assert "\n" not in str(health)
    json.dumps(health.as_dict())
    idle = state in (GroupState.CLOSED, GroupState.NOT_CONSUMING, GroupState.LEAVING)
    assert health.is_healthy is not idle
    if state not in (GroupState.CLOSED, GroupState.NOT_CONSUMING, GroupState.DRAINING):
        assert health.waits_for is not None


async def test_claims_before_their_first_fetch() -> None:
    session, _ = make_session()
    vitals = Vitals()
    vitals.enter(GroupState.STABLE)
    health = diagnose(scene(vitals, claims=session.claims), now())
    assert [(c.high_water_mark, c.lag) for c in health.claims] == [(None, None)] * 2
    assert health.lag == 0
    session.claims[1].consumer.pause()
    session.claims[0].consumer.high_water_mark = 12
    later = diagnose(scene(vitals, claims=session.claims), now())
    assert (later.lag, later.claims[0].lag) == (12, 12)
    assert [str(tp) for tp in later.paused] == ["orders-1"]
    assert "paused orders-1" in str(later)


async def test_ages_are_none_before_anything_happened_and_never_negative() -> None:
    vitals = Vitals()
    vitals.alive(float("-inf"), float("-inf"))
    health = diagnose(scene(vitals), now())
    assert (health.last_heartbeat, health.last_fetch) == (None, None)
    vitals.alive(5.0, 3.0)
    vitals.alive(2.0, float("-inf"))
    assert diagnose(scene(vitals), 4.0).last_heartbeat == 0.0
    assert diagnose(scene(vitals), 9.0).last_heartbeat == 4.0
    assert diagnose(scene(vitals), 9.0).last_fetch == 6.0


async def test_missed_beats() -> None:
    vitals = Vitals()
    vitals.enter(GroupState.STABLE)
    vitals.alive(0.0, 0.0)
    assert diagnose(scene(vitals), 6.0).is_healthy
    late = diagnose(scene(vitals), 6.5)
    assert late.problems == ("no heartbeat was answered for 6.5 s",)
    vitals.enter(GroupState.JOINING)
    assert diagnose(scene(vitals), 6.5).is_healthy, "a member that joins sends none"


async def test_a_heartbeat_that_failed_counts_until_one_goes_well() -> None:
    vitals = Vitals()
    vitals.enter(GroupState.STABLE)
    vitals.alive(0.0, 0.0)
    await asyncio.sleep(3)
    vitals.trouble(Source.HEARTBEAT, ConnectError("node 1 (10.0.0.1:9092): Connection refused"))
    (problem,) = diagnose(scene(vitals), now()).problems
    assert problem == (
        "heartbeats fail, the last good one was 3.0 s ago: node 1 (10.0.0.1:9092): Connection refused"
    )
    vitals.alive(4.0, 0.0)
    assert diagnose(scene(vitals), 4.0).is_healthy


async def test_troubles_last_until_they_are_over() -> None:
    vitals = Vitals()
    vitals.enter(GroupState.JOINING)
    vitals.trouble(Source.JOIN, BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator of 'g'"))
    await asyncio.sleep(1)
    vitals.trouble(Source.JOIN, BrokerError(ErrorCode.NOT_COORDINATOR, "join of group 'g'"))
    assert vitals.troubles[Source.JOIN].since == 0.0
    (problem,) = diagnose(scene(vitals), now()).problems
    assert problem.startswith("joining fails: join of group 'g': NOT_COORDINATOR")
    vitals.fine(Source.JOIN, Source.COMMIT)
    assert diagnose(scene(vitals), now()).is_healthy


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (GroupState.JOINING, 65.0),
        (GroupState.SYNCING, 65.0),
        (GroupState.LOOKING, 10.0),
        (GroupState.LOOKING_UP_TOPICS, 10.0),
        (GroupState.COMMITTING, 10.0),
    ],
)
async def test_states_that_take_too_long(state: GroupState, limit: float) -> None:
    vitals = Vitals()
    vitals.enter(state)
    assert diagnose(scene(vitals), limit).is_healthy
    assert diagnose(scene(vitals), limit + 0.5).problems == (f"{state.value} for {limit + 0.5:.1f} s",)


async def test_silent_nodes_are_named() -> None:
    vitals = Vitals()
    vitals.enter(GroupState.STABLE)
    vitals.alive(10.0, 10.0)
    health = diagnose(scene(vitals, asked_at={1: 9.5, 2: 4.0}), 10.0)
    assert health.problems == ("node 2 has not answered a fetch for 6.0 s",)


async def test_many_handlers_are_counted() -> None:
    vitals = Vitals()
    vitals.enter(GroupState.DRAINING)
    labels = [f"handler of orders-{n}" for n in range(5)]
    health = diagnose(scene(vitals, busy=Busy(labels, 0.0, 12.0)), 4.0)
    assert health.waits_for == (
        "handler of orders-0, handler of orders-1, handler of orders-2 and 2 others to end: 4.0 s of 12.0 s"
    )
    assert diagnose(scene(vitals, busy=Busy(labels[:1], 0.0, 12.0)), 14.0).problems == (
        "handler of orders-0 went on for 2.0 s after the cancellation",
    )


async def test_errors_are_counted_by_kind_newest_first_and_bounded() -> None:
    vitals = Vitals()
    for _ in range(3):
        vitals.count(BrokerError(ErrorCode.NOT_COORDINATOR, "heartbeat"))
        await asyncio.sleep(1)
    vitals.count(ConnectError("node 2: refused"))
    await asyncio.sleep(1)
    first, second = diagnose(scene(vitals), now()).errors
    assert str(first) == "node 2: refused (once, last 1.0 s ago)"
    assert (second.count, second.age) == (3, 2.0)
    for number in range(2 * KINDS_MAX):
        vitals.count(ConnectError(f"node {number}: refused"))
    assert len(vitals.errors) == KINDS_MAX
    assert len(diagnose(scene(vitals), now()).errors) == 5
    vitals.count(ValueError())
    assert diagnose(scene(vitals), now()).errors[0].text == "ValueError"


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("troubles", [*[(source,) for source in Source], (), tuple(Source)], ids=str)
@pytest.mark.parametrize("age", [0.0, 7.0, 70.0])
@pytest.mark.parametrize("is_busy", [False, True])
async def test_who_is_not_well_says_why(
    state: GroupState, troubles: tuple[Source, ...], age: float, is_busy: bool
) -> None:
    """In every state, for every trouble and at any age: problems are there exactly when the member is not healthy."""
    vitals = Vitals()
    vitals.enter(state)
    vitals.alive(0.0, 0.0)
    for source in troubles:
        vitals.trouble(source, BrokerError(ErrorCode.NOT_COORDINATOR, "heartbeat"))
    busy = Busy(["handler of orders-0"], 0.0, 1.0) if is_busy else Busy((), 0.0, 0.0)
    health = diagnose(scene(vitals, busy=busy, asked_at={1: 0.0}, missing={"orders": 0.0}), age)
    assert health.is_healthy is (not health.problems)
    assert all(problem.strip() for problem in health.problems)
    bare = diagnose(scene(vitals), 0.0)
    assert bare.is_healthy is (not bare.problems)
    if state in (GroupState.CLOSED, GroupState.NOT_CONSUMING, GroupState.LEAVING):
        assert not bare.is_healthy
