"""Heartbeats in virtual time: their schedule, their results, and the loss of the membership."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.group.classic.heartbeats import HEARTBEAT_RESULTS, ClassicHeartbeats
from asyncgroup.group.membership import HEARTBEAT_LANE, HeartbeatResult
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.testing.virtual.loop import VirtualTimeLoop
from tests.offsets.fakes import FakeCluster, now

IDENTITY = MemberIdentity("member-1", 7, "instance-1")


class Scene:
    """Heartbeats on a fake cluster: `answers` scripts the responses, `reports` holds (time, result, error)."""

    def __init__(self, **config: Any) -> None:
        self.cluster = FakeCluster(hooks=[self], **config)
        self.cluster.last_response_at = float("-inf")
        self.cluster.coordinators.request = self.request  # type: ignore[method-assign]
        self.beats: list[float] = []
        self.seen: list[tuple[str, float]] = []
        self.reports: list[tuple[float, HeartbeatResult, Exception | None]] = []
        self.answers: list[Any] = [0]
        self.delay = 0.0
        self.timeouts: set[float] = set()
        self.heartbeats = ClassicHeartbeats(self.cluster, "g", ConsumerConfig(**config))  # type: ignore[arg-type]

    def on_heartbeat(self, group_id: str, seconds: float) -> None:
        self.seen.append((group_id, seconds))

    async def request(self, key: str, message: Any, *, lane: str, spare_lane: str, timeout: float) -> Any:
        assert (key, lane, spare_lane) == ("g", GROUP_LANE, HEARTBEAT_LANE)
        assert (message.member_id, message.generation_id, message.group_instance_id) == IDENTITY
        self.timeouts.add(timeout)
        self.beats.append(now())
        self.cluster.coordinators.known = True
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(self.delay)
        if isinstance(answer, Exception):
            raise answer
        self.cluster.last_response_at = now()
        return SimpleNamespace(error_code=answer)

    async def run(
        self, seconds: float, started_at: float | None = None, early: tuple[float, ...] = ()
    ) -> bool:
        """Send heartbeats for `seconds`; return whether they ended before."""

        def report(result: HeartbeatResult, error: Exception | None) -> None:
            self.reports.append((now(), result, error))

        task = asyncio.ensure_future(self.heartbeats.run(IDENTITY, report, started_at, early))
        done, _ = await asyncio.wait([task], timeout=seconds)
        task.cancel()
        await asyncio.wait([task])
        return bool(done)

    @property
    def results(self) -> list[HeartbeatResult]:
        return [result for _, result, _ in self.reports]


@pytest.fixture
def scene() -> Scene:
    """Heartbeats each three seconds."""
    return Scene(heartbeat_interval=3.0)


async def test_one_heartbeat_per_interval_and_no_result_while_alive(scene: Scene) -> None:
    assert not await scene.run(13)
    assert scene.beats == [3, 6, 9, 12]
    assert scene.reports == []
    assert scene.heartbeats.last_response_at == 12
    assert scene.seen == [("g", 0.0)] * 4


async def test_the_response_time_is_reported_and_does_not_shift_the_schedule(scene: Scene) -> None:
    scene.delay = 0.5
    await scene.run(8)
    assert scene.beats == [3, 6]
    assert scene.seen == [("g", 0.5)] * 2
    assert scene.heartbeats.last_response_at == 6.5
    assert scene.heartbeats.last_stable_sent_at == 6


async def test_the_schedule_counts_from_the_start_of_the_membership(scene: Scene) -> None:
    """However late the session starts its heartbeats, they coincide with those of the other members."""
    await asyncio.sleep(1.75)
    await scene.run(10, started_at=0.5)
    assert scene.beats == [3.5, 6.5, 9.5]


async def test_a_slow_response_skips_only_the_intervals_it_takes() -> None:
    scene = Scene(heartbeat_interval=3.0, session_timeout=30.0)
    scene.delay = 4.0
    await scene.run(16)
    assert scene.beats == [3, 9, 15]


async def test_rounding_never_repeats_a_heartbeat() -> None:
    scene = Scene(heartbeat_interval=0.1)
    await scene.run(100, started_at=0.3)
    gaps = [later - earlier for earlier, later in pairwise(scene.beats)]
    assert len(scene.beats) == 996  # from 0.4 to 99.9
    assert min(gaps) == pytest.approx(0.1)
    assert max(gaps) == pytest.approx(0.1)


async def test_early_heartbeats_come_before_the_first_of_the_interval() -> None:
    scene = Scene(heartbeat_interval=1.5)
    await scene.run(4, 0.0, early=(0.25, 0.5, 1.0, 2.0))
    assert scene.beats == [0.25, 0.5, 1.0, 1.5, 3.0]


async def test_early_heartbeats_that_are_late_are_not_sent_after_each_other(scene: Scene) -> None:
    scene.delay = 0.6
    await scene.run(7, 0.0, early=(0.25, 0.5, 1.0, 2.0))
    assert scene.beats == [0.25, 1.0, 2.0, 3.0, 6.0]


async def test_retries_do_not_shift_the_schedule() -> None:
    scene = Scene(heartbeat_interval=3.0, retry_backoff=0.1)
    scene.answers = [ErrorCode.NOT_COORDINATOR, 0]
    await scene.run(10)
    assert scene.beats == [3, pytest.approx(3.1, abs=0.03), 6, 9]


async def test_last_stable_sent_at_is_before_the_rebalance(scene: Scene) -> None:
    scene.answers = [0, 0, ErrorCode.REBALANCE_IN_PROGRESS]
    await scene.run(10)
    assert scene.heartbeats.last_response_at == 9
    assert scene.heartbeats.last_stable_sent_at == 6


async def test_a_rebalance_is_reported_each_time_and_heartbeats_continue() -> None:
    """The member must stay in the group until its handlers have ended."""
    scene = Scene()
    scene.answers = [ErrorCode.REBALANCE_IN_PROGRESS]
    assert not await scene.run(10)
    assert scene.beats == [3, 6, 9]
    assert scene.results == [HeartbeatResult.REBALANCE] * 3


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, HeartbeatResult.LOST),
        (ErrorCode.ILLEGAL_GENERATION, HeartbeatResult.LOST),
        (ErrorCode.FENCED_INSTANCE_ID, HeartbeatResult.FATAL),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, HeartbeatResult.FATAL),
        (ErrorCode.INVALID_GROUP_ID, HeartbeatResult.FATAL),
    ],
)
async def test_a_final_result_is_reported_once_with_its_code(
    code: ErrorCode, result: HeartbeatResult
) -> None:
    scene = Scene()
    scene.answers = [code]
    assert await scene.run(60)
    ((at, reported, error),) = scene.reports
    assert (at, reported) == (3, result)
    assert isinstance(error, BrokerError)
    assert (error.code, "member 'member-1' in group 'g'" in str(error)) == (code, True)


@pytest.mark.parametrize(
    ("answer", "result", "forgotten"),
    [
        (ErrorCode.NOT_COORDINATOR, HeartbeatResult.COORDINATOR_MOVED, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, HeartbeatResult.COORDINATOR_MOVED, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, HeartbeatResult.RETRY, False),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, HeartbeatResult.RETRY, False),
        (NoBrokersError("none"), HeartbeatResult.RETRY, False),
        (
            BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "lookup"),
            HeartbeatResult.COORDINATOR_MOVED,
            False,
        ),
        (ConnectError("refused"), HeartbeatResult.COORDINATOR_MOVED, False),
        (RequestTimedOut("late"), HeartbeatResult.COORDINATOR_MOVED, False),
        (ClosedError("the cluster"), HeartbeatResult.COORDINATOR_MOVED, False),
    ],
)
async def test_retriable_errors_are_retried_with_backoff(
    answer: Any, result: HeartbeatResult, forgotten: bool
) -> None:
    scene = Scene(retry_backoff=0.1, retry_backoff_max=1.0)
    scene.answers = [answer] * 4 + [0]
    await scene.run(6)
    assert scene.results == [result] * 4
    gaps = [later - earlier for earlier, later in zip(scene.beats, scene.beats[1:5], strict=False)]
    for gap, pause in zip(gaps, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert pause * 0.8 <= gap <= pause * 1.2
    assert scene.cluster.coordinators.marked_unknown == (4 if forgotten else 0)


async def test_a_fatal_error_of_the_coordinator_lookup_is_fatal() -> None:
    scene = Scene()
    scene.answers = [BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "coordinator of 'g'")]
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.FATAL]


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "coordinator of 'g'"),
        AuthenticationError("wrong password"),
    ],
)
async def test_a_fatal_error_without_a_response_is_not_reported_as_one(error: Exception) -> None:
    """Found by review: hooks and `health()` showed a heartbeat as answered that had failed before it was sent."""
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, error]
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.FATAL]
    assert scene.heartbeats.last_response_at == 3
    assert scene.seen == [("g", 0.0)]


async def test_a_refusal_is_reported_as_a_response(scene: Scene) -> None:
    scene.answers = [0, ErrorCode.FENCED_INSTANCE_ID]
    assert await scene.run(60)
    assert scene.heartbeats.last_response_at == 6
    assert scene.seen == [("g", 0.0)] * 2


async def test_the_retry_backoff_is_at_most_the_heartbeat_interval() -> None:
    scene = Scene(heartbeat_interval=0.5, retry_backoff=2.0, retry_backoff_max=2.0)
    scene.answers = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    await scene.run(5)
    assert scene.beats == pytest.approx([0.5 * n for n in range(1, 10)])


# -- silence ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [ConnectError("refused"), NoBrokersError("none"), UnsupportedVersionError("x")]
)
async def test_errors_for_session_timeout_are_a_loss_exactly_then(answer: Exception) -> None:
    """Found by review: the last backoff went up to two seconds beyond the session timeout."""
    scene = Scene(session_timeout=10.0, retry_backoff_max=2.0)
    scene.answers = [0, answer]
    assert await scene.run(60)
    at, result, error = scene.reports[-1]
    assert (at, result) == (pytest.approx(13.0), HeartbeatResult.LOST), "the last response came at 3"
    assert error is answer
    assert HeartbeatResult.LOST not in scene.results[:-1]


@pytest.mark.parametrize("delay", [0.2, 0.9, 2.5])
async def test_errors_that_take_time_are_a_loss_when_the_session_expires(delay: float) -> None:
    """The last attempt began when the session expired, and had the full time limit."""
    scene = Scene(session_timeout=10.0)
    scene.delay = delay
    answer = ConnectError("refused")
    scene.answers = [0, answer]
    assert await scene.run(60)
    at, result, _ = scene.reports[-1]
    assert (at, result) == (pytest.approx(13.0 + delay), HeartbeatResult.LOST)
    assert scene.beats[-1] < 13.0 + delay
    assert HeartbeatResult.LOST not in scene.results[:-1]


async def test_a_member_suspended_while_its_heartbeats_fail_sends_one_more() -> None:
    scene = Scene(session_timeout=10.0)
    scene.answers = [0, ConnectError("refused"), 0]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.call_at(6.05, lambda: loop._set_time(30.0))
    assert not await scene.run(20)
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED]
    assert scene.beats[:3] == [3, 6, 30]


async def test_no_response_for_session_timeout_is_a_loss_exactly_then() -> None:
    scene = Scene(session_timeout=10.0)
    scene.delay = 3600.0
    assert await scene.run(60)
    at, result, error = scene.reports[-1]
    assert (at, result) == (pytest.approx(10.0), HeartbeatResult.LOST)
    assert isinstance(error, RequestTimedOut)
    assert "group 'g'" in str(error)
    assert "nor to any other request for session_timeout=10 s" in str(error)


async def test_one_attempt_does_not_take_the_whole_session_timeout() -> None:
    scene = Scene(session_timeout=30.0, heartbeat_interval=3.0)
    scene.delay = 3600.0
    await scene.run(29)
    assert len(scene.beats) >= 3
    assert scene.timeouts == {10.0}


async def test_any_response_of_any_broker_keeps_the_member_alive() -> None:
    """The coordinator may be down for minutes; the session timeout counts from the last response of any broker."""
    scene = Scene(session_timeout=10.0)
    scene.answers = [ErrorCode.NONE, ConnectError("refused")]

    async def others() -> None:
        while True:
            await asyncio.sleep(5)
            scene.cluster.last_response_at = now()

    task = asyncio.ensure_future(others())
    assert not await scene.run(120)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert set(scene.results) == {HeartbeatResult.COORDINATOR_MOVED}


async def test_a_member_suspended_past_its_session_sends_a_heartbeat_before_it_is_lost() -> None:
    """The broker may have been suspended as well, and still have the member; here it does not."""
    scene = Scene(session_timeout=10.0)
    scene.answers = [0, ErrorCode.UNKNOWN_MEMBER_ID]
    scene.cluster.last_response_at = -1000.0
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.LOST]


async def test_final_results_are_for_codes_that_are_not_retriable() -> None:
    ends = (HeartbeatResult.FATAL, HeartbeatResult.LOST)
    final = [code for code, result in HEARTBEAT_RESULTS.items() if result in ends]
    assert len(final) > 3
    assert [code for code in final if is_retriable(code)] == []
