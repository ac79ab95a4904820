"""Start offsets of claims: the committed offset, or the one of the reset policy.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import Claim, Session
from asyncgroup.errors import OffsetOutOfRangeError
from asyncgroup.offsets import Committer
from tests.scenario.support import (
    PartitionZeroReader,
    WorkHandler,
    committed,
    member,
    orders,
    read_offsets,
    running,
)
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.virtual import VirtualEnvironment


async def commit(env: VirtualEnvironment, offset: int) -> None:
    """Commit for the group from outside, as an administrator may do while it has no members."""
    offsets = Committer(env.admin.cluster, env.group_id)
    offsets.manage(orders(0), -1).mark_offset(offset)
    await offsets.commit()


async def test_committed(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(5, [0])
    await commit(env, 3)
    async with member(env, auto_offset_reset="error") as group:
        with pytest.raises(
            OffsetOutOfRangeError, match=r"'g' has no committed offset for orders-1, orders-2"
        ):
            await group.run("orders", handler)
    async with member(env, auto_offset_reset="latest") as group, running(group.run("orders", handler)):
        await handler.until("claim 0@3")
        await handler.until("done 0@4")
        assert "record 0@2" not in handler.calls


async def test_nothing_committed_earliest(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(5, [0])
    async with member(env, auto_offset_reset="earliest") as group, running(group.run("orders", handler)):
        await handler.until("claim 0@0")
        await handler.until("done 0@4")


async def test_nothing_committed_latest(handler: WorkHandler, env: VirtualEnvironment):
    """Only records written after the session's start are read."""
    await env.produce(5, [0])
    async with member(env, auto_offset_reset="latest") as group, running(group.run("orders", handler)):
        await handler.until("claim 0@5")
        await env.produce(2, [0])
        await handler.until("done 0@6")
        assert [call for call in handler.calls if call.startswith("record")] == ["record 0@5", "record 0@6"]


async def test_nothing_committed_error(handler: WorkHandler, env: VirtualEnvironment):
    """It is raised to the caller before any claim starts; setup is not called."""
    async with member(env, auto_offset_reset="error") as group:
        with pytest.raises(OffsetOutOfRangeError, match="no committed offset for orders-0, orders-1"):
            await group.run("orders", handler)
    assert not any(call.startswith(("setup", "claim")) for call in handler.calls)
    assert committed(env) == {}


@pytest.mark.parametrize(("policy", "first"), [("earliest", "record 0@0"), ("latest", "record 0@5")])
async def test_out_of_range(handler: WorkHandler, env: VirtualEnvironment, policy: str, first: str):
    """A committed offset outside of the log: the policy applies, and it is logged."""
    await env.produce(5, [0])
    await commit(env, 1000)
    async with member(env, auto_offset_reset=policy) as group, running(group.run("orders", handler)):
        await handler.until("claim 0@1000")
        await asyncio.sleep(1.0)
        await env.produce(1, [0])
        await handler.until("done 0@5")
        records = [call for call in handler.calls if call.startswith("record 0")]
        assert records[0] == first
        assert len(records) == len(set(records))


async def test_out_of_range_marks_may_move_back(handler: WorkHandler, env: VirtualEnvironment):
    """After the reset the group commits its actual progress, although it is before the old offset."""
    await env.produce(5, [0])
    await commit(env, 1000)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await group.aclose()
    assert committed(env) == {0: 5}


async def commit_out_of_range(env: VirtualEnvironment) -> None:
    """Commit an offset of every partition; that of partition 0, which has five records, is not in its log."""
    await env.produce(5, [0])
    for partition in range(1, 4):
        offsets = Committer(env.admin.cluster, env.group_id)
        offsets.manage(orders(partition), -1).mark_offset(0)
        await offsets.commit()
    await commit(env, 1000)


async def test_out_of_range_error(handler: WorkHandler, env: VirtualEnvironment):
    """The claim's iterator raises it; nothing is committed."""
    await commit_out_of_range(env)
    async with member(env, auto_offset_reset="error") as group:
        with pytest.raises(OffsetOutOfRangeError, match=r"orders-0: offset 1000 is not .* 0\.\.5"):
            await group.run("orders", handler)
    assert committed(env) == {0: 1000, 1: 0, 2: 0, 3: 0}


async def test_out_of_range_error_that_is_caught(env: VirtualEnvironment):
    """A handler may choose an offset itself, and continue to read."""

    class Decides(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            while not claim.ended:
                try:
                    await super().consume_claim(session, claim)
                except OffsetOutOfRangeError:
                    claim.seek(2)

    await commit_out_of_range(env)
    handler = Decides(env)
    async with member(env, auto_offset_reset="error") as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        assert [call for call in handler.calls if call.startswith("record 0")] == [
            "record 0@2",
            "record 0@3",
            "record 0@4",
        ]


@in_each_protocol
async def test_a_seek_out_of_range(env: VirtualEnvironment):
    """The policy applies, here the beginning. Valid marks stay, as with any seek."""
    seen: list[int] = []
    await env.produce(3, [0])
    await commit(env, 2)

    class Seeks(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            if claim.partition == 0:
                claim.seek(10_000)
            async for record in claim:
                seen.append(record.offset)
                claim.mark(record)
                self.note(f"done {record.partition}@{record.offset}")

    handler = Seeks(env)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@2")
        await group.aclose()
        assert seen == [0, 1, 2]
        assert committed(env) == {0: 3}


@in_each_protocol
async def test_a_handler_seeks_by_name_and_marks_stay(env: VirtualEnvironment):
    """In `setup`, before the first fetch, and during its loop."""
    await env.admin.produce(orders(0), [b"v"] * 5)
    seen: list[int] = []

    class Seeker(PartitionZeroReader):
        async def setup(self, session: Session) -> None:
            await super().setup(session)
            for claim in session.claims:
                claim.seek("latest")

    async def read(claim: Claim) -> None:
        await asyncio.sleep(1.0)  # the end was looked up
        await env.admin.produce(orders(0), [b"v"] * 2)
        seen.extend(await read_offsets(claim, 2))
        claim.seek("earliest")
        seen.extend(await read_offsets(claim, 3))
        claim.seek(claim.initial_offset)
        assert claim.next_mark == 0

    async with member(env) as group:
        reader = Seeker(env, read)
        async with running(group.run("orders", reader)):
            await asyncio.wait_for(reader.done.wait(), 60.0)
    assert seen == [5, 6, 0, 1, 2]
