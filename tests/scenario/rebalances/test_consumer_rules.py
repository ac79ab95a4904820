"""Rules for clients of KIP-848 that need a whole member: a stuck one (11), an unreachable coordinator (13), moves (14).

The other rules are in `tests/group/consumer/test_member_state.py`, rule 8 in `tests/offsets`; each has its number in its name
or docstring. They hold for cooperative members, too.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Record
from tests.scenario.support import Gate, WorkHandler, committed, member, now, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.full


@pytest_asyncio.fixture(params=["cooperative", "consumer"])
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(str(request.param), nodes=3) as environment:
        yield environment


async def test_rule_11_a_stuck_member_gives_up_its_claims_then_leaves_then_joins(
    env: VirtualEnvironment,
) -> None:
    """Nothing is committed after the leave, and the join waits for the handlers and `on_lost`."""
    gate = Gate(0, 2)
    handler = WorkHandler(env, gate)
    joins: list[int] = []
    is_consumer = env.protocol == PROTOCOLS["consumer"]
    leave, join = ("ConsumerGroupHeartbeat",) * 2 if is_consumer else ("LeaveGroup", "JoinGroup")

    def requests(api: str, epoch: int) -> list[Any]:
        found = env.cluster.history.of(api, client_id="ann")
        return [e for e in found if not is_consumer or e.request.member_epoch == epoch]

    await env.produce(5, [0])
    async with (
        member(env, max_poll_interval=20.0, auto_commit_interval=1.0) as group,
        running(group.run("orders", handler)),
    ):
        await gate.reached.wait()
        await asyncio.sleep(5.0)
        assert committed(env) == {0: 2}
        (session,) = handler.sessions
        joins = requests(join, 0)
        await session._inner.wait_lost()
        lost_at = now()
        assert not requests(leave, -1), "the claims end first"
        await env.bell.until(lambda: not env.cluster.group(env.group_id).members, "the leave", env.limit)
        left_at = now()
        assert left_at - lost_at < 1.0
        await asyncio.sleep(10.0)
        assert requests(join, 0) == joins, "its handler has not ended"
        gate.open.set()
        await handler.until("setup", times=2)
        await handler.until("claim 0@2")
        assert handler.calls.index("end 0") < handler.calls.index("lost [0, 1, 2, 3]")
        again = requests(join, 0)[len(joins)]
        late = env.cluster.history.of("OffsetCommit", client_id="ann")
        assert not [e for e in late if left_at <= e.time <= again.time]


async def test_rule_13_members_go_on_while_the_coordinator_is_unreachable(env: VirtualEnvironment) -> None:
    handler = WorkHandler(env)
    api = "ConsumerGroupHeartbeat" if env.protocol == PROTOCOLS["consumer"] else "Heartbeat"
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        await asyncio.sleep(5.0)
        held = [env.cluster.faults.on(name, times=None).hold() for name in (api, "FindCoordinator")]
        await held[0].wait_hit()
        began = now()
        while now() - began < 0.8 * env.session_timeout:
            await env.produce(1, range(4))
            last = max(env.produced.values()) - 1
            for number in range(4):
                await handler.until(f"done {number}@{last}")
            await asyncio.sleep(0.5)
        assert not handler.sessions[0].ended
        assert len(handler.sessions) == 1
        for fault in held:
            fault.release()
        env.cluster.faults.clear()
        await env.all_committed()


@pytest.mark.parametrize("how", ["records", "handler"])
async def test_rule_14_nothing_of_a_revoked_partition_is_handed_out(
    env: VirtualEnvironment, how: str
) -> None:
    """KAFKA-20332: records that were fetched before the revocation, and wait in buffers, go to the next owner."""
    seen: list[tuple[int, int]] = []
    stale: list[tuple[int, int]] = []
    count = 40
    await env.produce(count, range(4))
    other = WorkHandler(env)

    async def take(record: Record) -> None:
        """Handle a record for half a second."""
        claims = ann.session.claims if ann.session is not None else ()
        if record.partition not in {claim.partition for claim in claims if not claim.ended}:
            stale.append((record.partition, record.offset))
        seen.append((record.partition, record.offset))
        env.bell.ring()
        await asyncio.sleep(0.5)

    async def read_all() -> None:
        if how == "records":
            async for record in ann.records("orders"):
                await take(record)
                ann.mark(record)
        else:
            await ann.run("orders", WorkHandler(env, lambda _session, _claim, record: take(record)))

    async with member(env) as ann, running(read_all()):
        await env.bell.until(lambda: len(seen) == 8, "some records", env.limit)
        async with member(env, "bob") as bob, running(bob.run("orders", other)):
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "half of them", env.limit)
            moved = partitions_of(bob)
            mine = len([place for place in seen if place[0] in moved])
            for number in moved:
                await other.until(f"done {number}@{count - 1}")
            await env.bell.until(lambda: len(seen) == mine + 2 * count, "the rest", env.limit)
            await asyncio.sleep(5.0)
    assert not stale
    assert 0 < mine < 2 * count
    taken = [
        tuple(map(int, call.removeprefix("record ").split("@")))
        for call in other.calls
        if call.startswith("record")
    ]
    assert sorted([*seen, *taken]) == [(number, offset) for number in range(4) for offset in range(count)]
