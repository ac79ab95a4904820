"""When a work queue commits acknowledgements, and what a failing commit does: nothing is lost, nothing acked by accident.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import CommitFailedError, ErrorCode
from asyncgroup.workqueue import AckOutcome, DeadLetter, Mode
from asyncgroup.workqueue.group_engine import engine
from tests.scenario.support import now
from tests.stories import queue_members
from tests.stories.queue_members import Gates, acked, metadata_of, opened, send, stored, window_of, working
from tests.stories.virtual import VirtualEnvironment


def commits(env: VirtualEnvironment, name: str = "ann") -> list[float]:
    """Return the times of the member's commits."""
    return [exchange.time for exchange in env.cluster.history.of("OffsetCommit", client_id=name)]


async def test_grouped_by_time(env: VirtualEnvironment):
    """100 ms after the first acknowledgement all are committed in one request; without any there is no commit."""
    for partition in range(4):
        await send(env, b"0", b"1", b"2", partition=partition)
    async with opened(env) as queue:
        taken = [await queue.receive() for _ in range(12)]
        await asyncio.sleep(60.5)  # not at the time of an automatic commit of the group
        assert commits(env) == []
        began = now()
        for delivery in taken[:11]:
            await delivery.ack()
            await asyncio.sleep(0.005)
        await asyncio.sleep(1.0)
        (time,) = commits(env)
        assert time - began == pytest.approx(0.1, abs=1e-6)
        await asyncio.sleep(60.0)
        assert len(commits(env)) == 1
        await taken[11].ack()
        await asyncio.sleep(1.0)
        assert len(commits(env)) == 2
    assert len(commits(env)) == 2  # the close has nothing to add
    assert [await acked(env, partition) for partition in range(4)] == [[0, 1, 2]] * 4


async def test_a_bug_while_committing_ends_the_queue(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
):
    """It would go on without any commit, and deliver everything again after a restart."""

    async def broken(_session: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine, "commit_windows", broken)
    await send(env, b"0")
    async with opened(env) as queue:
        await (await queue.receive()).ack()
        with pytest.raises(RuntimeError, match="broken"):
            await queue.receive()


async def test_grouped_by_number(env: VirtualEnvironment):
    await send(env, *[b"v"] * 2500)
    async with opened(env, ack_group_time=60.0, ack_group_size=1000) as queue:
        began = now()
        for _ in range(2500):
            delivery = await queue.receive()
            await delivery.ack()
            await asyncio.sleep(0)  # one round of the event loop
        await asyncio.sleep(1.0)
        assert len(commits(env)) == 2
        assert (await window_of(env)).base >= 2000
        assert now() - began < 10.0
        await asyncio.sleep(60.0)
        assert len(commits(env)) == 3
        assert (await window_of(env)).base == 2500


@pytest.mark.parametrize(("hot", "expected"), [(False, 1), (True, 2)], ids=["even", "one has half of them"])
async def test_commits_of_many_partitions_wait_for_more_acknowledgements(
    env: VirtualEnvironment, hot: bool, expected: int
):
    """The cost of a commit grows with its partitions: one of 256 waits for four times the number.

    A partition that has `ack_group_size` acknowledgements does not wait: a crash would repeat all of them.
    """
    env.cluster.create_topic("wide", 257, 1)
    for partition in range(256):
        env.cluster.produce("wide", *[b"v"] * (1 if hot else 2), partition=partition)
    if hot:
        env.cluster.produce("wide", *[b"v"] * 256, partition=256)
    async with opened(env, topics="wide", ack_group_time=60.0, ack_group_size=128) as queue:
        taken = sorted([await queue.receive() for _ in range(512)], key=lambda each: each.record.offset)
        if hot:  # every second one
            others = [each for each in taken if each.record.partition < 256]
            of_hot = [each for each in taken if each.record.partition == 256]
            taken = [each for pair in zip(of_hot, others, strict=True) for each in pair]
        for delivery in taken:
            await delivery.ack()
            await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)
        assert len(commits(env)) == expected


