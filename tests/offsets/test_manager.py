"""The committer against a scripted coordinator: order, retries, failures, losses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConfigError,
    ConnectionLost,
    ErrorCode,
    MemberLost,
    UnsupportedVersionError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import GROUP_LANE, MemberIdentity, OffsetManager
from asyncgroup.offsets.commit_plan import ACTIONS, CommitAction
from tests.offsets.fakes import FakeCluster, answer_commit, committed_by, now

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Scene:
    """A manager of three partitions on a fake cluster."""

    def __init__(self, *, retry_max: int = 3, **kwargs: Any) -> None:
        self.commits: list[tuple[dict, dict | None]] = []
        self.lost: list[BrokerError] = []
        self.cluster = FakeCluster(hooks=[self], retry_backoff=0.1, retry_backoff_max=1.0)
        self.coordinator = self.cluster.coordinators
        self.manager = OffsetManager(
            self.cluster,  # type: ignore[arg-type]
            "g",
            retry_max=retry_max,
            on_lost=self.lost.append,
            **kwargs,
        )
        self.marks = {tp: self.manager.manage(tp, 10) for tp in (A0, A1, B0)}

    def on_commit(self, group_id: str, offsets: dict, error: dict | None) -> None:
        assert group_id == "g"
        self.commits.append((offsets, error))

    def answer(self, *answers: Any) -> None:
        """Answer one request after the other; the last answer stays. Codes, or an exception to raise."""
        left = list(answers)

        async def script(request: Any) -> Any:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return await answer_commit(request, answer)

        self.coordinator.script = script

    @property
    def sent(self) -> list[dict[TopicPartition, tuple[int, str]]]:
        return [committed_by(request) for _, request in self.coordinator.requests]


# -- what goes out ------------------------------------------------------------------------------------------------------


async def test_what_is_marked_is_committed_and_nothing_else() -> None:
    scene = Scene()
    await scene.manager.commit()
    assert scene.sent == []
    scene.marks[A1].mark(12, "text")
    scene.marks[B0].mark(11)
    await scene.manager.commit()
    assert scene.sent == [{A1: (12, "text"), B0: (11, "")}]
    assert scene.coordinator.lanes == {GROUP_LANE}
    await scene.manager.commit()
    assert len(scene.sent) == 1, "it is clean now"
    assert scene.commits == [({A1: (12, "text", -1), B0: (11, "", -1)}, None)]
    assert repr(scene.manager) == "<OffsetManager 'g': 3 partitions, 0 to commit>"


async def test_the_identity_is_asked_for_at_each_request() -> None:
    names = iter("ABCD")
    scene = Scene(identity=lambda: MemberIdentity(next(names), 7, "inst"))
    scene.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)
    scene.marks[A0].mark(11)
    await scene.manager.commit()
    said = [
        (r.member_id, r.generation_id_or_member_epoch, r.group_instance_id)
        for _, r in scene.coordinator.requests
    ]
    assert said == [("A", 7, "inst"), ("B", 7, "inst")]


@pytest.mark.parametrize("version", range(2, 10))
async def test_every_version_by_name(version: int) -> None:
    scene = Scene()
    scene.coordinator.version = version
    scene.marks[A0].mark(11, "m")
    await scene.manager.commit()
    assert scene.sent == [{A0: (11, "m")}]


# -- one at a time ------------------------------------------------------------------------------------------------------


async def test_one_request_is_under_way_and_the_newest_marks_win() -> None:
    scene = Scene()
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await answer_commit(request)

    scene.coordinator.script = slow
    scene.marks[A0].mark(11)
    calls = [asyncio.ensure_future(scene.manager.commit()) for _ in range(3)]
    await asyncio.sleep(1)
    scene.marks[A0].mark(12)
    scene.marks[A0].mark(13)
    scene.marks[B0].mark(20)
    await asyncio.sleep(1)
    gate.set()
    await asyncio.gather(*calls)
    assert scene.coordinator.most_under_way == 1
    assert scene.sent == [{A0: (11, "")}, {A0: (13, ""), B0: (20, "")}]
    assert not any(marks.dirty for marks in scene.marks.values())


async def test_marks_during_a_commit_stay_due() -> None:
    scene = Scene()

    async def script(request: Any) -> Any:
        scene.marks[A0].mark(committed_by(request)[A0][0] + 1)
        return await answer_commit(request)

    scene.coordinator.script = script
    scene.marks[A0].mark(11)
    await scene.manager.commit()
    assert len(scene.sent) == 1, "marks that came later are the next call's"
    assert scene.marks[A0].dirty
    await scene.manager.commit()
    assert scene.sent[-1] == {A0: (12, "")}


async def test_a_cancelled_commit_leaves_its_marks_due_and_the_way_free() -> None:
    scene = Scene()

    async def never(_: Any) -> Any:
        await asyncio.Event().wait()

    scene.coordinator.script = never
    scene.marks[A0].mark(11)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await scene.manager.commit()
    assert scene.marks[A0].dirty
    scene.answer(0)
    await scene.manager.commit()
    assert not scene.marks[A0].dirty


# -- failures -----------------------------------------------------------------------------------------------------------


async def test_partitions_that_fail_are_named_and_the_others_are_committed() -> None:
    scene = Scene()
    for marks in scene.marks.values():
        marks.mark(15)
    scene.answer({A1: ErrorCode.OFFSET_METADATA_TOO_LARGE, B0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    with pytest.raises(CommitFailedError, match=r"'g'.*a-1.*OFFSET_METADATA_TOO_LARGE") as raised:
        await scene.manager.commit()
    assert {tp: error.code for tp, error in raised.value.failed.items()} == {  # type: ignore[attr-defined]
        A1: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        B0: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert len(scene.sent) == 1, "trying again does not help"
    assert {tp: marks.dirty for tp, marks in scene.marks.items()} == {A0: False, A1: True, B0: True}
    assert set(scene.commits[0][1] or ()) == {A1, B0}
    assert scene.lost == []


async def test_only_what_may_heal_is_tried_again_with_the_newest_marks() -> None:
    scene = Scene()
    for marks in scene.marks.values():
        marks.mark(15)
    fail = {
        A0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        A1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        B0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
    scene.answer(fail, 0)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.01)
    scene.marks[A0].mark(16)
    scene.manager.drop(A1)
    with pytest.raises(CommitFailedError) as raised:
        await call
    assert scene.sent[1:] == [{A0: (16, "")}]
    assert set(raised.value.failed) == {B0}
    assert [set(errors or ()) for _, errors in scene.commits] == [{A0, A1, B0}, set()]


@pytest.mark.parametrize("tries", [0, 3])
@pytest.mark.parametrize(
    "answer",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ConnectionLost("gone"),
        BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator of 'g'"),
    ],
)
async def test_retries_are_counted_and_spaced(answer: Any, tries: int) -> None:
    scene = Scene(retry_max=tries)
    scene.answer(answer)
    scene.marks[A0].mark(11)
    with pytest.raises(CommitFailedError) as raised:
        await scene.manager.commit()
    assert len(scene.sent) == 1 + tries
    assert list(raised.value.failed) == [A0]
    pause = sum(0.1 * 2**n for n in range(tries))
    assert pause * 0.8 <= now() <= pause * 1.2
    assert scene.marks[A0].dirty, "the next call tries again"
    assert scene.coordinator.forgotten == (1 + tries if answer == ErrorCode.NOT_COORDINATOR else 0)
    assert all(errors for _, errors in scene.commits), "hooks hear of every failure"
    assert len(scene.commits) == 1 + tries


async def test_retries_begin_anew_with_the_next_call() -> None:
    scene = Scene(retry_max=1)
    scene.answer(ConnectionLost("gone"), ConnectionLost("gone"), ConnectionLost("gone"), 0)
    scene.marks[A0].mark(11)
    with pytest.raises(CommitFailedError):
        await scene.manager.commit()
    await scene.manager.commit()
    assert not scene.marks[A0].dirty


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedVersionError("no common version"),
        ClosedError("the cluster was closed"),
        BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "coordinator of 'g'"),
    ],
)
async def test_an_error_of_the_request_itself_fails_every_partition(error: Exception) -> None:
    """Found by review: a closed cluster's error left `commit()` bare, and ended the session's task that commits."""
    scene = Scene()
    scene.answer(error)
    scene.marks[A0].mark(11)
    scene.marks[B0].mark(11)
    with pytest.raises(CommitFailedError) as raised:
        await scene.manager.commit()
    assert raised.value.failed == {A0: error, B0: error}
    assert len(scene.sent) == 1


async def test_an_answer_that_leaves_a_partition_out_is_a_failure() -> None:
    scene = Scene()

    async def silent(request: Any) -> Any:
        response = await answer_commit(request)
        response.topics = []
        return response

    scene.coordinator.script = silent
    scene.marks[A0].mark(11)
    with pytest.raises(CommitFailedError, match="UNKNOWN_SERVER_ERROR"):
        await scene.manager.commit()
    assert scene.marks[A0].dirty


# -- losses -------------------------------------------------------------------------------------------------------------

LOSSES = [code for code, action in ACTIONS.items() if action is CommitAction.LOST]


@pytest.mark.parametrize("code", LOSSES)
async def test_a_lost_membership_stops_everything(code: int) -> None:
    scene = Scene()
    for marks in scene.marks.values():
        marks.mark(11)
    scene.answer({A0: code, A1: ErrorCode.REBALANCE_IN_PROGRESS, B0: code})
    with pytest.raises(CommitFailedError) as raised:
        await scene.manager.commit()
    assert set(raised.value.failed) == {A0, A1, B0}
    assert len(scene.sent) == 1, "not even what may heal is tried again"
    assert now() == 0
    assert [error.code for error in scene.lost] == [code], "told once"
    with pytest.raises(CommitFailedError):
        await scene.manager.commit()
    assert len(scene.sent) == 1
    assert len(scene.lost) == 1


async def test_a_loss_heard_of_elsewhere_ends_the_retries() -> None:
    scene = Scene()
    scene.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    scene.marks[A0].mark(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.01)
    cause = MemberLost("expelled")
    scene.manager.give_up(cause)
    scene.manager.give_up(MemberLost("once more"))
    with pytest.raises(CommitFailedError) as raised:
        await call
    assert raised.value.failed == {A0: cause}
    assert len(scene.sent) == 1
    assert scene.lost == [], "whoever said so knows it"


async def test_nothing_marked_is_nothing_lost() -> None:
    scene = Scene()
    scene.manager.give_up(MemberLost("expelled"))
    await scene.manager.commit()


# -- partitions come and go ---------------------------------------------------------------------------------------------


async def test_a_dropped_partition_takes_its_marks_along() -> None:
    scene = Scene()
    scene.marks[A0].mark(11)
    scene.manager.drop(A0)
    scene.manager.drop(A0)
    scene.marks[A0].mark(12)
    await scene.manager.commit()
    assert scene.sent == []
    with pytest.raises(ConfigError, match="'a-0' is not allowed: one of the partitions owned: a-1, b-0"):
        scene.manager.of("a", 0)
    again = scene.manager.manage(A0, 50)
    assert scene.manager.of("a", 0) is again
    assert again.next_offset == 50


async def test_a_partition_dropped_and_back_during_a_commit_is_not_taken_for_the_old_one() -> None:
    scene = Scene()
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await answer_commit(request)

    scene.coordinator.script = slow
    scene.marks[A0].mark(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(1)
    scene.manager.drop(A0)
    again = scene.manager.manage(A0, 5)
    again.mark(7)
    gate.set()
    await call
    assert again.dirty


async def test_a_partition_is_managed_once() -> None:
    with pytest.raises(ConfigError, match="'a-0'"):
        Scene().manager.manage(A0, 0)
