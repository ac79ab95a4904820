"""A refusal ends the membership if it comes from the coordinator, not from a former coordinator."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import BrokerError, ConnectError, ErrorCode as E
from asyncgroup.group.membership import HeartbeatResult
from tests.group.classic.test_heartbeats import IDENTITY, Scene
from tests.offsets.fakes import now

REFUSALS = [
    (E.UNKNOWN_MEMBER_ID, HeartbeatResult.LOST),
    (E.ILLEGAL_GENERATION, HeartbeatResult.LOST),
    (E.FENCED_INSTANCE_ID, HeartbeatResult.FATAL),
    (E.UNKNOWN_SERVER_ERROR, HeartbeatResult.FATAL),
]


@pytest.fixture
def scene() -> Scene:
    """Heartbeats each three seconds."""
    return Scene(heartbeat_interval=3.0)


@pytest.mark.parametrize(("code", "result"), REFUSALS)
async def test_a_refusal_by_the_confirmed_coordinator_is_final(code: E, result: HeartbeatResult) -> None:
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, code]
    assert await scene.run(60)
    assert (scene.beats, scene.results) == ([3, 6], [result])
    assert scene.cluster.coordinators.marked_stale == 0


@pytest.mark.parametrize(("code", "result"), REFUSALS)
async def test_in_doubt_the_next_response_confirms_the_loss(code: E, result: HeartbeatResult) -> None:
    """The coordinator was looked up again since the last successful heartbeat: one more is sent at once."""
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, E.NOT_COORDINATOR, code]
    assert await scene.run(60)
    *_, (at, last, error) = scene.reports
    assert at < 3.2 + 3
    assert last is result
    assert isinstance(error, BrokerError)
    assert error.code == code
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.COORDINATOR_MOVED, result]
    assert len(scene.beats) == 4
    assert scene.beats[-1] == scene.beats[-2]
    assert scene.cluster.coordinators.marked_stale == 1


@pytest.mark.parametrize("answer", [0, E.REBALANCE_IN_PROGRESS])
@pytest.mark.parametrize("code", [code for code, _ in REFUSALS])
async def test_in_doubt_the_next_response_refutes_the_loss(scene: Scene, code: E, answer: int) -> None:
    scene.answers = [0, E.NOT_COORDINATOR, code, answer, 0]
    assert not await scene.run(20)
    assert HeartbeatResult.LOST not in scene.results
    assert HeartbeatResult.FATAL not in scene.results
    assert scene.beats[4:] == [9, 12, 15, 18], "the second one does not shift the schedule"


async def test_after_a_successful_heartbeat_the_new_coordinator_is_confirmed(scene: Scene) -> None:
    scene.answers = [0, E.NOT_COORDINATOR, 0, E.UNKNOWN_MEMBER_ID]
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.LOST]
    assert scene.cluster.coordinators.marked_stale == 0


async def test_in_doubt_without_a_response_heartbeats_continue(scene: Scene) -> None:
    """The refusal is not kept: a refusal by the next coordinator is in doubt again."""
    refused = E.UNKNOWN_MEMBER_ID
    scene.answers = [0, E.NOT_COORDINATOR, refused, ConnectError("refused"), refused, refused]
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED] * 4 + [HeartbeatResult.LOST]
    assert scene.cluster.coordinators.marked_stale == 2
    assert scene.beats[-1] < 7.0


async def test_a_refusal_after_session_timeout_is_in_doubt() -> None:
    """The coordinator may have been suspended longer than the session timeout, and another may have taken over."""
    scene = Scene(heartbeat_interval=8.0, session_timeout=10.0)
    scene.answers = [0, E.UNKNOWN_MEMBER_ID, 0]
    task = await beating(scene, 9.0)
    scene.cluster.last_response_at = 3600.0  # other brokers respond all the time
    scene.delay = 3.0
    await asyncio.sleep(20.0)
    task.cancel()
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED]
    assert scene.beats[:4] == [8, 16, 19, 24]


# -- refused commits ----------------------------------------------------------------------------------------------------


async def beating(scene: Scene, seconds: float) -> asyncio.Task[None]:
    """Start heartbeats, wait for `seconds`, and return their task."""

    def report(result: HeartbeatResult, error: Exception | None) -> None:
        scene.reports.append((now(), result, error))

    task = asyncio.ensure_future(scene.heartbeats.run(IDENTITY, report))
    await asyncio.sleep(seconds)
    return task


async def test_a_commit_refused_by_the_confirmed_coordinator_is_final(scene: Scene) -> None:
    task = await beating(scene, 4.0)
    assert await scene.heartbeats.confirm_refusal(1, now())
    assert scene.beats == [3]
    task.cancel()


@pytest.mark.parametrize(("lookup", "sent_at"), [(0, 4.0), (None, 4.0), (1, 2.9)])
@pytest.mark.parametrize(("answer", "final"), [(0, False), (E.UNKNOWN_MEMBER_ID, True)])
async def test_a_commit_refused_by_another_broker_or_sent_before_the_last_heartbeat(
    lookup: int | None, sent_at: float, answer: int, final: bool
) -> None:
    """A heartbeat at once decides, and does not shift the schedule."""
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, answer]
    task = await beating(scene, 4.0)
    both = await asyncio.gather(*(scene.heartbeats.confirm_refusal(lookup, sent_at) for _ in range(2)))
    assert both == [final, final]
    assert now() == 4.0
    assert scene.cluster.coordinators.marked_stale == 1
    await asyncio.sleep(6.0)
    assert scene.beats == [3, 4] if final else [3, 4, 6, 9]
    assert scene.results == ([HeartbeatResult.LOST] if final else [])
    task.cancel()


async def test_a_refused_commit_waits_until_a_heartbeat_decides(scene: Scene) -> None:
    scene.answers = [0, ConnectError("refused"), E.COORDINATOR_LOAD_IN_PROGRESS, 0]
    task = await beating(scene, 4.0)
    assert not await scene.heartbeats.confirm_refusal(None, 4.0)
    assert 4.1 < now() < 4.5
    task.cancel()


async def test_a_lookup_by_another_client_may_still_return_the_former_coordinator(scene: Scene) -> None:
    """On a shared Cluster: the lookup was sent before the commit was refused, and answered before the heartbeat."""
    scene.answers = [0, E.UNKNOWN_MEMBER_ID, 0]
    task = await beating(scene, 4.0)
    asking = asyncio.ensure_future(scene.heartbeats.confirm_refusal(None, 4.0))
    while not scene.cluster.coordinators.marked_stale:
        await asyncio.sleep(0)
    scene.cluster.coordinators.known = True
    assert not await asking
    assert scene.beats == [3, 4, 4]
    assert scene.cluster.coordinators.marked_stale == 2
    task.cancel()


async def test_without_heartbeats_a_refusal_is_final() -> None:
    scene = Scene()
    assert await scene.heartbeats.confirm_refusal(None, 0.0)


async def test_heartbeats_that_stop_leave_a_check_undecided(scene: Scene) -> None:
    """Found by simulation: a member joins again, for new partitions of its topics, while a refusal is in doubt.

    The check was cancelled, and with it the task that commits: `run` raised ClosedError, and the next check of the member was
    cancelled from the start.
    """
    task = await beating(scene, 4.0)
    scene.answers = [ConnectError("refused")]
    asking = asyncio.ensure_future(scene.heartbeats.confirm_refusal(None, 4.0))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait([task, asking])
    assert not asking.result(), "the commit is repeated, and asks again"
    assert await scene.heartbeats.confirm_refusal(None, now()), "there are no heartbeats any more"
    task = await beating(scene, 1.0)
    scene.answers = [0]
    assert not await scene.heartbeats.confirm_refusal(None, 0.0)
    task.cancel()


async def test_a_loss_resolves_a_check_requested_during_its_heartbeat(scene: Scene) -> None:
    """Found by simulation."""
    scene.delay = 0.5
    scene.answers = [0, E.UNKNOWN_MEMBER_ID]
    task = await beating(scene, 6.2)
    assert await scene.heartbeats.confirm_refusal(None, 6.2)
    assert now() == 7.0, "the heartbeat in flight was refused, but does not count; one more decided"
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.LOST]
    await asyncio.wait([task])
