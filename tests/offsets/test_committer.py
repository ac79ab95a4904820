"""Committer against a scripted coordinator: requests, one at a time, and canceled callers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import (
    ClosedError,
    CommitFailedError,
    ErrorCode,
    MemberLost,
)
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from tests.offsets.fakes import answer_commit, committed_by, now
from tests.offsets.scene import A0, A1, B0, Scene

# -- requests ----------------------------------------------------------------------------------------------------------


async def test_only_marks_are_committed(scene: Scene) -> None:
    await scene.manager.commit()
    assert scene.sent == []
    scene.marks[A1].mark_offset(12, "text")
    scene.marks[B0].mark_offset(11)
    await scene.manager.commit()
    assert scene.sent == [{A1: (12, "text"), B0: (11, "")}]
    assert scene.coordinator.lanes == {GROUP_LANE}
    await scene.manager.commit()
    assert len(scene.sent) == 1, "no mark is dirty now"
    assert scene.commits == [({A1: (12, "text", -1), B0: (11, "", -1)}, None)]
    assert repr(scene.manager) == "<Committer 'g': 3 partitions, 0 to commit>"


async def test_the_identity_is_read_for_each_request() -> None:
    names = iter("ABCD")
    scene = Scene(identity=lambda: MemberIdentity(next(names), 7, "inst"))
    scene.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)
    scene.marks[A0].mark_offset(11)
    await scene.manager.commit()
    said = [
        (r.member_id, r.generation_id_or_member_epoch, r.group_instance_id)
        for _, r in scene.coordinator.requests
    ]
    assert said == [("A", 7, "inst"), ("B", 7, "inst")]


@pytest.mark.parametrize("version", range(2, 10))
async def test_every_version_with_topic_names(scene: Scene, version: int) -> None:
    scene.coordinator.version = version
    scene.marks[A0].mark_offset(11, "m")
    await scene.manager.commit()
    assert scene.sent == [{A0: (11, "m")}]


# -- one at a time -----------------------------------------------------------------------------------------------------


async def test_one_request_at_a_time_with_the_newest_marks(scene: Scene) -> None:
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await answer_commit(request)

    scene.coordinator.script = slow
    scene.marks[A0].mark_offset(11)
    calls = [asyncio.ensure_future(scene.manager.commit()) for _ in range(3)]
    await asyncio.sleep(1)
    scene.marks[A0].mark_offset(12)
    calls += [asyncio.ensure_future(scene.manager.commit()) for _ in range(3)]
    await asyncio.sleep(1)
    scene.marks[A0].mark_offset(13)
    scene.marks[B0].mark_offset(20)
    gate.set()
    await asyncio.gather(*calls)
    assert scene.coordinator.most_under_way == 1
    assert scene.sent == [{A0: (11, "")}, {A0: (13, ""), B0: (20, "")}]
    assert not any(marks.dirty for marks in scene.marks.values())


async def test_marks_made_during_a_commit_stay_dirty(scene: Scene) -> None:

    async def script(request: Any) -> Any:
        scene.marks[A0].mark_offset(committed_by(request)[A0][0] + 1)
        return await answer_commit(request)

    scene.coordinator.script = script
    scene.marks[A0].mark_offset(11)
    await scene.manager.commit()
    assert len(scene.sent) == 1, "later marks are left to the next call"
    assert scene.marks[A0].dirty
    await scene.manager.commit()
    assert scene.sent[-1] == {A0: (12, "")}


async def test_a_request_is_finished_though_its_caller_is_canceled(scene: Scene) -> None:

    async def slow(request: Any) -> Any:
        await asyncio.sleep(10)
        return await answer_commit(request)

    scene.coordinator.script = slow
    scene.marks[A0].mark_offset(11)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await scene.manager.commit()
    assert scene.marks[A0].dirty, "the response has not arrived"
    scene.marks[A0].mark_offset(12)
    await scene.manager.commit()
    assert scene.coordinator.most_under_way == 1, "the next request waits for it"
    assert now() == 20
    assert scene.sent == [{A0: (11, "")}, {A0: (12, "")}]
    assert not scene.marks[A0].dirty


async def test_one_of_several_callers_is_cancelled(scene: Scene) -> None:

    async def slow(request: Any) -> Any:
        await asyncio.sleep(10)
        return await answer_commit(request, {B0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})

    scene.coordinator.script = slow
    scene.marks[A0].mark_offset(11)
    scene.marks[B0].mark_offset(11)
    calls = [asyncio.ensure_future(scene.manager.commit()) for _ in range(3)]
    await asyncio.sleep(1)
    calls.pop(0).cancel()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, CommitFailedError)
        assert set(result.errors) == {B0}
    assert len(scene.sent) == 1


async def test_closing_cancels_the_request_in_flight(scene: Scene) -> None:

    async def never(_: Any) -> Any:
        await asyncio.Event().wait()

    scene.coordinator.script = never
    scene.marks[A0].mark_offset(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(1)
    late = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(1)
    await scene.manager.aclose()
    for each in (call, late):
        with pytest.raises(ClosedError):
            await each
    with pytest.raises(ClosedError):
        await scene.manager.commit()
    await scene.manager.aclose()
    assert scene.marks[A0].dirty


async def test_a_bug_is_raised_to_the_callers_and_the_next_call_works(scene: Scene) -> None:
    scene.answer(ZeroDivisionError("a bug"), 0)
    scene.marks[A0].mark_offset(11)
    with pytest.raises(ZeroDivisionError):
        await scene.manager.commit()
    await scene.manager.commit()
    assert not scene.marks[A0].dirty


async def test_changes_during_the_coordinator_lookup_are_sent(scene: Scene) -> None:
    """Marks of lost claims are dropped, and newer marks are committed."""
    found = asyncio.Event()

    async def lookup() -> None:
        await found.wait()

    scene.coordinator.lookup = lookup
    for marks in scene.marks.values():
        marks.mark_offset(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(1)
    scene.marks[A0].mark_offset(12)
    scene.manager.drop(A1)
    scene.manager.drop(B0)
    scene.manager.manage(B0, 700)
    found.set()
    await call
    assert scene.sent == [{A0: (12, "")}]
    assert not scene.marks[A0].dirty


async def test_a_member_lost_during_the_coordinator_lookup_commits_nothing(scene: Scene) -> None:
    found = asyncio.Event()

    async def lookup() -> None:
        await found.wait()

    scene.coordinator.lookup = lookup
    scene.marks[A0].mark_offset(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(1)
    cause = MemberLost("expelled")
    scene.manager.mark_lost(cause)
    found.set()
    with pytest.raises(CommitFailedError) as raised:
        await call
    assert repr(raised.value.errors) == repr({A0: cause})
    assert scene.sent == []
