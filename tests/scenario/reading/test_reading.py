"""Reading a claim: repeated loops, seeks, pauses, moving leaders, failing fetches.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import BrokerError, Claim, ConfigError, ConsumerGroup, ErrorCode as E, Session
from tests.scenario.support import (
    Read,
    WorkHandler,
    committed,
    member,
    orders,
    read_offsets,
    read_with,
    running,
)
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment


async def test_break_and_a_second_loop(env: VirtualEnvironment):
    """The second loop continues at the next record: within a batch, at its end, over several batches."""
    await env.admin.produce(orders(0), [b"v"] * 20, batch=5)

    async def read(claim: Claim) -> None:
        assert await read_offsets(claim, 1) == [0]
        assert claim.position == 1
        assert await read_offsets(claim, 2) == [1, 2]
        assert await read_offsets(claim, 2) == [3, 4]
        assert await read_offsets(claim, 7) == list(range(5, 12))
        async for batch in claim.batches(max_records=3):
            assert [record.offset for record in batch] == [12, 13, 14]
            break
        assert await read_offsets(claim, 1) == [15]
        async for batch in claim.batches():
            assert (batch.first_offset, batch.last_offset) == (16, 19)
            break

    await read_with(env, read)


async def test_a_cancelled_read_loses_nothing(env: VirtualEnvironment):
    async def read(claim: Claim) -> None:
        for offset in range(6):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.7):
                    await anext(claim)
            await env.admin.produce(orders(0), [b"v"])
            async with asyncio.timeout(5.0):
                assert (await anext(claim)).offset == offset
        batches = claim.batches(max_records=3, max_wait=60.0)
        waiting = asyncio.create_task(anext(batches))
        await env.admin.produce(orders(0), [b"v"] * 2)
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await read_offsets(claim, 2) == [6, 7]

    await read_with(env, read)


@in_each_protocol
async def test_seek(env: VirtualEnvironment):
    """Forward and backward, within the buffer and beyond; marks don't change."""
    await env.admin.produce(orders(0), [b"v"] * 50, batch=10)

    async def read(claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            if record.offset == 4:
                break
        claim.seek(42)
        assert claim.position == 42
        assert await read_offsets(claim, 3) == [42, 43, 44]
        claim.seek(0)
        assert await read_offsets(claim, 2) == [0, 1]
        claim.seek(2)
        assert await read_offsets(claim, 1) == [2]
        claim.seek(50)
        await env.admin.produce(orders(0), [b"new"])
        assert (await anext(claim)).value == b"new"
        with pytest.raises(ConfigError, match="offset=-1"):
            claim.seek(-1)

    await read_with(env, read)
    assert committed(env) == {0: 5}


@in_each_protocol
async def test_seek_while_a_fetch_is_in_flight(env: VirtualEnvironment):
    """The response to the older fetch is not delivered."""
    await env.admin.produce(orders(0), [b"v"] * 50, batch=10)
    fault = env.cluster.faults.on("Fetch", topic="orders", client_id="ann").delay(5.0)

    async def read(claim: Claim) -> None:
        await fault.wait_hit()
        claim.seek(30)
        assert await read_offsets(claim, 2) == [30, 31]

    await read_with(env, read)


@in_each_protocol
async def test_pause_and_resume(handler: WorkHandler, env: VirtualEnvironment):
    """No record is delivered, not even a buffered one; other claims continue; resume continues at the next record."""
    await env.produce(10, [0, 1])

    async def pause_at_3(_session: Session, claim: Claim, record: object) -> None:
        if handler.calls[-1] == "record 0@3":
            group.pause([("orders", 0)])

    handler.work = pause_at_3
    group: ConsumerGroup
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@3")
        await handler.until("done 1@9")
        await env.produce(10, [0, 1])
        await handler.until("done 1@19")
        await asyncio.sleep(60.0)
        assert "record 0@4" not in handler.calls
        assert group.session.claims[0].paused
        assert len(handler.sessions) == 1, "a paused member sends heartbeats"
        group.resume([("orders", 0)])
        await handler.until("done 0@19")
        assert handler.calls.count("record 0@4") == 1


@in_each_protocol
async def test_a_claim_can_be_paused_and_resumed(env: VirtualEnvironment):
    """As by its group: `group.resume` undoes it, and the next claim of the partition is also paused."""
    await env.produce(4, [0])
    claims: list[Claim] = []

    async def consume(_session: Session, claim: Claim) -> None:
        if claim.partition == 0:
            claims.append(claim)
            if len(claims) == 1:
                await read(claim)
        await claim.wait_ended()

    async def read(claim: Claim) -> None:
        assert await read_offsets(claim, 1) == [0]
        claim.pause()
        assert claim.paused
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(claim), 10.0)
        group.pause(orders(2))
        assert claim.paused, "the pause of another partition does not undo it"
        claim.resume()
        assert await read_offsets(claim, 1) == [1]
        claim.pause()
        group.resume(("orders", 0))
        assert await read_offsets(claim, 1) == [2]
        claim.pause()

    def both_are_paused() -> bool:
        return group.health().paused == (orders(0), orders(2))

    group: ConsumerGroup
    async with member(env) as group:
        async with running(group.consume("orders", consume)):
            await env.bell.until(both_are_paused, "a pause by the claim and one by the group", env.limit)
        claims[0].resume()  # without effect: it has ended
        async with running(group.consume("orders", consume)):
            await env.bell.until(both_are_paused, "the same in the next session", env.limit)