async def test_committed_at_once(env: VirtualEnvironment):
    """With a time of 0: those acknowledged during a commit share the next one."""
    await send(env, *[b"v"] * 10)
    async with opened(env, ack_group_time=0.0) as queue:
        taken = [await queue.receive() for _ in range(10)]
        held = env.cluster.faults.on("OffsetCommit", client_id="ann").hold()
        await taken[0].ack()
        await held.wait_hit()
        for delivery in taken[1:]:
            await delivery.ack()
            await asyncio.sleep(0.01)
        assert len(commits(env)) == 1
        held.release()
        await asyncio.sleep(1.0)
        assert len(commits(env)) == 2
        assert await acked(env) == list(range(10))


async def test_durable_acknowledgements(env: VirtualEnvironment):
    """Each returns after the commit that contains it; several share one request."""
    await send(env, *[b"v"] * 10)
    async with opened(env, ack_group_time=60.0) as queue:
        taken = [await queue.receive() for _ in range(10)]
        assert await taken[5].ack(durable=True) is AckOutcome.COMMITTED
        window = await window_of(env)
        assert (window.base, window.runs) == (0, [(5, 6)])
        rest = [each for each in taken if each is not taken[5]]
        outcomes = await asyncio.gather(*(each.ack(durable=True) for each in rest))
        assert outcomes == [AckOutcome.COMMITTED] * 9
        assert await acked(env) == list(range(10))
        assert len(commits(env)) <= 3


async def test_flushed_at_the_close(env: VirtualEnvironment):
    await send(env, *[b"v"] * 3)
    async with opened(env, ack_group_time=600.0) as queue:
        taken = [await queue.receive() for _ in range(3)]
        await taken[0].ack()
        await taken[2].ack()
        assert await stored(env) is None
    window = await window_of(env)
    assert (window.base, window.runs) == (1, [(2, 3)])


async def test_flushed_at_a_revocation(gates: Gates, env: VirtualEnvironment):
    for partition in range(4):
        await send(env, b"0", b"1", b"2", partition=partition)
    gates.open(0, 2)
    options: dict[str, Any] = {
        "ack_group_time": 600.0,
        "config": {"rebalance_timeout": 10.0, "close_timeout": 2.0},
    }
    async with working(env, "ann", gates, **options) as ann:
        await ann.until_count("end", 8)
        async with working(env, "bob", gates, **options) as bob:
            await bob.until_count("begin", 2)
            assert {text.split("@")[1] for text in bob.of("begin")} == {"1#1"}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
async def test_a_failing_commit_loses_nothing(env: VirtualEnvironment, code: ErrorCode):
    """The next commits contain what it should have."""
    await send(env, *[b"v"] * 6)
    async with opened(env) as queue:
        taken = [await queue.receive() for _ in range(6)]
        fault = env.cluster.faults.on("OffsetCommit", client_id="ann", times=None).error(code)
        await taken[1].ack()
        await taken[3].ack()
        await fault.wait_hit()
        await asyncio.sleep(3.0)
        assert await stored(env) is None
        assert queue.health().state == "stable"
        fault.cancel()
        await taken[5].ack()
        await asyncio.sleep(15.0)
        window = await window_of(env)
        assert (window.base, window.runs) == (0, [(1, 2), (3, 4), (5, 6)])
        assert await taken[0].ack(durable=True) is AckOutcome.COMMITTED
        for offset in (2, 4):
            await taken[offset].ack()
    assert await acked(env) == list(range(6))


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE])
async def test_metadata_that_is_refused_as_too_large(env: VirtualEnvironment, code: ErrorCode):
    """The metadata becomes smaller until the broker accepts it, in the end without a window: only the base is committed."""
    await send(env, *[b"v"] * 6)
    async with opened(env) as queue:
        taken = [await queue.receive() for _ in range(6)]
        fault = env.cluster.faults.on(
            "OffsetCommit", client_id="ann", where=lambda request: request.topics[0].partitions[0].committed_metadata, times=None
        ).error(code)  # fmt: skip
        await taken[0].ack()
        await taken[3].ack()
        await fault.wait_hit()
        await asyncio.sleep(15.0)
        found = await stored(env)
        assert found is not None
        assert (found.committed.offset, found.raw) == (1, "")
        assert queue.health().state == "stable"
    fault.cancel()
    async with working(env, "bob") as bob:
        await bob.until_count("end", 5)
        assert sorted(bob.of("begin")) == [f"0@{offset}#1" for offset in range(1, 6)]


