"""Committer against a scripted coordinator: retries, failures, lost memberships, partitions added and dropped."""

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
from asyncgroup.offsets import MemberIdentity
from asyncgroup.offsets.commit_requests import COMMIT_ACTIONS, CommitAction
from tests.offsets.fakes import answer_commit, now
from tests.offsets.scene import A0, A1, B0, Scene

# -- failures ----------------------------------------------------------------------------------------------------------


async def test_failed_partitions_are_named_and_the_others_are_committed(scene: Scene) -> None:
    for marks in scene.marks.values():
        marks.mark_offset(15)
    scene.answer({A1: ErrorCode.OFFSET_METADATA_TOO_LARGE, B0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    with pytest.raises(CommitFailedError, match=r"'g'.*a-1.*OFFSET_METADATA_TOO_LARGE") as raised:
        await scene.manager.commit()
    assert {tp: error.code for tp, error in raised.value.errors.items()} == {  # type: ignore[attr-defined]
        A1: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        B0: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert len(scene.sent) == 1, "a retry does not help"
    assert {tp: marks.dirty for tp, marks in scene.marks.items()} == {A0: False, A1: True, B0: True}
    assert set(scene.commits[0][1] or ()) == {A1, B0}
    assert scene.lost == []


async def test_only_retriable_errors_are_retried_with_the_newest_marks(scene: Scene) -> None:
    for marks in scene.marks.values():
        marks.mark_offset(15)
    fail = {
        A0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        A1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        B0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
    scene.answer(fail, 0)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.01)
    assert scene.cluster.refreshes == 1, "the unknown topic may have been deleted"
    scene.marks[A0].mark_offset(16)
    scene.manager.drop(A1)
    with pytest.raises(CommitFailedError) as raised:
        await call
    assert scene.sent[1:] == [{A0: (16, "")}]
    assert set(raised.value.errors) == {B0}
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
async def test_retries_are_limited_and_have_pauses(answer: Any, tries: int) -> None:
    scene = Scene(retry_max=tries)
    scene.answer(answer)
    scene.marks[A0].mark_offset(11)
    with pytest.raises(CommitFailedError) as raised:
        await scene.manager.commit()
    assert len(scene.sent) == 1 + tries
    assert list(raised.value.errors) == [A0]
    pause = sum(0.1 * 2**n for n in range(tries))
    assert pause * 0.8 <= now() <= pause * 1.2
    assert scene.marks[A0].dirty, "the next call tries again"
    assert scene.coordinator.marked_unknown == (1 + tries if answer == ErrorCode.NOT_COORDINATOR else 0)
    assert all(errors for _, errors in scene.commits), "hooks are called for every failure"
    assert len(scene.commits) == 1 + tries


async def test_new_marks_do_not_wait_for_the_retries_of_another_partition(scene: Scene) -> None:
    scene.marks[A1].mark_offset(15)
    scene.answer({A1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, B0: ErrorCode.OFFSET_METADATA_TOO_LARGE})
    first = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.01)
    scene.marks[A0].mark_offset(16)
    scene.marks[B0].mark_offset(16)
    second = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.2)
    assert not first.done()
    assert scene.sent[1].keys() == {A0, A1, B0}
    assert not scene.marks[A0].dirty
    scene.marks[B0].mark_offset(17)
    with pytest.raises(CommitFailedError, match="a-1"):
        await first
    assert [request.keys() for request in scene.sent[2:4]] == [{A1}, {A1}], (
        "what failed for good is left to the next call"
    )
    with pytest.raises(CommitFailedError):
        await second


async def test_a_mark_that_was_made_during_the_retries_of_others_is_tried_again() -> None:
    """By automatic commits, which leave out what was refused as often as the configuration says."""
    scene = Scene(retry_max=1)
    scene.marks[A1].mark_offset(15)
    scene.answer({A0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, A1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    first = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.01)
    scene.marks[A0].mark_offset(16)
    with pytest.raises(CommitFailedError) as raised:
        await first
    assert raised.value.errors.keys() == {A1}
    scene.answer(0)
    await scene.manager.commit(retry_rejected=False)
    assert scene.sent[-1].keys() == {A0}


async def test_the_next_call_retries_as_often_again() -> None:
    scene = Scene(retry_max=1)
    scene.answer(ConnectionLost("gone"), ConnectionLost("gone"), ConnectionLost("gone"), 0)
    scene.marks[A0].mark_offset(11)
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
async def test_an_error_of_the_whole_request_fails_every_partition(scene: Scene, error: Exception) -> None:
    """Found by review: a closed cluster's error was raised by `commit()` as it is, and ended the session's commit task."""
    scene.answer(error)
    scene.marks[A0].mark_offset(11)
    scene.marks[B0].mark_offset(11)
    with pytest.raises(CommitFailedError) as raised:
        await scene.manager.commit()
    assert repr(raised.value.errors) == repr({A0: error, B0: error})
    assert len(scene.sent) == 1


async def test_a_response_without_a_partition_is_a_failure(scene: Scene) -> None:

    async def silent(request: Any) -> Any:
        response = await answer_commit(request)
        response.topics = []
        return response

    scene.coordinator.script = silent
    scene.marks[A0].mark_offset(11)
    with pytest.raises(CommitFailedError, match="UNKNOWN_SERVER_ERROR"):
        await scene.manager.commit()
    assert scene.marks[A0].dirty


# -- members with an epoch (KIP-848) ------------------------------------------------------------------------------------


async def test_a_stale_epoch_is_retried_with_the_newest_for_what_is_still_owned() -> None:
    """Rule 8: newer epochs count as no retry; a partition that was revoked in between is not committed."""
    epochs = [4]

    async def wait_joined() -> bool:
        epochs.append(epochs[-1] + 1)
        scene.manager.drop(A1)
        return True

    scene = Scene(retry_max=0, identity=lambda: MemberIdentity("m-1", epochs[-1]), wait_joined=wait_joined)
    scene.answer(ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH, 0)
    scene.marks[A0].mark_offset(11)
    scene.marks[A1].mark_offset(12)
    await scene.manager.commit()
    sent = [request.generation_id_or_member_epoch for _, request in scene.coordinator.requests]
    assert sent == [4, 5, 6]
    assert scene.sent[0] == {A0: (11, ""), A1: (12, "")}
    assert scene.sent[1:] == [{A0: (11, "")}] * 2
    assert not scene.marks[A0].dirty


async def test_a_stale_epoch_without_a_newer_one_is_retried_as_often_as_other_errors() -> None:
    async def wait_joined() -> bool:
        return False

    scene = Scene(retry_max=2, wait_joined=wait_joined)
    scene.answer(ErrorCode.STALE_MEMBER_EPOCH)
    scene.marks[A0].mark_offset(11)
    with pytest.raises(CommitFailedError, match="STALE_MEMBER_EPOCH"):
        await scene.manager.commit()
    assert len(scene.sent) == 3
    assert scene.marks[A0].dirty


# -- lost memberships --------------------------------------------------------------------------------------------------

LOSSES = [code for code, action in COMMIT_ACTIONS.items() if action is CommitAction.LOST]


@pytest.mark.parametrize("code", LOSSES)
async def test_a_lost_membership_stops_everything(scene: Scene, code: int) -> None:
    for marks in scene.marks.values():
        marks.mark_offset(11)
    scene.answer({A0: code, A1: ErrorCode.REBALANCE_IN_PROGRESS, B0: code})
    with pytest.raises(CommitFailedError) as raised:
        await scene.manager.commit()
    assert set(raised.value.errors) == {A0, A1, B0}
    assert len(scene.sent) == 1, "not even retriable errors are retried"
    assert now() == 0
    assert [error.code for error in scene.lost] == [code], "told once"
    with pytest.raises(CommitFailedError):
        await scene.manager.commit()
    assert len(scene.sent) == 1
    assert len(scene.lost) == 1


async def test_mark_lost_ends_the_retries(scene: Scene) -> None:
    scene.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    scene.marks[A0].mark_offset(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(0.01)
    cause = MemberLost("expelled")
    scene.manager.mark_lost(cause)
    scene.manager.mark_lost(MemberLost("once more"))
    with pytest.raises(CommitFailedError) as raised:
        await call
    assert repr(raised.value.errors) == repr({A0: cause})
    assert len(scene.sent) == 1
    assert scene.lost == [], "the caller of mark_lost knows already"


async def test_without_marks_a_lost_membership_raises_nothing(scene: Scene) -> None:
    scene.manager.mark_lost(MemberLost("expelled"))
    await scene.manager.commit()


# -- partitions added and dropped --------------------------------------------------------------------------------------


async def test_a_dropped_partition_loses_its_marks(scene: Scene) -> None:
    scene.marks[A0].mark_offset(11)
    scene.manager.drop(A0)
    scene.manager.drop(A0)
    scene.marks[A0].mark_offset(12)
    await scene.manager.commit()
    assert scene.sent == []
    with pytest.raises(ConfigError, match="'a-0' is not allowed: one of the partitions owned: a-1, b-0"):
        scene.manager.of("a", 0)
    again = scene.manager.manage(A0, 50)
    assert scene.manager.of("a", 0) is again
    assert again.next_offset == 50


async def test_a_partition_dropped_and_managed_again_during_a_commit_stays_dirty(scene: Scene) -> None:
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return await answer_commit(request)

    scene.coordinator.script = slow
    scene.marks[A0].mark_offset(11)
    call = asyncio.ensure_future(scene.manager.commit())
    await asyncio.sleep(1)
    scene.manager.drop(A0)
    again = scene.manager.manage(A0, 5)
    again.mark_offset(7)
    gate.set()
    await call
    assert again.dirty


async def test_a_partition_cannot_be_managed_twice() -> None:
    with pytest.raises(ConfigError, match="'a-0'"):
        Scene().manager.manage(A0, 0)


# -- refusals that may come from a former coordinator ------------------------------------------------------------------

REFUSED = sorted(code for code, action in COMMIT_ACTIONS.items() if action is CommitAction.LOST)


@pytest.mark.parametrize("code", REFUSED)
async def test_a_refusal_that_is_not_final_is_retried(code: int) -> None:
    asked: list[tuple[int | None, float]] = []

    async def confirm_refusal(lookup: int | None, sent_at: float) -> bool:
        asked.append((lookup, sent_at))
        await asyncio.sleep(0.5)
        scene.marks[A0].mark_offset(16)
        return False

    scene = Scene(confirm_refusal=confirm_refusal)
    scene.coordinator.lookups = 7
    scene.marks[A0].mark_offset(15)
    scene.answer({A0: code}, 0)
    await asyncio.sleep(1.0)
    await scene.manager.commit()
    assert asked == [(7, 1.0)]
    assert scene.lost == []
    assert [sent[A0] for sent in scene.sent] == [(15, ""), (16, "")]
    assert not scene.marks[A0].dirty


@pytest.mark.parametrize("code", REFUSED)
async def test_a_final_refusal_ends_the_membership(code: int) -> None:
    async def confirm_refusal(_lookup: int | None, _sent_at: float) -> bool:
        return True

    scene = Scene(confirm_refusal=confirm_refusal)
    scene.marks[A0].mark_offset(15)
    scene.answer(code)
    with pytest.raises(CommitFailedError):
        await scene.manager.commit()
    assert [error.code for error in scene.lost] == [code]
    assert len(scene.sent) == 1


async def test_a_loss_found_by_is_final_is_not_reported_twice() -> None:
    """A refused heartbeat has ended the session already: nothing more is sent, and `on_lost` is not called."""

    async def confirm_refusal(_lookup: int | None, _sent_at: float) -> bool:
        scene.manager.mark_lost(MemberLost("a heartbeat was refused"))
        return True

    scene = Scene(confirm_refusal=confirm_refusal)
    scene.marks[A0].mark_offset(15)
    scene.answer(ErrorCode.UNKNOWN_MEMBER_ID)
    with pytest.raises(CommitFailedError):
        await scene.manager.commit()
    assert scene.lost == []
    assert len(scene.sent) == 1


# -- generations that change ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS]
)
async def test_a_refusal_under_a_former_generation_is_retried_under_the_present_one(code: int) -> None:
    """Found by a mixed group on a real network: the commit was sent between the response to SyncGroup and its handling."""
    identities, asked = [MemberIdentity("m", 4)], []

    async def confirm(lookup: int | None, sent_at: float) -> bool:
        asked.append(sent_at)
        return True

    async def script(request: Any) -> Any:
        if request.generation_id_or_member_epoch == 4:
            identities.append(MemberIdentity("m", 5))  # applied while the request was in flight
            return await answer_commit(request, code)
        return await answer_commit(request, 0)

    scene = Scene(retry_max=0, identity=lambda: identities[-1], confirm_refusal=confirm)
    scene.coordinator.script = script
    scene.marks[A0].mark_offset(11)
    await scene.manager.commit()
    assert [request.generation_id_or_member_epoch for _, request in scene.coordinator.requests] == [4, 5]
    assert not scene.marks[A0].dirty
    assert scene.lost == []
    assert asked == []
