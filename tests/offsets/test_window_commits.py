"""Commits of windows by a Committer: what is sent, refusals as too large, unanswered requests."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import CommitFailedError, ConnectionLost, ErrorCode
from asyncgroup.offsets import window_marks
from asyncgroup.offsets.commit_metadata import decode_metadata
from asyncgroup.offsets.window_encoding import EncodedWindow, decode_window
from asyncgroup.offsets.window_marks import WindowMarks
from tests.offsets.fakes import answer_commit, committed_by
from tests.offsets.scene import A0, A1, Scene


def with_window(scene: Scene, runs: int = 1_000) -> AckWindow:
    """Give A0 a window whose base is the committed offset, 10."""
    window = AckWindow(10, [(10 + 2 * i, 11 + 2 * i) for i in range(1, runs + 1)])
    marks = scene.marks[A0]
    marks.window = WindowMarks(A0, window)
    marks.touch()
    return window


def sent_window(scene: Scene, request: int = -1) -> AckWindow:
    offset, metadata = scene.sent[request][A0]
    return decode_window(decode_metadata(A0, offset, metadata).window, offset)


async def test_a_window_is_committed_in_place_of_a_mark(scene: Scene) -> None:
    scene.answer(0)
    window = with_window(scene)
    await scene.manager.commit()
    assert sent_window(scene).runs == window.runs
    assert scene.manager.dirty == []
    await scene.manager.commit_last()
    assert len(scene.sent) == 1


async def test_a_change_while_the_request_is_in_flight_is_committed_next(scene: Scene) -> None:
    window = with_window(scene)

    async def script(request: Any) -> Any:
        if len(scene.coordinator.requests) == 1:
            window.ack(10)
            scene.marks[A0].touch()
        return await answer_commit(request)

    scene.coordinator.script = script
    await scene.manager.commit()
    assert scene.manager.dirty == [A0]
    await scene.manager.commit()
    assert [sent[A0][0] for sent in scene.sent] == [10, 11]
    assert scene.manager.dirty == []


async def test_a_window_is_encoded_once_for_a_request(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if the window changes while the coordinator is looked up."""
    scene.answer(0)
    window = with_window(scene)
    encoded: list[int] = []
    encode = window_marks.encode_window

    def counted(changed: AckWindow, base: int, room: int) -> EncodedWindow:
        encoded.append(changed.version)
        return encode(changed, base, room)

    async def lookup() -> None:
        window.ack(10)
        scene.marks[A0].touch()

    monkeypatch.setattr(window_marks, "encode_window", counted)
    monkeypatch.setattr(scene.coordinator, "lookup", lookup)
    await scene.manager.commit()
    assert encoded == [window.version]
    assert sent_window(scene).base == 11
    assert scene.manager.dirty == []


async def test_closing_while_the_request_is_in_flight_is_committed_next(scene: Scene) -> None:
    with_window(scene)
    marks = scene.marks[A0]
    assert marks.window is not None
    marks.window.open()

    async def script(request: Any) -> Any:
        assert marks.window is not None
        marks.window.close()
        return await answer_commit(request)

    scene.coordinator.script = script
    await scene.manager.commit()
    await scene.manager.commit_last()
    flags = [decode_metadata(A0, *sent[A0]).is_open for sent in scene.sent]
    assert flags == [True, False]


async def test_nothing_is_encoded_to_see_whether_anything_is_due(scene: Scene) -> None:
    """Found by review: each of many acknowledgements that wait for one commit encoded all windows."""
    scene.answer(0)
    with_window(scene)
    scene.marks[A0].rejected = True
    await scene.manager.commit(retry_rejected=False)
    assert scene.marks[A0].window is not None
    assert scene.marks[A0].window.size == 0
    assert scene.sent == []