async def test_a_failing_durable_acknowledgement(env: VirtualEnvironment):
    """The call raises, but the record counts as acknowledged, and a later commit contains it."""
    await send(env, b"0", b"1")
    async with opened(env, config={"commit_retry_max": 0}) as queue:
        first, second = await queue.receive(), await queue.receive()
        fault = env.cluster.faults.on("OffsetCommit", client_id="ann", times=None)
        fault.error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(CommitFailedError, match="GROUP_AUTHORIZATION_FAILED"):
            await first.ack(durable=True)
        fault.cancel()
        assert await second.ack(durable=True) is AckOutcome.COMMITTED
    assert await acked(env) == [0, 1]


async def test_the_coordinator_moves(gates: Gates, env: VirtualEnvironment):
    await send(env, *[b"%d" % number for number in range(50)])
    gates.open(*range(1, 50))
    async with working(env, "ann", gates) as ann:
        await ann.until_count("end", 20)
        for node in (1, 2, 3):
            env.cluster.move_coordinator("g", node)
            await asyncio.sleep(1.0)
        await ann.until_count("end", 49)
        await asyncio.sleep(10.0)
        window = await window_of(env)
        assert (window.base, window.runs) == (0, [(1, 50)])
        gates.open()
        await ann.until_count("end", 50)
    assert await acked(env) == list(range(50))


async def test_a_commit_that_cannot_be_made_at_the_close(env: VirtualEnvironment):
    """The close ends in its time; the records are delivered again."""
    await send(env, b"0", b"1")
    async with opened(env, ack_group_time=600.0, config={"close_timeout": 5.0}) as queue:
        await (await queue.receive()).ack()
        env.cluster.faults.on("OffsetCommit", client_id="ann", times=None).disconnect("before")
        began = now()
        await queue.aclose()
        assert now() - began < 7.0
    async with working(env, "bob") as bob:
        await bob.until_count("end", 2)
        assert bob.of("begin") == ["0@0#1", "0@1#1"]


async def test_attempts_are_committed_with_the_next_acknowledgement_or_at_the_close(env: VirtualEnvironment):
    await send(env, b"0", b"1", b"2")
    async with opened(env, dead_letter=DeadLetter(5)) as queue:
        taken = [await queue.receive() for _ in range(3)]
        await taken[0].nack(delay=100.0)
        await taken[1].ack()
        await asyncio.sleep(1.0)
        assert (await window_of(env)).attempts == {0: 1}
        assert (await metadata_of(env)).is_open
        await taken[2].nack(delay=100.0)
    assert (await window_of(env)).attempts == {0: 1, 2: 1}
    assert not (await metadata_of(env)).is_open


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
async def test_compacted_offsets_count_as_done(env: VirtualEnvironment, mode: Mode):
    env.cluster.create_topic("compacted", 1, configs={"cleanup.policy": "compact"})
    await send(env, (b"a", b"0"), (b"b", b"1"), (b"a", b"2"), (b"c", b"3"), (b"b", b"4"), topic="compacted")
    await send(env, (b"d", b"5"), topic="compacted")
    env.cluster.compact("compacted")
    async with working(env, "ann", queue_members.no_work, mode=mode, topics="compacted") as ann:
        await ann.until("end 0@5#1")
        assert sorted(ann.of("end")) == ["0@2#1", "0@3#1", "0@4#1", "0@5#1"]
    assert await acked(env, topic="compacted") == [0, 1, 2, 3, 4, 5]
