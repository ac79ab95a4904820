"""Which refusals end a membership: those of the coordinator, not of a broker that was it once."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import BrokerError, ConnectError, ErrorCode as E
from asyncgroup.group.heartbeats import HeartbeatResult
from tests.group.test_heartbeats import IDENTITY, Scene
from tests.offsets.fakes import now

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]

REFUSALS = [
    (E.UNKNOWN_MEMBER_ID, HeartbeatResult.LOST),
    (E.ILLEGAL_GENERATION, HeartbeatResult.LOST),
    (E.FENCED_INSTANCE_ID, HeartbeatResult.FATAL),
    (E.UNKNOWN_SERVER_ERROR, HeartbeatResult.FATAL),
]


@pytest.mark.parametrize(("code", "result"), REFUSALS)
async def test_it_counts_at_once_while_the_coordinator_stands(code: E, result: HeartbeatResult) -> None:
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, code]
    assert await scene.run(60)
    assert (scene.beats, scene.results) == ([3, 6], [result])
    assert scene.cluster.coordinators.marked_stale == 0


@pytest.mark.parametrize(("code", "result"), REFUSALS)
async def test_in_doubt_the_next_answer_decides_that_it_is_lost(code: E, result: HeartbeatResult) -> None:
    """The coordinator was looked up again since the last good heartbeat: one more heartbeat, at once."""
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
async def test_in_doubt_the_next_answer_decides_that_it_lives(code: E, answer: int) -> None:
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, E.NOT_COORDINATOR, code, answer, 0]
    assert not await scene.run(20)
    assert HeartbeatResult.LOST not in scene.results
    assert HeartbeatResult.FATAL not in scene.results
    assert scene.beats[4:] == [9, 12, 15, 18], "the second one does not shift the beat"


async def test_after_a_good_heartbeat_the_new_coordinator_is_believed_at_once() -> None:
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, E.NOT_COORDINATOR, 0, E.UNKNOWN_MEMBER_ID]
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.LOST]
    assert scene.cluster.coordinators.marked_stale == 0


async def test_in_doubt_and_no_answer_it_goes_on() -> None:
    """The refusal is not remembered: whoever answers next is asked again."""
    scene = Scene(heartbeat_interval=3.0)
    refused = E.UNKNOWN_MEMBER_ID
    scene.answers = [0, E.NOT_COORDINATOR, refused, ConnectError("refused"), refused, refused]
    assert await scene.run(60)
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED] * 4 + [HeartbeatResult.LOST]
    assert scene.cluster.coordinators.marked_stale == 2
    assert scene.beats[-1] < 7.0


async def test_a_late_refusal_by_the_coordinator_itself_is_in_doubt() -> None:
    """It may have been stopped for longer than the session, and another one may have taken over unnoticed."""
    scene = Scene(heartbeat_interval=8.0, session_timeout=10.0)
    scene.answers = [0, E.UNKNOWN_MEMBER_ID, 0]
    task = await beating(scene, 9.0)
    scene.cluster.last_response_at = 3600.0  # other brokers answer all the time
    scene.delay = 3.0
    await asyncio.sleep(20.0)
    task.cancel()
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED]
    assert scene.beats[:4] == [8, 16, 19, 24]


# -- refused commits ----------------------------------------------------------------------------------------------------


async def beating(scene: Scene, seconds: float) -> asyncio.Task[None]:
    """Heartbeats that have run for so long."""

    def report(result: HeartbeatResult, error: Exception | None) -> None:
        scene.reports.append((now(), result, error))

    task = asyncio.ensure_future(scene.heartbeats.run(IDENTITY, report))
    await asyncio.sleep(seconds)
    return task


async def test_a_commit_that_the_standing_coordinator_refuses_is_final() -> None:
    scene = Scene(heartbeat_interval=3.0)
    task = await beating(scene, 4.0)
    assert await scene.heartbeats.is_final(1, now())
    assert scene.beats == [3]
    task.cancel()


@pytest.mark.parametrize(("lookup", "sent_at"), [(0, 4.0), (None, 4.0), (1, 2.9)])
@pytest.mark.parametrize(("answer", "final"), [(0, False), (E.UNKNOWN_MEMBER_ID, True)])
async def test_a_commit_that_another_broker_refused_or_one_of_before_the_last_heartbeat(
    lookup: int | None, sent_at: float, answer: int, final: bool
) -> None:
    """A heartbeat at once finds out, and does not shift the beat."""
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, answer]
    task = await beating(scene, 4.0)
    both = await asyncio.gather(*(scene.heartbeats.is_final(lookup, sent_at) for _ in range(2)))
    assert both == [final, final]
    assert now() == 4.0
    assert scene.cluster.coordinators.marked_stale == 1
    await asyncio.sleep(6.0)
    assert scene.beats == [3, 4] if final else [3, 4, 6, 9]
    assert scene.results == ([HeartbeatResult.LOST] if final else [])
    task.cancel()


async def test_a_refused_commit_waits_until_a_heartbeat_decides() -> None:
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, ConnectError("refused"), E.COORDINATOR_LOAD_IN_PROGRESS, 0]
    task = await beating(scene, 4.0)
    assert not await scene.heartbeats.is_final(None, 4.0)
    assert 4.1 < now() < 4.5
    task.cancel()


async def test_a_lookup_of_somebody_else_may_still_name_the_former_coordinator() -> None:
    """On a shared Cluster: it was asked before the commit was refused, and answers before the heartbeat sets out."""
    scene = Scene(heartbeat_interval=3.0)
    scene.answers = [0, E.UNKNOWN_MEMBER_ID, 0]
    task = await beating(scene, 4.0)
    asking = asyncio.ensure_future(scene.heartbeats.is_final(None, 4.0))
    while not scene.cluster.coordinators.marked_stale:
        await asyncio.sleep(0)
    scene.cluster.coordinators.known = True
    assert not await asking
    assert scene.beats == [3, 4, 4]
    assert scene.cluster.coordinators.marked_stale == 2
    task.cancel()


async def test_without_heartbeats_a_refusal_is_final() -> None:
    scene = Scene()
    assert await scene.heartbeats.is_final(None, 0.0)


async def test_heartbeats_that_stop_leave_no_answer_behind() -> None:
    scene = Scene(heartbeat_interval=3.0)
    task = await beating(scene, 4.0)
    scene.answers = [ConnectError("refused")]
    asking = asyncio.ensure_future(scene.heartbeats.is_final(None, 4.0))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait([task, asking])
    assert asking.cancelled()


async def test_a_loss_answers_those_who_asked_while_its_heartbeat_was_under_way() -> None:
    """Found by simulation."""
    scene = Scene(heartbeat_interval=3.0)
    scene.delay = 0.5
    scene.answers = [0, E.UNKNOWN_MEMBER_ID]
    task = await beating(scene, 6.2)
    assert await scene.heartbeats.is_final(None, 6.2)
    assert now() == 7.0, "the heartbeat under way was refused, by whoever; one more decided"
    assert scene.results == [HeartbeatResult.COORDINATOR_MOVED, HeartbeatResult.LOST]
    await asyncio.wait([task])