def limit_metadata(scene: Scene, limit: int, code: ErrorCode) -> None:
    """Let the broker refuse longer metadata."""

    async def script(request: Any) -> Any:
        sent = committed_by(request)
        codes = {tp: int(code) for tp, (_, metadata) in sent.items() if len(metadata) > limit}
        return await answer_commit(request, codes)

    scene.coordinator.script = script


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE])
async def test_a_window_that_the_broker_refuses_as_too_large_is_made_smaller(code: ErrorCode) -> None:
    scene = Scene()
    window = with_window(scene)
    scene.marks[A1].mark_offset(20)
    limit_metadata(scene, 150, code)
    await scene.manager.commit()
    assert scene.manager.dirty == []
    assert [set(sent) for sent in scene.sent] == [{A0, A1}, *[{A0}] * (len(scene.sent) - 1)]
    assert 0 < len(scene.sent[-1][A0][1]) <= 150
    kept = sent_window(scene).runs
    assert 0 < len(kept) < 1_000
    assert kept == window.runs[: len(kept)], "it loses acknowledgements, never records"
    requests = len(scene.sent)
    window.ack(10)
    scene.marks[A0].touch()
    await scene.manager.commit()
    assert len(scene.sent) == requests + 1, "the limit is kept"


async def test_without_retries_the_next_commits_go_on_with_a_smaller_window() -> None:
    scene = Scene(retry_max=0)
    with_window(scene)
    limit_metadata(scene, 0, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    failures = 0
    while scene.manager.dirty:
        try:
            await scene.manager.commit(retry_rejected=False)
        except CommitFailedError:
            failures += 1
    assert failures < 10
    assert len(scene.sent) == failures + 1
    assert scene.sent[-1] == {A0: (10, "")}, "in the end the offset alone"


async def test_a_mark_with_text_that_is_too_large_is_rejected_as_ever(scene: Scene) -> None:
    scene.answer(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    scene.marks[A0].mark_offset(11, "text")
    with pytest.raises(CommitFailedError, match="OFFSET_METADATA_TOO_LARGE"):
        await scene.manager.commit()
    assert len(scene.sent) == 1
    assert scene.marks[A0].rejected


async def test_a_window_committed_after_an_unanswered_request_is_committed_once_more(scene: Scene) -> None:
    scene.answer(ConnectionLost("gone"), 0)
    with_window(scene)
    scene.marks[A0].next_offset = -1  # of no use with a window
    await scene.manager.commit()
    assert len(scene.sent) == 2
    await scene.manager.commit_last()
    assert len(scene.sent) == 3
    assert scene.sent[2] == scene.sent[1]


async def test_a_rejected_window_waits_for_its_next_change() -> None:
    scene = Scene(retry_max=0)
    scene.answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    window = with_window(scene)
    with pytest.raises(CommitFailedError):
        await scene.manager.commit(retry_rejected=False)
    await scene.manager.commit(retry_rejected=False)
    assert len(scene.sent) == 1
    window.ack(10)
    scene.marks[A0].touch()
    with pytest.raises(CommitFailedError):
        await scene.manager.commit(retry_rejected=False)
    assert len(scene.sent) == 2


async def test_an_aborted_transaction_leaves_the_window_to_be_committed(scene: Scene) -> None:
    before = scene.marks[A0].value
    with_window(scene)
    scene.marks[A0].take_back(before)
    assert scene.marks[A0].dirty


async def test_a_skipped_range_that_changes_nothing_is_not_committed(scene: Scene) -> None:
    with_window(scene)
    marks = scene.marks[A0]
    marks.committed(marks.value)
    marks.skip_range(12, 13, 4)
    marks.skip_range(10, 10, -1)
    assert not marks.dirty
    marks.skip_range(10, 12, 4)
    assert marks.dirty
    assert marks.base == 13


async def test_progress_follows_the_window(scene: Scene) -> None:
    window = with_window(scene)
    before = scene.marks[A0].progress
    window.ack(500_000)
    assert scene.marks[A0].progress != before
