"""ClaimWindow: restored from the group's last commit, by any client; committed with the other windows of the session."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterable
from types import SimpleNamespace
from uuid import UUID

import pytest

from asyncgroup import Claim, ConsumerConfig, ErrorCode, Session, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.errors import CommitFailedError, UsageError
from asyncgroup.group.sessions.claim_source import ClaimSource, ClaimStart
from asyncgroup.model import CommittedOffset
from asyncgroup.offsets.commit_metadata import CommitMetadata, decode_metadata, encode_metadata
from asyncgroup.offsets.fetch_offsets import StoredCommit
from asyncgroup.offsets.window_encoding import decode_window, encode_window
from asyncgroup.wire import messages as m
from asyncgroup.workqueue.group_engine.claim_window import PARALLEL_CONSUMER, ClaimWindow, commit_windows
from tests.group.parts import make_session
from tests.offsets.fakes import answer_commit, committed_by
from tests.offsets.test_fetch_offsets import cluster_that
from tests.scenario.support import WorkHandler, member, orders, running
from tests.stories.virtual import VirtualEnvironment

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
ID = UUID(int=0xFEED_0000_0000_0000_0000_0000_0000_0001)
LOGGER = "asyncgroup.offsets"
MIXED = "bAAUnvsPAA=="
"""By parallel-consumer: of the offsets from the base on, all but 0, 5, 6 and 10 are completed, up to 19."""


def restored(
    raw: str, offset: int = 100, *, epoch: int = 3, migrate_from: str | None = None
) -> tuple[ClaimWindow, Claim]:
    """Return the window of a claim that begins at this commit."""
    session, cluster = make_session([])
    source = ClaimSource(SimpleNamespace(_inner=cluster), "g", ConsumerConfig(), ())  # type: ignore[arg-type]
    metadata = decode_metadata(TP, offset, raw)
    stored = StoredCommit(CommittedOffset(offset, metadata.text, epoch), metadata, raw)
    claim = source.make_claim(
        session._inner.offsets, Budget(1 << 30, 1 << 20), TP, ClaimStart(offset, epoch, stored)
    )
    session._inner.claims.add(claim)
    return ClaimWindow(session, claim, migrate_from=migrate_from), claim


def envelope(
    runs: Iterable[tuple[int, int]] = (), attempts: dict[int, int] | None = None, **content: object
) -> str:
    """Return the metadata of a window at offset 100."""
    window = encode_window(AckWindow(100, runs, attempts), 100, 4_000).text
    return encode_metadata(TP, 100, CommitMetadata(window=window, **content))  # type: ignore[arg-type]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- restoring -----------------------------------------------------------------------------------------------------------


async def test_a_window_is_restored_with_attempts_text_and_flag(caplog: pytest.LogCaptureFixture) -> None:
    raw = envelope([(102, 109)], {100: 3, 110: 1}, text="mine", is_open=True, end_epoch=5)
    window, claim = restored(raw)
    assert (window.window.base, window.window.runs) == (100, [(102, 109)])
    assert window.window.attempts == {100: 3, 110: 1}
    assert (window.was_open, window.tp) == (True, TP)
    assert (claim.initial_offset, claim.initial_metadata, claim.next_mark) == (100, "mine", 100)
    assert window.is_committed
    value = claim._inner.offsets.value
    assert (value.offset, value.leader_epoch) == (100, 3)
    found = decode_metadata(TP, 100, value.metadata)
    assert (found.text, found.is_open, found.end_epoch) == ("mine", False, 5)
    assert warnings(caplog) == []


async def test_a_claim_without_a_window_commits_as_ever() -> None:
    _, claim = restored(envelope([(102, 109)], text="mine"))
    claim._inner.offsets.window = None
    claim._inner.offsets.mark_offset(101, "next")
    assert claim._inner.offsets.value == CommittedOffset(101, "next", -1)


async def test_a_partition_without_a_commit() -> None:
    session, _ = make_session()
    window = ClaimWindow(session, session.claims[0])
    assert (window.window.base, window.was_open) == (0, False)


async def test_the_flag_is_set_until_the_claim_ends_in_order() -> None:
    window, claim = restored("")
    window.open()
    assert not window.is_committed
    assert decode_metadata(TP, 100, claim._inner.offsets.value.metadata).is_open
    window.close()
    assert claim._inner.offsets.value.metadata == ""


FOREIGN = {
    "Kafka Streams v1": "AQAAAYqvmgsA",
    "Kafka Streams v2": "AgAAAYqvmgsAAAAA",
    "parallel-consumer": MIXED,
    "text": "done by hand: batch 7",
    "another program": '{"host": "a", "at": 12}',
    "an envelope of another offset": encode_metadata(TP, 99, CommitMetadata("mine", window="ab")),
    "an envelope of another partition": encode_metadata(OTHER, 100, CommitMetadata("mine", window="ab")),
    "a damaged envelope": envelope([(102, 109)]).replace("w=", "w=0"),
    "a later version": "asyncgroup/2:00000000:z=1;",
}


@pytest.mark.parametrize("raw", FOREIGN.values(), ids=FOREIGN.keys())
async def test_foreign_metadata_loses_no_record(raw: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        window, claim = restored(raw)
    assert (window.window.base, window.window.runs, window.was_open) == (100, [], False)
    assert claim.initial_offset == 100
    (warning,) = warnings(caplog)
    assert warning.startswith(
        "group g, orders-0: the metadata of the committed offset 100 is ignored, and all records from there on are "
        "delivered: it was not written by a work queue for this offset: "
    )
    window.window.ack(100)
    window.touch()
    assert claim._inner.offsets.value.metadata == "", "the foreign text is not carried on"


@pytest.mark.parametrize("raw", [raw for name, raw in FOREIGN.items() if name != "parallel-consumer"])
async def test_foreign_metadata_is_not_that_of_parallel_consumer(
    raw: str, caplog: pytest.LogCaptureFixture
) -> None:
    window, _ = restored(raw, migrate_from=PARALLEL_CONSUMER)
    assert (window.window.base, window.window.runs) == (100, [])
    (warning,) = warnings(caplog)
    assert "it is not that of parallel-consumer (" in warning


async def test_a_group_moves_from_parallel_consumer(caplog: pytest.LogCaptureFixture) -> None:
    window, _ = restored(MIXED, migrate_from=PARALLEL_CONSUMER)
    assert (window.window.base, window.window.runs) == (100, [(101, 105), (107, 110), (111, 120)])
    assert warnings(caplog) == []
    window, _ = restored(envelope([(102, 109)], text="mine"), migrate_from=PARALLEL_CONSUMER)
    assert window.window.runs == [(102, 109)], "our own envelope comes first"
    window, _ = restored("", migrate_from=PARALLEL_CONSUMER)
    assert window.window.runs == []
    assert warnings(caplog) == []


@pytest.mark.parametrize("content", ["?", "0", "\x7f", "é", base64.b85encode(bytes(40)).decode(), "~" * 5])
async def test_a_window_that_cannot_be_decoded_keeps_the_text(
    content: str, caplog: pytest.LogCaptureFixture
) -> None:
    raw = encode_metadata(TP, 100, CommitMetadata("mine", ID, content, is_open=True))
    window, claim = restored(raw)
    assert (window.window.base, window.window.runs, window.was_open) == (100, [], True)
    (warning,) = warnings(caplog)
    assert "the acknowledged offsets in it cannot be decoded" in warning
    assert decode_metadata(TP, 100, claim._inner.offsets.value.metadata).text == "mine"


async def test_foreign_text_is_escaped_and_shortened_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    restored("line\nERROR forged \x1b[2J\u202e" + "x" * 4_000)
    (warning,) = warnings(caplog)
    assert warning.isprintable()
    assert len(warning) < 400


async def test_the_commit_of_a_deleted_topic_is_not_used() -> None:
    """Its offset and its window belong to other records; those of the new topic are read from their beginning."""
    cluster = cluster_that({})
    source = ClaimSource(SimpleNamespace(_inner=cluster), "g", ConsumerConfig(), ())  # type: ignore[arg-type]
    cluster.topic("orders", ID)
    commits = [
        StoredCommit(CommittedOffset(7), CommitMetadata(topic_id=topic_id), "")
        for topic_id in (ID, UUID(int=0), UUID(int=5))
    ]
    assert [source._is_of_deleted_topic(TP, commit) for commit in commits] == [False, False, True]
    assert not source._is_of_deleted_topic(TopicPartition("unknown", 0), commits[2])


# --- commits -------------------------------------------------------------------------------------------------------------


async def two_windows() -> tuple[list[ClaimWindow], Session, list[dict[TopicPartition, tuple[int, str]]]]:
    session, cluster = make_session()
    sent: list[dict[TopicPartition, tuple[int, str]]] = []

    async def script(request: object) -> object:
        sent.append(committed_by(request))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        return await answer_commit(request)  # type: ignore[arg-type]

    cluster.coordinators.script = script
    return [ClaimWindow(session, claim) for claim in session.claims], session, sent


async def test_all_dirty_windows_share_a_request() -> None:
    windows, session, sent = await two_windows()
    for window in windows:
        window.window.ack(0)
        window.window.ack(7)
        window.touch()
    await asyncio.gather(*(window.commit() for window in windows), commit_windows(session))
    assert [set(request) for request in sent] == [{TP, OTHER}]
    offset, metadata = sent[0][TP]
    assert decode_window(decode_metadata(TP, offset, metadata).window, offset).runs == [(7, 8)]
    assert all(window.is_committed for window in windows)
    await windows[0].commit()
    await commit_windows(session)
    assert len(sent) == 1, "nothing has changed"


async def test_a_commit_contains_what_was_acknowledged_before_it_was_called() -> None:
    (window, _), _, sent = await two_windows()
    window.window.ack(0)
    window.touch()
    first = asyncio.ensure_future(window.commit())
    await asyncio.sleep(0.05)
    window.window.ack(1)
    window.touch()
    await window.commit()
    assert [request[TP][0] for request in sent] == [1, 2]
    assert first.done()
    assert window.is_committed


async def test_only_the_failure_of_the_own_partition_is_raised() -> None:
    session, cluster = make_session()
    one, other = (ClaimWindow(session, claim) for claim in session.claims)

    async def script(request: object) -> object:
        code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return await answer_commit(request, {OTHER: code})  # type: ignore[arg-type]

    cluster.coordinators.script = script
    for window in (one, other):
        window.window.ack(0)
        window.touch()
    await one.commit()
    assert (one.is_committed, other.is_committed) == (True, False)
    with pytest.raises(CommitFailedError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
        await other.commit()
    assert caught.value.errors.keys() == {OTHER}
    with pytest.raises(CommitFailedError) as caught:
        await commit_windows(session)
    assert caught.value.errors.keys() == {OTHER}
    one.touch()
    await one.commit()


async def test_a_rejected_window_is_not_sent_again_unless_its_own_commit_is_awaited() -> None:
    session, cluster = make_session([("orders", 0)])
    window = ClaimWindow(session, session.claims[0])

    async def script(request: object) -> object:
        return await answer_commit(request, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))  # type: ignore[arg-type]

    cluster.coordinators.script = script
    window.touch()
    with pytest.raises(CommitFailedError):
        await commit_windows(session)
    requests = len(cluster.coordinators.requests)
    await commit_windows(session)
    assert len(cluster.coordinators.requests) == requests
    with pytest.raises(CommitFailedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await window.commit()


async def test_after_the_end() -> None:
    windows, session, sent = await two_windows()
    windows[0].touch()
    session._inner.offsets.drop(TP)  # revoked, with a handler that still runs
    with pytest.raises(CommitFailedError, match=r"orders-0: the claim of orders-0 has ended"):
        await windows[0].commit()
    session._inner.close()
    for call in (windows[1].commit(), commit_windows(session)):
        with pytest.raises(UsageError, match="has ended: nothing can be committed any more"):
            await call
    assert sent == []


async def test_a_commit_that_the_end_of_the_session_interrupts_has_failed() -> None:
    windows, session, _ = await two_windows()
    windows[0].touch()
    commit = asyncio.ensure_future(windows[0].commit())
    await asyncio.sleep(0.05)
    await session._inner.offsets.aclose()
    with pytest.raises(CommitFailedError) as caught:
        await commit
    assert caught.value.errors.keys() == {TP}


async def test_the_size_is_that_of_the_last_commit() -> None:
    (window, _), _, _ = await two_windows()
    assert window.size == 0
    for offset in range(1, 4_000, 2):
        window.window.ack(offset)
    assert window.size == 0
    window.touch()
    await window.commit()
    assert 100 < window.size <= window.limit == 4_096


async def test_a_change_of_the_log_is_passed_on() -> None:
    session, _ = make_session()
    restarted: list[int] = []
    window = ClaimWindow(session, session.claims[0], on_restart=restarted.append)
    window.window.ack_range(5, 20)
    session.claims[0]._inner.consumer._inner.restart(8)
    assert (window.window.runs, restarted) == ([(5, 8)], [8])


async def test_acknowledgements_are_progress_of_the_claim() -> None:
    session, _ = make_session()
    window = ClaimWindow(session, session.claims[0])
    before = session.claims[0]._inner.progress
    window.window.ack(5)
    assert session.claims[0]._inner.progress != before


# --- in a group ------------------------------------------------------------------------------------------------------------


class QueueOfOdds(WorkHandler):
    """Acknowledges odd offsets only; `seen` are the offsets of partition 0 that are delivered."""

    def __init__(self, env: VirtualEnvironment, *, closes: bool = True) -> None:
        super().__init__(env)
        self.windows: dict[TopicPartition, ClaimWindow] = {}
        self.seen: list[int] = []
        self._closes = closes

    async def on_assigned(self, session: Session, partitions: object) -> None:
        for claim in session.claims:
            self.windows[claim.tp] = ClaimWindow(session, claim)

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        window = self.windows[claim.tp]
        window.open()
        async for record in claim:
            window.note_arrival(record.offset, [record], record.offset)
            if record.offset not in window.window:
                self.seen.append(record.offset)
                window.window.set_attempts(record.offset, window.window.attempts.get(record.offset, 0) + 1)
            if record.offset % 2:
                window.window.ack(record.offset)
            window.touch()
            self.note(f"seen {record.partition}@{record.offset}")

    async def on_revoked(self, session: Session, partitions: object) -> None:
        if self._closes:
            for window in self.windows.values():
                window.close()


def stored(env: VirtualEnvironment) -> CommitMetadata:
    found = env.cluster.group(env.group_id).offsets[orders(0)]
    assert found.offset == 0
    return decode_metadata(orders(0), 0, found.metadata)


async def test_the_last_commit_of_a_session_has_the_window(env: VirtualEnvironment) -> None:
    await env.produce(10, [0])
    first = QueueOfOdds(env)
    async with member(env) as group, running(group.run("orders", first)):
        await first.until("seen 0@9")
        await commit_windows(first.windows[orders(0)]._session)
        assert stored(env).is_open
    assert not stored(env).is_open
    await env.produce(1, [0])
    second = QueueOfOdds(env)
    async with member(env) as group, running(group.run("orders", second)):
        await second.until("seen 0@10")
    assert first.seen == list(range(10))
    assert second.seen == [0, 2, 4, 6, 8, 10], "what was acknowledged is not delivered again"
    assert not second.windows[orders(0)].was_open
    assert second.windows[orders(0)].window.attempts == {0: 2, 2: 2, 4: 2, 6: 2, 8: 2, 10: 1}


async def test_a_crash_leaves_the_flag_set(env: VirtualEnvironment) -> None:
    await env.produce(10, [0])
    first = QueueOfOdds(env, closes=False)
    async with member(env) as group, running(group.run("orders", first)):
        await first.until("seen 0@9")
    second = QueueOfOdds(env)
    async with member(env) as group, running(group.run("orders", second)):
        await second.until("seen 0@8")
        assert second.windows[orders(0)].was_open


async def test_a_broker_with_a_lower_limit_gets_a_smaller_window(env: VirtualEnvironment) -> None:
    await env.produce(400, [0])
    handler = QueueOfOdds(env)

    def is_too_large(request: m.OffsetCommitRequest) -> bool:
        return any(len(metadata) > 200 for _, metadata in committed_by(request).values())

    env.cluster.faults.on("OffsetCommit", where=is_too_large, times=None).error("OFFSET_METADATA_TOO_LARGE")
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("seen 0@399")
        await handler.windows[orders(0)].commit()
        found = env.cluster.group(env.group_id).offsets[orders(0)]
        assert 0 < len(found.metadata) <= 200
        assert decode_metadata(orders(0), 0, found.metadata).is_open


async def test_the_offset_of_a_deleted_topic_is_not_used(env: VirtualEnvironment) -> None:
    """Also if a broker returns it: the records of the new topic are read from their beginning."""
    await env.produce(4, [0])

    def answer(request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        response = m.OffsetFetchResponse
        (group,) = request.groups
        topics = []
        for topic in group.topics or ():
            raw = encode_metadata(orders(0), 2, CommitMetadata(topic_id=ID))
            parts = [
                response.OffsetFetchResponsePartitions(number, 2 if number == 0 else -1, -1, raw, 0)
                for number in topic.partition_indexes
            ]
            topics.append(response.OffsetFetchResponseTopics(topic.name, topic.topic_id, parts))
        return response(groups=[response.OffsetFetchResponseGroup(env.group_id, topics, 0)])

    env.cluster.faults.on("OffsetFetch").answer(answer)
    handler = QueueOfOdds(env)
    async with member(env, auto_offset_reset="latest") as group, running(group.run("orders", handler)):
        await handler.until("seen 0@3")
    assert handler.seen == [0, 1, 2, 3]
