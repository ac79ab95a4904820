"""Blocking handlers: a thread per claim, records in order, the end of the claim. On a real event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio.from_thread
import pytest

from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.errors import ConfigError, CorruptRecordsError, GroupClosed
from asyncgroup.group.sessions.handler import as_handler
from asyncgroup.group.sessions.threads import BATCH_RECORDS, ThreadClaim
from asyncgroup.model import Record, TopicPartition
from asyncgroup.threads import in_thread
from asyncgroup.wire.messages import NO_UUID
from tests.consumer.support import batch, with_bad_content
from tests.group.parts import consumer_of, end_session, make_session
from tests.offsets.fakes import committed_by

pytestmark = pytest.mark.real

LIMIT = 20.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.001)


class ThreadedRun:
    """A blocking function as handler of the claims of a session."""

    def __init__(self, function: Callable[[Any, ThreadClaim], None], partitions: int = 1) -> None:
        self.session, self.cluster = make_session([("orders", number) for number in range(partitions)])
        self.claims = self.session.claims
        self.handler = as_handler(in_thread(function))
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.handler.setup(self.session)
        self.tasks = [
            asyncio.ensure_future(self.handler.consume_claim(self.session, claim)) for claim in self.claims
        ]

    def feed(self, first: int, count: int, claim: int = 0) -> None:
        self.feed_log(batch(first, count=count), claim)

    def feed_log(self, log: bytes, claim: int = 0) -> None:
        consumer_of(self.claims[claim])._inner.fetched(FetchedRecords(log, 1 << 40, 0, zero_copy=True))

    async def end(self) -> None:
        end_session(self.session, GroupClosed("closed"))
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*self.tasks)


async def test_records_and_marks_pass_between_threads_in_order() -> None:
    seen: list[int] = []
    threads: set[int] = set()

    def work(session: Any, claim: ThreadClaim) -> None:
        threads.add(threading.get_ident())
        for record in claim:
            seen.append(record.offset)
            claim.mark(record, "done")

    run = ThreadedRun(work)
    await run.start()
    run.feed(0, 2 * BATCH_RECORDS + 7)
    await until(lambda: len(seen) == 2 * BATCH_RECORDS + 7)
    run.feed(2 * BATCH_RECORDS + 7, 3)
    await until(lambda: len(seen) == 2 * BATCH_RECORDS + 10)
    await run.end()
    assert seen == list(range(2 * BATCH_RECORDS + 10))
    assert run.claims[0].next_mark == 2 * BATCH_RECORDS + 10, "marks take effect before the function returns"
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(batch(0, count=2000), id="one batch"),
        pytest.param(
            b"".join(batch(offset, codec="lz4") for offset in range(2000)),
            id="batches of one record, lz4",
            marks=pytest.mark.full,
        ),
        pytest.param(b"".join(map(batch, range(2000))), id="batches of one record"),
    ],
)
async def test_the_event_loop_is_not_called_for_each_record(
    monkeypatch: pytest.MonkeyPatch, log: bytes
) -> None:
    """It is called neither to get a record nor to mark it: a call for each mark took six times as long as reading the record."""
    calls: list[object] = []
    loop = asyncio.get_running_loop()
    soon = loop.call_soon_threadsafe

    def call_soon_threadsafe(callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
        calls.append(callback)
        return soon(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon_threadsafe)

    def work(session: Any, claim: ThreadClaim) -> None:
        for record in claim:
            claim.mark(record)

    run = ThreadedRun(work)
    run.feed_log(log)
    await run.start()
    # not read in a way that would apply the marks of the thread
    await until(lambda: run.claims[0]._inner.offsets.next_offset == 2000)
    await run.end()
    assert len(calls) < 100


async def test_whatever_reads_marks_on_the_event_loop_sees_those_made_before() -> None:
    seen: list[object] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        offsets = run.claims[0]._inner.offsets
        for record in claim:
            claim.mark(record, f"at {record.offset}")
            if record.offset == 0:
                seen.append(anyio.from_thread.run_sync(lambda: run.claims[0].next_mark))
            elif record.offset == 1:
                seen.append(anyio.from_thread.run_sync(lambda: offsets.is_due(retry_rejected=True)))
                seen.append(anyio.from_thread.run_sync(lambda: offsets.value[:2]))
            elif record.offset == 2:
                anyio.from_thread.run_sync(offsets.reset_offset, 1)
                seen.append(anyio.from_thread.run_sync(lambda: offsets.value[0]))
            elif record.offset == 3:
                before = len(claim._marks._marks)
                repr(claim)
                seen.append((before, len(claim._marks._marks)))

    run = ThreadedRun(work)
    run.feed(0, 4)
    await run.start()
    await until(lambda: len(seen) == 5)
    await run.end()
    assert seen[:4] == [1, True, (2, "at 1"), 1]
    assert seen[4] in [(1, 1), (1, 0), (0, 0)], "a repr in the thread applies nothing there"
    assert run.claims[0].next_mark == 4


async def test_a_mark_of_an_unread_record_is_ignored_after_an_unreadable_batch() -> None:
    """After an unreadable batch each mark is judged by itself, not only the last one of many."""
    run = ThreadedRun(lambda *_: None)
    offsets = run.claims[0]._inner.offsets
    claim = ThreadClaim(run.claims[0])
    offsets.hold_back(0, lambda: 5)
    claim.mark(Record("orders", 0, 3))
    claim.mark(Record("orders", 0, 30))
    assert run.claims[0].next_mark == 4
    await run.start()
    await run.end()


async def test_marks_of_lost_records_do_not_count_for_those_read_instead() -> None:
    """The log was truncated while the thread had a batch: its marks are judged before the next batch is delivered."""
    reached, go_on = threading.Event(), threading.Event()
    seen: list[bytes | None] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        for record in claim:
            seen.append(record.value)
            if record.offset == 0:
                reached.set()
                assert go_on.wait(LIMIT)
            if record.value == b"v":
                claim.mark(record)
            if len(seen) == 1:
                anyio.from_thread.run_sync(
                    lambda: run.claims[0].next_mark
                )  # the event loop looks again in 10 ms

    run = ThreadedRun(work)
    partition, offsets = consumer_of(run.claims[0])._inner, run.claims[0]._inner.offsets
    run.feed(0, 5)
    await run.start()
    await until(reached.is_set)
    partition.restart(0)
    offsets.restart(0, NO_UUID, lambda: partition.position)
    partition.fetched(FetchedRecords(batch(0, count=5, value=b"new"), 1 << 40, 0, zero_copy=True))
    go_on.set()
    await until(lambda: len(seen) == 10)
    assert run.claims[0].next_mark == 0
    await run.end()


async def test_the_function_sees_its_claim_and_session() -> None:
    shown: list[object] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        shown.extend([session.member_id, claim.topic, claim.partition, claim.tp, claim.ended, repr(claim)])
        for _ in claim:
            pass
        shown.append(claim.ended)

    run = ThreadedRun(work)
    await run.start()
    await until(lambda: len(shown) == 6)
    await run.end()
    assert shown[:5] == ["member-1", "orders", 0, TopicPartition("orders", 0), False]
    assert shown[5] == "<ThreadClaim of <Claim orders-0: live, lag 0, next commit 0>>"
    assert shown[6] is True


async def test_a_second_loop_continues_at_the_next_record() -> None:
    """Found by review: the rest of the batch was skipped, and a later mark committed it unread."""
    seen: list[int] = []
    batches: list[list[int]] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        for _ in range(3):
            for record in claim:
                seen.append(record.offset)
                if len(seen) % 2 == 0:
                    break
        for found in claim.batches():
            batches.append([record.offset for record in found])
            if found.last_offset >= 9:
                break
        seen.extend(record.offset for record in claim)

    run = ThreadedRun(work)
    run.feed(0, 10)
    await run.start()
    await until(lambda: bool(batches))
    run.feed(10, 2)
    await until(lambda: len(seen) == 8)
    await run.end()
    assert batches == [[6, 7, 8, 9]]
    assert seen == [0, 1, 2, 3, 4, 5, 10, 11]


async def test_the_end_of_the_claim_ends_the_function_before_its_next_record() -> None:
    reached, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        for record in claim:
            seen.append(record.offset)
            reached.set()
            assert go_on.wait(LIMIT)
            claim.mark(record)
        assert list(claim) == []
        assert list(claim.batches()) == []

    run = ThreadedRun(work)
    run.feed(0, 100)
    await run.start()
    await until(reached.is_set)
    end_session(run.session, GroupClosed("closed"))
    go_on.set()
    await run.end()
    assert seen == [0]
    assert run.claims[0].next_mark == 1


async def test_a_function_that_runs_is_waited_for_if_its_handler_is_cancelled() -> None:
    """Otherwise another thread, or another member, could get the record on which the function still works."""
    reached, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        for record in claim:
            reached.set()
            assert go_on.wait(LIMIT)
            assert isinstance(claim.cause, GroupClosed)
            seen.append(record.offset)

    run = ThreadedRun(work)
    run.feed(0, 2)
    await run.start()
    await until(reached.is_set)
    end_session(run.session, GroupClosed("closed"))
    run.tasks[0].cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not run.tasks[0].done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run.tasks[0], LIMIT)
    assert seen == [0]


async def test_the_functions_exception_is_raised_itself() -> None:
    def work(session: Any, claim: ThreadClaim) -> None:
        raise KeyError("the handler's own")

    run = ThreadedRun(work)
    await run.start()
    with pytest.raises(KeyError, match="the handler's own"):
        await asyncio.wait_for(run.tasks[0], LIMIT)


async def test_every_claim_has_its_own_thread() -> None:
    """More claims than the threads of a pool; none is blocked while others wait for records."""
    count = 60
    seen: list[int] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        seen.extend(record.offset for record in claim)

    run = ThreadedRun(work, partitions=count)
    await run.start()
    for number in reversed(range(count)):
        run.feed(number, 1, claim=number)
    await until(lambda: len(seen) == count)
    await run.end()
    assert sorted(seen) == list(range(count))


async def test_one_handler_for_several_groups() -> None:
    """Found by review: the limit of threads was that of the last group, and claims of others waited forever."""
    lock = threading.Lock()
    seen: list[tuple[str, int]] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        for _ in claim:
            with lock:
                seen.append((session.group_id, claim.partition))

    large, small = ThreadedRun(work, partitions=4), ThreadedRun(work, partitions=1)
    small.handler = large.handler
    await large.handler.setup(large.session)
    await small.handler.setup(small.session)
    for run in (large, small):
        run.tasks = [
            asyncio.ensure_future(run.handler.consume_claim(run.session, claim)) for claim in run.claims
        ]
        for number in range(len(run.claims)):
            run.feed(0, 1, claim=number)
    await until(lambda: len(seen) == 5)
    await large.end()
    await small.end()


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_mark_after_the_end_of_the_claim_is_dropped(is_over: bool) -> None:
    """The mark is dropped after the end of the session; before that it is in the last commit."""
    held: list[ThreadClaim] = []
    records: list[Any] = []
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))

    def work(session: Any, claim: ThreadClaim) -> None:
        held.append(claim)
        records.extend(claim)

    run = ThreadedRun(work)
    run.feed(0, 1)
    await run.start()
    await until(lambda: bool(records))
    await run.end()
    if is_over:
        run.session._inner.close()
    held[0].mark(records[0])
    await run.session._inner.offsets.commit()
    commits = [committed_by(request) for _, request in run.cluster.coordinators.requests]
    assert commits == ([] if is_over else [{run.claims[0].tp: (1, "")}])
    await until(lambda: not held[0]._marks._is_watched)
    assert not complaints


async def test_an_invalid_mark_raises_in_the_thread() -> None:
    """It used to end up in the loop's exception handler, unnoticed by the thread."""
    raised: list[BaseException] = []
    other = Record("orders", 7, 3)
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))

    def work(session: Any, claim: ThreadClaim) -> None:
        for record in claim:
            for done, metadata in ((other, ""), (record, "x" * 40_000), (record, 5), (17, "")):
                try:
                    claim.mark(done, metadata)  # type: ignore[arg-type]
                except ConfigError as error:
                    raised.append(error)
            claim.mark(record, "fine")

    run = ThreadedRun(work)
    run.feed(0, 1)
    await run.start()
    await until(lambda: run.claims[0].next_mark == 1)
    await run.end()
    assert [str(error).split("=")[0] for error in raised] == ["done", "metadata", "metadata", "done"]
    assert "orders-0" in str(raised[0])
    assert complaints == []


async def test_a_corrupt_batch_raises_in_the_thread_and_is_not_marked() -> None:
    seen: list[int] = []
    raised: list[BaseException] = []

    def work(session: Any, claim: ThreadClaim) -> None:
        for _ in range(2):
            try:
                for record in claim:
                    seen.append(record.offset)
                    claim.mark(record)
            except CorruptRecordsError as error:
                raised.append(error)

    run = ThreadedRun(work)
    good, bad = batch(0, count=3), with_bad_content(3, 4)
    consumer_of(run.claims[0])._inner.fetched(
        FetchedRecords(good + bad + batch(7, count=2), 1 << 40, 0, zero_copy=True)
    )
    await run.start()
    await until(lambda: len(raised) == 1)
    await asyncio.sleep(0)  # what the thread asked of the loop before it raised
    consumer_of(run.claims[0])._inner.fetched(
        FetchedRecords(good + bad + batch(7, count=2), 1 << 40, 0, zero_copy=True)
    )
    await until(lambda: len(raised) == 2)
    await run.end()
    assert seen == [0, 1, 2]
    assert run.claims[0].next_mark == 3