@in_each_protocol
async def test_pauses_survive_a_rebalance(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        group.pause_all()
        bob = await env.member("bob")
        await env.bell.until(lambda: len(partitions_of(group)) == 2, "half of them", env.limit)
        await bob.leave()
        await env.bell.until(lambda: len(partitions_of(group)) == 4, "all again", env.limit)
        await env.produce(3, range(4))
        await asyncio.sleep(10.0)
        assert [claim.paused for claim in group.session.claims] == [True] * 4
        assert not any(call.startswith("record") for call in handler.calls)
        group.resume_all()
        await handler.until("done 3@2")
        await handler.until("done 0@2")


@in_each_protocol
async def test_a_paused_claim_ends_with_its_session(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(3, [0])
    async with member(env) as group:
        group.pause([orders(0)])
        async with running(group.run("orders", handler)) as consuming:
            await handler.until("claim 3@0")
            await group.aclose()
            await consuming
    assert "end 0" in handler.calls
    assert "cancelled 0" not in handler.calls


# -- leaders and errors -------------------------------------------------------------------------------------------------


async def test_a_leader_that_moves(handler: WorkHandler, env: VirtualEnvironment):
    """No record is missed or repeated, and the session continues."""
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        for node in (1, 2, 3, 1, 2, 3):
            env.cluster.move_leader("orders", 0, node)
            await env.produce(5, [0])
            await handler.until(f"done 0@{env.produced[orders(0)] - 1}")
        records = [call for call in handler.calls if call.startswith("record 0")]
        assert records == [f"record 0@{offset}" for offset in range(35)]
        assert len(handler.sessions) == 1


async def test_a_leader_that_dies(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await env.cluster.stop_node(env.cluster.leader("orders", 0))
        await env.produce(5, [0])
        await handler.until("done 0@9")
        assert handler.calls.count("record 0@4") == 1
        assert len(handler.sessions) == 1


async def read_past_error(claim: Claim) -> None:
    with pytest.raises(BrokerError, match=r"orders-0.*TOPIC_AUTHORIZATION_FAILED"):
        await anext(claim)
    assert (await anext(claim)).offset == 0


async def read_batches_past_error(claim: Claim) -> None:
    batches = claim.batches()
    with pytest.raises(BrokerError, match=r"orders-0.*TOPIC_AUTHORIZATION_FAILED"):
        await anext(batches)
    assert (await anext(batches)).first_offset == 0


@pytest.mark.parametrize("read", [read_past_error, read_batches_past_error])
async def test_a_fetch_error_that_is_caught(read: Read):
    """It is raised to the handler once; a handler that catches it gets the records when they are available again."""
    async with VirtualEnvironment.made(partitions=1) as env:
        env.cluster.faults.on("Fetch", topic="orders").error(E.TOPIC_AUTHORIZATION_FAILED)
        await env.produce(1, [0])
        async with asyncio.timeout(60.0):
            await read_with(env, read)


async def test_a_fetch_error_that_is_not_caught(env: VirtualEnvironment):
    """run() raises it like any exception of a handler; it names the partition."""
    env.cluster.faults.on("Fetch", topic="orders").error(E.TOPIC_AUTHORIZATION_FAILED)
    await env.produce(5, [0])
    async with member(env) as group:
        with pytest.raises(BrokerError, match=r"orders-.*TOPIC_AUTHORIZATION_FAILED"):
            await group.run("orders", WorkHandler(env))


@pytest.mark.parametrize(
    "code", [E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_SERVER_ERROR]
)
async def test_a_temporary_fetch_error(handler: WorkHandler, env: VirtualEnvironment, code: E):
    """It is reported by errors(), not to the handler."""
    env.cluster.faults.on("Fetch", topic="orders", times=3).error(code)
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        errors = group.errors()
        await handler.until("done 0@4")
        assert code.name in str(await anext(errors))
        assert handler.calls.count("record 0@0") == 1


@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_a_fetch_over_a_lost_connection(handler: WorkHandler, env: VirtualEnvironment, when):
    env.cluster.faults.on("Fetch", topic="orders", times=3).disconnect(when)
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        assert [call for call in handler.calls if call.startswith("record 0")] == [
            f"record 0@{offset}" for offset in range(5)
        ]
