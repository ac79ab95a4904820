"""`group.records()`: one loop over all claims, fairness between partitions, its ends, and the current record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import groupby

import pytest

from asyncgroup import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    ConsumerGroup,
    Record,
    TopicPartition,
    UsageError,
)
from asyncgroup.errors import ClosedError, ErrorCode, MarkDropped, OffsetOutOfRangeError, Rebalanced
from tests.group.parts import consumer_of, end_session
from tests.scenario.support import WorkHandler, committed, group_requests, member, now, orders, running
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.virtual import VirtualEnvironment

Place = tuple[str, int, int]


def place(record: Record) -> Place:
    return record.topic, record.partition, record.offset


async def take(records: AsyncIterator[Record], count: int) -> list[Place]:
    """Return the next records, unmarked, read in a loop that ends with `break`."""
    found = []
    async for record in records:
        found.append(place(record))
        if len(found) == count:
            break
    return found


async def fill(env: VirtualEnvironment, count: int, batch: int | None = None, topic: str = "orders") -> None:
    for partition in range(4):
        await env.admin.produce(TopicPartition(topic, partition), [b"v"] * count, batch=batch)


async def stable(env: VirtualEnvironment, group: ConsumerGroup, generation: int) -> None:
    await env.bell.until(
        lambda: (
            group.session is not None and group.session.generation_id >= generation and group.session.claims
        ),
        f"generation {generation}",
        env.limit,
    )


async def test_a_loop_reads_and_commits_all_partitions(env: VirtualEnvironment):
    await fill(env, 10)
    seen: list[Place] = []
    async with member(env) as group:
        async for record in group.records("orders"):
            seen.append(place(record))
            group.mark(record)
            if len(seen) == 40:
                break
        await group.commit()
        assert committed(env) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert len(set(seen)) == 40
    for partition in range(4):
        assert [offset for _, number, offset in seen if number == partition] == list(range(10))
    assert group_requests(env)[-1] == "LeaveGroup"


# --- fairness---------------------------------------------------------------------------------------------------------


async def test_topics_and_partitions_take_turns_by_batch(env: VirtualEnvironment):
    bills = TopicPartition("bills", 0)
    await env.admin.create_topic("bills", 1)
    for tp in (orders(0), orders(1), bills):
        await env.admin.produce(tp, [bytes(5_000)] * 12, batch=4)  # too large for a run
    async with member(env) as group, group.records(["orders", "bills"]) as records:
        first = await anext(records)
        await asyncio.sleep(5.0)  # all partitions are buffered now
        seen = [place(first), *await take(records, 35)]
    runs = [(tp, len(list(found))) for tp, found in groupby(seen, key=lambda at: at[:2])]
    batches = [(tp, 1) for tp, size in runs for _ in range(size // 4) if size >= 4]
    assert len(batches) <= 9
    # after the first batch each of the three partitions has one batch in every round
    rounds = [tp for tp, size in runs[2:8]]
    assert len(set(rounds[:3])) == len(set(rounds[3:])) == 3
    assert all(
        offsets == sorted(offsets) for offsets in ([o for *tp, o in seen if tuple(tp) == x] for x, _ in runs)
    )


async def test_a_slow_body_switches_partitions_within_a_batch(env: VirtualEnvironment):
    """A batch of thousands of records must not delay the other partitions for hours."""
    await fill(env, 100)
    async with member(env) as group:
        records = group.records("orders")
        await take(records, 1)
        await asyncio.sleep(5.0)
        seen = []
        async for record in records:
            seen.append(record.partition)
            await asyncio.sleep(0.5)
            if len(seen) == 8:
                break
    assert sorted(seen[:4]) == sorted(seen[4:]) == [0, 1, 2, 3]


@in_each_protocol
async def test_a_paused_partition_is_skipped_until_it_is_resumed(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env) as group:
        records = group.records("orders")
        await take(records, 1)
        group.pause([("orders", 1), ("orders", 2)])
        await asyncio.sleep(5.0)
        seen: list[Place] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                while True:
                    seen.append(place(await anext(records)))
        assert {number for _, number, _ in seen} <= {0, 3}
        group.resume_all()
        rest = await take(records, 11 - len(seen))
        assert {number for _, number, _ in rest} == {1, 2}


# --- breaks and cancellations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
async def test_a_break_and_a_second_loop_continue_at_the_next_record(env: VirtualEnvironment, again: bool):
    await env.admin.produce(orders(0), [b"v"] * 50, batch=20)
    async with member(env) as group:
        records = group.records("orders")
        seen: list[Place] = []
        for size in (1, 2, 30, 17):
            seen += await take(group.records("orders") if again else records, size)
        assert seen == [("orders", 0, offset) for offset in range(50)]
        assert committed(env) == {}, "nothing was marked"


async def test_a_cancelled_read_loses_nothing(env: VirtualEnvironment):
    async with member(env) as group:
        records = group.records("orders")
        for start in (0, 5):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(records), 7.0)
            reading = asyncio.create_task(anext(records))
            await env.admin.produce(orders(0), [b"v"] * 5)
            await asyncio.sleep(0)
            reading.cancel()
            found = await asyncio.gather(reading, return_exceptions=True)
            kept = [place(found[0])] if isinstance(found[0], Record) else []
            seen = kept + [place(await asyncio.wait_for(anext(records), 7.0)) for _ in range(5 - len(kept))]
            assert seen == [("orders", 0, offset) for offset in range(start, start + 5)]


async def test_one_task_reads_at_a_time(env: VirtualEnvironment):
    async with member(env) as group:
        records = group.records("orders")
        first = asyncio.create_task(anext(records))
        await asyncio.sleep(1.0)
        with pytest.raises(UsageError, match="one task"):
            await anext(records)
        await env.admin.produce(orders(0), [b"v"])
        assert place(await first) == ("orders", 0, 0)


# --- rebalances -------------------------------------------------------------------------------------------------------


async def test_a_rebalance_waits_for_the_current_record_and_commits_its_mark(env: VirtualEnvironment):
    await fill(env, 3)
    seen: list[Place] = []
    async with member(env) as group:
        records = group.records("orders")
        async for record in records:
            seen.append(place(record))
            if len(seen) == 6:
                break
            group.mark(record)
        session = group.session
        assert session is not None
        async with running(_join(env)) as joining:
            await session.wait_ended()
            assert isinstance(session.cause, Rebalanced)
            await asyncio.sleep(20.0)
            assert group.session is session, "the rebalance waits for the loop's body"
            group.mark(record)
            began = now()
            async for record in records:  # the next read completes the current record
                assert now() - began < 5.0
                assert sum(committed(env).values()) == 6
                seen.append(place(record))
                group.mark(record)
                break
            await joining
        bob = env.members[0]
        await env.bell.until(lambda: len(bob.log.handled) >= 3, "bob works", env.limit)
        assert not {*bob.log.handled} & {*seen}, "nothing is delivered twice"
        assert len(seen) == len(set(seen)) == 7


async def _join(env: VirtualEnvironment) -> None:
    await env.member("bob")


async def test_a_current_record_beyond_the_limit_loses_its_mark_and_is_reported(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    await fill(env, 3)
    async with member(env, rebalance_timeout=10.0) as group:
        errors = group.errors()
        records = group.records("orders")
        record = await anext(records)
        session = group.session
        assert session is not None
        began = now()
        end_session(session, Rebalanced("by the test"))
        await env.bell.until(
            lambda: group.session is not None and group.session is not session, "next", env.limit
        )
        assert now() - began == pytest.approx(8.0, abs=0.5), "the limit less its reserve"
        await stable(env, group, 2)
        group.mark(record)
        error = await anext(errors)
        while not isinstance(error, MarkDropped):
            error = await anext(errors)
        assert (error.topic, error.partition, error.offset) == place(record)
        assert "assigned again" in str(error)
        assert caplog.text.count("is dropped") == 1
        with pytest.raises(CommitFailedError) as raised:
            await group.commit()
        assert set(raised.value.errors) == {TopicPartition(record.topic, record.partition)}
        await group.commit()  # reported once
        assert committed(env) == {}
        again = await take(records, 12)
        assert place(record) in again, "it is delivered again"
        assert len(set(again)) == 12


async def test_marks_after_a_loss_are_dropped_and_reported(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env) as group:
        errors = group.errors()
        records = group.records("orders")
        before = [await anext(records) for _ in range(2)]
        group.mark(before[0])
        env.cluster.faults.on("Heartbeat", client_id="ann").error(ErrorCode.UNKNOWN_MEMBER_ID)
        session = group.session
        assert session is not None
        await session.wait_lost()
        began = now()
        group.mark(before[1])
        assert isinstance(await _next(errors, MarkDropped), MarkDropped)
        await env.bell.until(lambda: group.session is not session, "the session's end", env.limit)
        assert now() - began < 1.0, (
            "a lost session does not wait for the current record, as it could not commit it"
        )
        await stable(env, group, 2)
        group.mark(before[1])
        with pytest.raises(CommitFailedError, match="assigned again"):
            await group.commit()
        assert len(set(await take(records, 11))) == 11, "all uncommitted records are delivered again"


async def test_commits_while_a_session_ends(env: VirtualEnvironment):
    """A commit while the session ends, when nothing can be committed any more, is no usage error."""
    await fill(env, 3)
    commits: list[asyncio.Task[None]] = []

    class Hook:
        def on_session_end(self, _session: object, _cause: object) -> None:
            if not commits:
                commits.append(asyncio.create_task(commit_all_the_time()))

    async def commit_all_the_time() -> None:
        for _ in range(100):
            await group.commit()
            await asyncio.sleep(0)

    async with member(env, hooks=(Hook(),)) as group, group.records("orders") as records:
        await anext(records)
        first = group.session
        assert first is not None
        end_session(first, Rebalanced("by the test"))
        await take(records, 12)
        assert group.session is not first
        await commits[0]


async def test_dropped_marks_are_reported_after_a_cancelled_commit(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env, auto_commit=False) as group:
        records = group.records("orders")
        late = await anext(records)
        group.pause([(late.topic, late.partition)])
        assert group.session is not None
        end_session(group.session, Rebalanced("by the test"))
        record = await anext(records)
        group.mark(late)
        group.mark(record)
        held = env.cluster.faults.on("OffsetCommit").hold()
        committing = asyncio.create_task(group.commit())
        await held.wait_hit()
        committing.cancel()
        await asyncio.wait([committing])
        held.release()
        with pytest.raises(CommitFailedError, match="assigned again"):
            await group.commit()


async def _next(errors: AsyncIterator[Exception], kind: type[Exception]) -> Exception:
    async for error in errors:
        if isinstance(error, kind):
            return error
    raise AssertionError(kind)


async def test_a_loop_that_does_not_read_stays_a_member(env: VirtualEnvironment):
    await fill(env, 500)
    async with member(env, buffer_bytes=20_000, max_partition_fetch_bytes=5_000) as group:
        records = group.records("orders")
        first = await anext(records)
        session = group.session
        assert session is not None
        await asyncio.sleep(200.0)
        assert group.session is session
        assert group.health().is_healthy
        held = sum(consumer_of(claim).buffered_bytes for claim in session.claims)
        assert 0 < held < 60_000, "nothing is fetched beyond the buffer"
        seen = [place(first), *await take(records, 1999)]
        assert len(set(seen)) == 2000


async def test_a_rebalance_while_the_loop_does_not_read_has_a_limit(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env, rebalance_timeout=20.0) as group:
        records = group.records("orders")
        await take(records, 5)
        began = now()
        bob = await env.member("bob")
        await env.bell.until(lambda: bob.session is not None, "bob is in", env.limit)
        assert 10.0 < now() - began < 25.0
        await stable(env, group, 2)
        assert len(group.session.claims) == 2  # type: ignore[union-attr]
        began = now()
        await bob.leave()
        await stable(env, group, 3)
        assert now() - began < 5.0, "there is no current record any more"


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_the_body_closes_the_group(env: VirtualEnvironment):
    await fill(env, 3)
    seen: list[Place] = []
    async with member(env) as group:
        began = now()
        async for record in group.records("orders"):
            seen.append(place(record))
            group.mark(record)
            if len(seen) == 5:
                began = now()
                await group.aclose()
                assert now() - began < 1.0, "the body cannot go on while it waits for the close"
        assert len(seen) == 5
        assert sum(committed(env).values()) == 5
        with pytest.raises(ClosedError):
            group.records("orders")


async def test_a_close_by_another_task_waits_for_the_current_record(env: VirtualEnvironment):
    await fill(env, 3)
    seen: list[Place] = []
    async with member(env) as group:
        async for record in group.records("orders"):
            seen.append(place(record))
            if len(seen) == 5:
                closing = asyncio.create_task(group.aclose())
                await asyncio.sleep(10.0)
                assert not closing.done()
            group.mark(record)
        assert len(seen) == 5
        assert sum(committed(env).values()) == 5
        await closing
    assert group_requests(env)[-1] == "LeaveGroup"


async def test_an_exception_of_the_body_ends_the_session_in_order(env: VirtualEnvironment):
    await fill(env, 3)
    seen: list[Place] = []
    began = 0.0
    with pytest.raises(KeyError, match="the body's own"):
        async with member(env) as group:
            async for record in group.records("orders"):
                seen.append(place(record))
                if len(seen) == 5:
                    began = now()
                    raise KeyError("the body's own")
                group.mark(record)
    assert now() - began < 1.0
    assert sum(committed(env).values()) == 4, "finished records are committed, the current one is not"
    assert group_requests(env)[-1] == "LeaveGroup"


async def test_a_cancelled_task_ends_the_session_in_order(env: VirtualEnvironment):
    await fill(env, 3)

    async def consume() -> None:
        async with member(env) as group:
            async for record in group.records("orders"):
                group.mark(record)

    task = asyncio.create_task(consume())
    await env.bell.until(lambda: sum(committed(env).values()) == 12, "all committed", env.limit)
    began = now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() - began < 1.0
    assert group_requests(env)[-1] == "LeaveGroup"


async def test_closing_the_iterator_leaves_the_group_and_the_group_object_open(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env) as group:
        async with group.records("orders") as records:
            for _ in range(3):
                group.mark(await anext(records))
            with pytest.raises(UsageError, match="records"):
                await group.run("orders", WorkHandler(env))
            with pytest.raises(UsageError, match="records"):
                group.records("bills")
            assert "open" in repr(records)
        assert sum(committed(env).values()) == 3
        assert "LeaveGroup" in group_requests(env)
        assert "closed" in repr(records)
        assert [record async for record in records] == []
        await records.aclose()
        assert group.session is None
        handler = WorkHandler(env)
        async with running(group.run("orders", handler)):
            await handler.until("setup")
            await asyncio.sleep(5.0)
        assert sum(call.startswith("done") for call in handler.calls) == 9


async def test_closing_an_iterator_that_was_never_used(env: VirtualEnvironment):
    async with member(env) as group:
        records = group.records("orders")
        assert "not begun" in repr(records)
        await records.aclose()
        assert [record async for record in records] == []
        async with group.records("orders"):
            pass
        async with group.records("orders"):
            await asyncio.sleep(0)
    assert "LeaveGroup" not in group_requests(env)


async def test_permanent_errors_are_raised_by_the_loop(env: VirtualEnvironment):
    async with member(env) as group:
        records = group.records("nowhere")
        with pytest.raises(BrokerError, match="nowhere"):
            await anext(records)
        with pytest.raises(StopAsyncIteration):
            await anext(records)
        await env.admin.produce(orders(0), [b"v"])
        assert await take(group.records("orders"), 1) == [("orders", 0, 0)]


async def test_a_failure_that_was_not_raised_is_logged(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    async with member(env) as group:
        async with group.records("nowhere"):
            await asyncio.sleep(10.0)
        assert "records() failed" in caplog.text


async def test_an_error_of_one_partition_is_raised_and_the_others_are_read(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env, out_of_range_reset="error") as group:
        records = group.records("orders")
        await take(records, 1)
        session = group.session
        assert session is not None
        await asyncio.sleep(3.0)
        session.claims[2].seek(1000)
        seen: set[Place] = set()
        raised = 0
        async with asyncio.timeout(60.0):
            while raised < 2 or len(seen) < 8:
                try:
                    seen.add(place(await anext(records)))
                except OffsetOutOfRangeError:
                    raised += 1
        assert {number for _, number, _ in seen} >= {0, 1, 3}
        with pytest.raises(OffsetOutOfRangeError, match="orders-2"):
            await anext(records)
        session.claims[2].seek(2)
        assert await take(records, 1) == [("orders", 2, 2)]


async def test_topics_change_during_the_loop(env: VirtualEnvironment):
    await env.admin.create_topic("bills", 1)
    await env.admin.produce(TopicPartition("bills", 0), [b"v"] * 2)
    await env.admin.produce(orders(0), [b"v"] * 2)
    async with member(env) as group:
        records = group.records(re.compile("ord.*"))
        assert await take(records, 2) == [("orders", 0, 0), ("orders", 0, 1)]
        group.set_topics("bills")
        assert await take(records, 2) == [("bills", 0, 0), ("bills", 0, 1)]


# --- marks through the group ------------------------------------------------------------------------------------------


async def test_handlers_may_mark_through_the_group(env: VirtualEnvironment):
    await fill(env, 3)

    async def work(_session: object, _claim: object, record: Record) -> None:
        group.mark(record, "by the group")

    async with member(env) as group:
        handler = WorkHandler(env, work)
        async with running(group.run("orders", handler)):
            for partition in range(4):
                await handler.until(f"done {partition}@2")
            await group.commit()
            assert committed(env) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert {c.metadata for c in env.cluster.group("g").offsets.values()} == {"by the group"}


async def test_only_records_and_batches_can_be_marked(env: VirtualEnvironment):
    async with member(env) as group:
        with pytest.raises(ConfigError, match="a Record or a Batch"):
            group.mark(7)  # type: ignore[arg-type]
        errors = group.errors()
        stray = Record("elsewhere", 0, 5)
        with pytest.raises(ConfigError, match="metadata"):
            group.mark(stray, 5)  # type: ignore[arg-type]
        group.mark(stray)
        assert isinstance(await anext(errors), MarkDropped)
        with pytest.raises(CommitFailedError):
            await group.commit()
        await group.commit()


# --- the task with the current record-------------------------------------------------------------------------------------


async def test_a_record_read_by_a_helper_task_does_not_delay_the_close(env: VirtualEnvironment):
    """Before Python 3.12 `asyncio.wait_for` runs the read in a separate task."""
    await fill(env, 3)
    async with member(env) as group:
        records = group.records("orders")
        record = await asyncio.create_task(anext(records))  # type: ignore[arg-type]
        group.mark(record)
        began = now()
    assert now() - began < 1.0
    assert committed(env) == {record.partition: 1}


async def test_a_record_whose_task_has_ended_does_not_delay_the_close(env: VirtualEnvironment):
    await fill(env, 3)

    async def consume(group: ConsumerGroup) -> None:
        async for record in group.records("orders"):
            group.mark(record)
            return

    async with member(env) as group:
        await asyncio.create_task(consume(group))
        began = now()
    assert now() - began < 1.0
    assert sum(committed(env).values()) == 1


async def test_a_close_limits_the_wait_for_the_current_record(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env, close_timeout=10.0) as group:
        records = group.records("orders")
        record = await anext(records)
        began = now()
        await asyncio.create_task(group.aclose())
        assert now() - began == pytest.approx(8.0, abs=0.5)
        group.mark(record)
        assert committed(env) == {}
        with pytest.raises(StopAsyncIteration):
            await anext(records)


async def test_a_close_before_the_first_step_ends_the_loop(env: VirtualEnvironment):
    async with member(env) as group:
        async with group.records("orders") as records:
            await group.aclose()
            assert [record async for record in records] == []


async def test_health_names_what_a_rebalance_waits_for(env: VirtualEnvironment):
    await fill(env, 3)
    async with member(env) as group:
        records = group.records("orders")
        await anext(records)
        session = group.session
        assert session is not None
        end_session(session, Rebalanced("by the test"))
        await asyncio.sleep(5.0)
        assert "handler of orders-" in str(group.health())
        await take(records, 1)
        assert group.session is not session
