"""Diagnosis of a member's health, without a broker."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import pickle
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import BrokerError, ConnectError, ErrorCode
from asyncgroup.group.health.diagnosis import HealthSnapshot, diagnose
from asyncgroup.group.health.member_health import (
    MAX_ERROR_KINDS,
    MemberHealth,
    MemberState,
    RunningCalls,
)
from asyncgroup.group.health.problems import MemberProblem, ProblemKind, WaitKind
from asyncgroup.group.topics.topics import Absence
from asyncgroup.offsets import MemberIdentity
from tests.group.parts import consumer_of, make_session
from tests.stories.virtual import now


def unheeded(_error: Exception) -> bool:
    """Stand for `errors()` without a reader."""
    return False


def snapshot(member_health: MemberHealth, **more: Any) -> HealthSnapshot:
    fixed: dict[str, Any] = {"session_timeout": 10.0, "heartbeat_interval": 3.0, "group_protocol": "classic"}
    return HealthSnapshot(
        "g", ConsumerConfig(), MemberIdentity("member-1", 7), member_health, **fixed, **more
    )


@pytest.fixture
def member_health() -> MemberHealth:
    """The health of a member without a session."""
    return MemberHealth(unheeded)


@pytest.mark.parametrize("state", MemberState)
async def test_every_state_is_shown_in_one_line(member_health: MemberHealth, state: MemberState) -> None:
    member_health.transition_to(state)
    await asyncio.sleep(2.5)
    health = diagnose(snapshot(member_health), now())
    assert health.state == state.value
    assert state.value in str(health)
    assert "\n" not in str(health)
    json.dumps(health.as_dict())
    idle = state in (MemberState.CLOSED, MemberState.NOT_CONSUMING, MemberState.LEAVING)
    assert health.is_healthy is not idle
    if state not in (MemberState.CLOSED, MemberState.NOT_CONSUMING, MemberState.DRAINING):
        assert health.waits_for is not None


async def test_claims_before_their_first_fetch(member_health: MemberHealth) -> None:
    session, _ = make_session()
    member_health.transition_to(MemberState.STABLE)
    health = diagnose(snapshot(member_health, claims=session.claims), now())
    assert [(c.high_watermark, c.lag) for c in health.claims] == [(None, None)] * 2
    assert health.lag == 0
    consumer_of(session.claims[1]).pause()
    consumer_of(session.claims[0])._inner.buffer.high_watermark = 12
    later = diagnose(snapshot(member_health, claims=session.claims), now())
    assert (later.lag, later.claims[0].lag) == (12, 12)
    assert [str(tp) for tp in later.paused] == ["orders-1"]
    assert "paused orders-1" in str(later)


async def test_ages_are_none_at_first_and_never_negative(member_health: MemberHealth) -> None:
    member_health.update_last_responses(float("-inf"), float("-inf"))
    health = diagnose(snapshot(member_health), now())
    assert (health.last_heartbeat, health.last_fetch) == (None, None)
    member_health.update_last_responses(5.0, 3.0)
    member_health.update_last_responses(2.0, float("-inf"))
    assert diagnose(snapshot(member_health), 4.0).last_heartbeat == 0.0
    assert diagnose(snapshot(member_health), 9.0).last_heartbeat == 4.0
    assert diagnose(snapshot(member_health), 9.0).last_fetch == 6.0


async def test_missed_heartbeats(member_health: MemberHealth) -> None:
    member_health.transition_to(MemberState.STABLE)
    member_health.update_last_responses(0.0, 0.0)
    assert diagnose(snapshot(member_health), 6.0).is_healthy
    late = diagnose(snapshot(member_health), 6.5)
    assert late.problems == ("no response to heartbeats for 6.5 s",)
    member_health.transition_to(MemberState.JOINING)
    assert diagnose(snapshot(member_health), 6.5).is_healthy, "a joining member sends none"


async def test_a_failed_heartbeat_is_a_problem_until_one_succeeds(member_health: MemberHealth) -> None:
    member_health.transition_to(MemberState.STABLE)
    member_health.update_last_responses(0.0, 0.0)
    await asyncio.sleep(3)
    member_health.report(ProblemKind.HEARTBEAT, ConnectError("node 1 (10.0.0.1:9092): Connection refused"))
    (problem,) = diagnose(snapshot(member_health), now()).problems
    assert problem == (
        "heartbeats fail, the last successful one was 3.0 s ago: node 1 (10.0.0.1:9092): Connection refused"
    )
    member_health.update_last_responses(4.0, 0.0)
    assert diagnose(snapshot(member_health), 4.0).is_healthy


async def test_problems_last_until_cleared(member_health: MemberHealth) -> None:
    member_health.transition_to(MemberState.JOINING)
    member_health.report(
        ProblemKind.JOIN, BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator of 'g'")
    )
    await asyncio.sleep(1)
    member_health.report(ProblemKind.JOIN, BrokerError(ErrorCode.NOT_COORDINATOR, "join of group 'g'"))
    (problem,) = diagnose(snapshot(member_health), now()).problems
    assert problem.startswith("joining fails: join of group 'g': NOT_COORDINATOR")
    member_health.clear(ProblemKind.JOIN, ProblemKind.COMMIT)
    assert diagnose(snapshot(member_health), now()).is_healthy


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (MemberState.JOINING, 65.0),
        (MemberState.SYNCING, 65.0),
        (MemberState.LOOKING_UP_COORDINATOR, 10.0),
        (MemberState.LOOKING_UP_TOPICS, 10.0),
        (MemberState.COMMITTING, 10.0),
    ],
)
async def test_states_beyond_their_time_limit(state: MemberState, limit: float) -> None:
    member_health = MemberHealth(unheeded)
    member_health.transition_to(state)
    assert diagnose(snapshot(member_health), limit).is_healthy
    assert diagnose(snapshot(member_health), limit + 0.5).problems == (
        f"{state.value} for {limit + 0.5:.1f} s",
    )


async def test_nodes_without_a_fetch_response_are_named(member_health: MemberHealth) -> None:
    member_health.transition_to(MemberState.STABLE)
    member_health.update_last_responses(10.0, 10.0)
    health = diagnose(snapshot(member_health, unanswered_fetches={1: 9.5, 2: 4.0}), 10.0)
    assert health.problems == ("no response to a fetch from node 2 for 6.0 s",)


async def test_more_than_three_handlers_are_counted(member_health: MemberHealth) -> None:
    member_health.transition_to(MemberState.DRAINING)
    labels = [f"handler of orders-{n}" for n in range(5)]
    health = diagnose(snapshot(member_health, running_calls=[RunningCalls(labels, 0.0, 12.0)]), 4.0)
    assert health.waits_for == (
        "handler of orders-0, handler of orders-1, handler of orders-2 and 2 others to end: 4.0 s of 12.0 s"
    )
    assert diagnose(
        snapshot(member_health, running_calls=[RunningCalls(labels[:1], 0.0, 12.0)]), 14.0
    ).problems == ("handler of orders-0 still running 2.0 s after cancellation",)


async def test_errors_are_counted_by_kind_newest_first_and_bounded(member_health: MemberHealth) -> None:
    for _ in range(3):
        member_health.count_error(BrokerError(ErrorCode.NOT_COORDINATOR, "heartbeat"))
        await asyncio.sleep(1)
    member_health.count_error(ConnectError("node 2: refused"))
    await asyncio.sleep(1)
    first, second = diagnose(snapshot(member_health), now()).errors
    assert str(first) == "node 2: refused (once, last 1.0 s ago)"
    assert (second.count, second.age) == (3, 2.0)
    for number in range(2 * MAX_ERROR_KINDS):
        member_health.count_error(ConnectError(f"node {number}: refused"))
    assert len(member_health.errors) == MAX_ERROR_KINDS
    assert len(diagnose(snapshot(member_health), now()).errors) == 5
    member_health.count_error(ValueError())
    assert diagnose(snapshot(member_health), now()).errors[0].text == "ValueError"


@pytest.mark.parametrize("state", MemberState)
async def test_an_unhealthy_member_has_problems(state: MemberState) -> None:
    """In every state, for every problem and at any age: `problems` is empty if and only if the member is healthy."""
    for sources in [*[(source,) for source in ProblemKind], (), tuple(ProblemKind)]:
        for age, is_busy in itertools.product([0.0, 7.0, 70.0], [False, True]):
            expect_problems_if_unhealthy(state, sources, age, is_busy)


def expect_problems_if_unhealthy(
    state: MemberState, sources: tuple[ProblemKind, ...], age: float, is_busy: bool
) -> None:
    member_health = MemberHealth(unheeded)
    member_health.transition_to(state)
    member_health.update_last_responses(0.0, 0.0)
    for source in sources:
        member_health.report(source, BrokerError(ErrorCode.NOT_COORDINATOR, "heartbeat"))
    running_calls = [RunningCalls(["handler of orders-0"], 0.0, 1.0)] if is_busy else []
    health = diagnose(
        snapshot(
            member_health,
            running_calls=running_calls,
            unanswered_fetches={1: 0.0},
            absent_topics={"orders": Absence(0.0)},
        ),
        age,
    )
    assert health.is_healthy is (not health.problems), (sources, age, is_busy)
    assert all(problem.strip() for problem in health.problems)
    bare = diagnose(snapshot(member_health), 0.0)
    assert bare.is_healthy is (not bare.problems)
    if state in (MemberState.CLOSED, MemberState.NOT_CONSUMING, MemberState.LEAVING):
        assert not bare.is_healthy


async def test_a_problem_is_its_sentence_with_the_data_it_is_made_of() -> None:
    problem = MemberProblem(ProblemKind.FETCH, 2.5, names=["t-0", "t-1", "t-2", "t-3"], text="timed out")
    assert problem == "t-0, t-1, t-2 and 1 others cannot be fetched for 2.5 s: timed out"
    for copied in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert (copied, copied.kind, copied.seconds, copied.names, copied.text) == (
            problem,
            ProblemKind.FETCH,
            2.5,
            ("t-0", "t-1", "t-2", "t-3"),
            "timed out",
        )


async def test_the_dictionary_of_a_health_has_plain_strings() -> None:
    """Some encoders accept no subclass of str."""
    found = diagnose(snapshot(MemberHealth(unheeded)), 0.0)
    assert {type(each) for each in (*found.problems, found.not_ready)} == {MemberProblem}
    plain = found.as_dict()
    assert {type(each) for each in (*plain["problems"], plain["not_ready"])} == {str}


@pytest.mark.parametrize("kind", [*ProblemKind, *WaitKind])
async def test_every_sentence_can_be_made(kind: ProblemKind | WaitKind) -> None:
    if isinstance(kind, WaitKind):
        text = kind.text(["'orders'"], 10.0)
    else:
        text = MemberProblem(kind, 1.5, names=["orders-0"], text="refused")
    assert text
    assert "{" not in text
