"""A log is truncated or a topic recreated while a group reads it: which records are handled, and what is committed.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from asyncgroup import Session
from asyncgroup.errors import LogTruncatedError
from tests.scenario.support import WorkHandler, committed, member, running
from tests.stories.virtual import VirtualEnvironment


async def fill(env: VirtualEnvironment) -> None:
    """Write ten batches of one record: a log is truncated by whole batches."""
    for _ in range(10):
        await env.produce(1, [0])


async def until_committed(env: VirtualEnvironment, offset: int) -> None:
    async with asyncio.timeout(60):
        while committed(env).get(0) != offset:
            await asyncio.sleep(0.1)


async def test_records_that_replace_truncated_ones_are_handled_and_committed(env: VirtualEnvironment) -> None:
    """Marks only move forward, so without special care offsets before the old commit would never be committed again."""
    await fill(env)
    handler = WorkHandler(env)
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", handler)):
        await handler.until("done 0@9")
        await until_committed(env, 10)
        env.cluster.truncate("orders", 0, 6)
        await asyncio.sleep(3)
        assert committed(env)[0] == 10, "a step back alone commits nothing"
        await env.produce(2, [0])
        await handler.until("done 0@7", 2)
        await until_committed(env, 8)
    assert handler.calls.count("record 0@5") == 1


async def test_a_mark_of_a_truncated_record_is_not_committed(env: VirtualEnvironment) -> None:
    """The handler finishes the record after the log has another record at its offset."""
    await fill(env)
    go_on = asyncio.Event()

    async def work(_session, _claim, record) -> None:
        if record.partition == 0 and record.offset == 8 and not go_on.is_set():
            await go_on.wait()

    handler = WorkHandler(env, work)
    config = {"auto_offset_reset": "earliest", "max_processing_time": 60.0}
    async with member(env, **config) as group, running(group.run("orders", handler)):
        await handler.until("record 0@8")
        await until_committed(env, 8)
        env.cluster.truncate("orders", 0, 6)
        await asyncio.sleep(5)
        go_on.set()
        await handler.until("done 0@8")
        await asyncio.sleep(5)
        assert committed(env)[0] == 8, (
            "the work done before the truncation was known; 9 would be of a record that no longer exists"
        )
        await env.produce(1, [0])
        await handler.until("done 0@6", 2)
        await until_committed(env, 7)


async def test_marks_of_truncated_records_are_dropped_after_a_seek_back(env: VirtualEnvironment) -> None:
    """Found by a random test: the reader had sought to before the divergence of the logs; its marks had not moved."""
    await fill(env)
    go_on = asyncio.Event()

    async def work(session, claim, record) -> None:
        if record.partition == 0 and record.offset == 9:
            claim.seek(3)
        elif handler.calls.count("record 0@4") == 2 and record.offset == 4:
            await go_on.wait()

    handler = WorkHandler(env, work)
    config = {"auto_offset_reset": "earliest", "max_processing_time": 60.0}
    async with member(env, **config) as group, running(group.run("orders", handler)):
        await handler.until("record 0@4", 2)
        await until_committed(env, 10)
        await asyncio.sleep(1)
        env.cluster.truncate("orders", 0, 6)
        await asyncio.sleep(5)
        await env.produce(2, [0])
        go_on.set()
        await handler.until("done 0@7", 2)
        assert handler.calls.count("record 0@9") == 1
        await until_committed(env, 8)


async def test_a_committed_offset_after_truncated_records_is_detected_at_the_start(
    handler: WorkHandler, env: VirtualEnvironment
) -> None:
    """The log was truncated and refilled while the group had no members: its end alone would not show it (sarama #2863)."""
    await fill(env)
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", handler)):
        await handler.until("done 0@9")
        await until_committed(env, 10)
    env.cluster.truncate("orders", 0, 6)
    await env.produce(8, [0])
    later = WorkHandler(env)
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", later)):
        await later.until("done 0@13")
        assert next(call for call in later.calls if call.startswith("record")) == "record 0@6"
        await until_committed(env, 14)
    last = WorkHandler(env)
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", last)):
        await last.until("claim 0@14")


async def test_without_a_policy_the_handler_gets_an_error(env: VirtualEnvironment) -> None:
    await fill(env)
    handler = WorkHandler(env)
    async with member(env, auto_offset_reset="earliest", out_of_range_reset="error") as group:
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("done 0@9")
            env.cluster.truncate("orders", 0, 6)
            with pytest.raises(LogTruncatedError, match="orders-0: the log was truncated at offset 6"):
                await asyncio.wait_for(consuming, 60)


@pytest.mark.parametrize("records", [3, 30])
async def test_all_records_of_a_recreated_topic_are_handled(env: VirtualEnvironment, records: int) -> None:
    await fill(env)
    handler = WorkHandler(env)
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", handler)):
        await handler.until("done 0@9")
        await until_committed(env, 10)
        env.cluster.delete_topic("orders")
        await asyncio.sleep(1)
        env.cluster.create_topic("orders", 4)
        await env.produce(records, [0])
        await handler.until(f"done 0@{min(records - 1, 2)}", 2)
        await handler.until(f"done 0@{records - 1}", 1 + (records <= 10))
        await until_committed(env, records)


async def test_a_topic_recreated_during_setup(handler: WorkHandler, env: VirtualEnvironment) -> None:
    """The start offsets are of the old topic: all records of the new one are handled, and committed under its id.

    Found by a random test: the first records of the new topic were omitted, and no mark was ever committed.
    """
    await fill(env)
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", handler)):
        await handler.until("done 0@9")
        await until_committed(env, 10)

    class Slow(WorkHandler):
        async def setup(self, session: Session) -> None:
            await super().setup(session)
            if len(self.sessions) == 1:
                env.cluster.delete_topic("orders")
                env.cluster.create_topic("orders", 4)
                await env.produce(20, [0])
                await group.cluster.refresh()

    later = Slow(env)
    async with (
        member(env, auto_offset_reset="earliest") as group,
        running(group.run("orders", later)),
    ):
        await later.until("done 0@19")
        assert [call for call in later.calls if call.startswith("done 0@")] == [
            f"done 0@{offset}" for offset in range(20)
        ]
        await until_committed(env, 20)


@pytest.mark.parametrize("gap", [0.0, 0.5, 3.0])
async def test_no_record_of_a_recreated_topic_is_handled_twice(env: VirtualEnvironment, gap: float) -> None:
    """The fetchers restart at its first record and the group joins again, both because of the recreation."""
    env.network.latency = 0.002
    counts: Counter[bytes | None] = Counter()

    async def work(_session, _claim, record) -> None:
        counts[record.value] += 1

    config = {"auto_offset_reset": "earliest", "auto_commit_interval": 0.5}
    async with contextlib.AsyncExitStack() as stack:
        for name in ("ann", "ben"):
            group = await stack.enter_async_context(member(env, name, **config))
            await stack.enter_async_context(running(group.run("orders", WorkHandler(env, work))))
        await asyncio.sleep(10)
        await env.produce(20, range(4))
        await asyncio.sleep(3)
        env.cluster.delete_topic("orders")
        await asyncio.sleep(gap)
        env.cluster.create_topic("orders", 4)
        for _ in range(20):
            await env.produce(10, range(4))
            await asyncio.sleep(0.3)
        await asyncio.sleep(20)
    assert {counts[record.value] for record in env.cluster.records("orders")} == {1}
    assert len(counts) == 80 + 800
