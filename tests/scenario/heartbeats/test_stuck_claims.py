"""`max_poll_interval` in virtual time: a claim whose handler does not go on costs the member its place in the group.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup import Claim, Record, Session
from asyncgroup.errors import ClaimStuck, ConfigError, MemberLost
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running, working
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

LIMIT = 10.0


@pytest_asyncio.fixture(params=PROTOCOLS)
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(str(request.param)) as environment:
        yield environment


@pytest_asyncio.fixture
async def classic() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        yield environment


class StallHook:
    """A hook that keeps the kinds and texts of its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def on_member_stalled(self, group_id: str, kind: str, seconds: float, text: str) -> None:
        self.seen.append((kind, text))


async def test_the_member_leaves_and_joins_again(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    hook, ends = StallHook(), SessionEndHook()
    async with working(env, hooks=(hook, ends), max_poll_interval=LIMIT) as (group, _, handler, gate):
        stuck_at, member_id = now(), group.session.member_id  # type: ignore[union-attr]
        errors = group.errors()
        await group.session._inner.wait_lost()  # type: ignore[union-attr]
        assert LIMIT <= now() - stuck_at < 1.2 * LIMIT
        async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
            await env.bell.until(lambda: partitions_of(other) == [0, 1, 2, 3], "all partitions", 3.0)
            assert "end 0" not in handler.calls, "the others do not wait for the handler"
            gate.open.set()
            await env.bell.until(lambda: len(partitions_of(other)) == 2, "a share", env.limit)
            session = group.session
            assert session is not None
            assert env.protocol == PROTOCOLS["consumer"] or session.member_id != member_id
            error = await anext(errors)
            while not isinstance(error, ClaimStuck):
                error = await anext(errors)
            assert (error.topic, error.partition) == ("orders", 0)
    cause = ends.causes[-2]
    assert isinstance(cause, MemberLost)
    assert isinstance(cause.__cause__, ClaimStuck)
    assert [kind for kind, _ in hook.seen if kind == "claim"] == ["claim"]
    assert any("claim orders-0 is stuck" in text for text in caplog.messages)
    assert "lost" in "".join(handler.calls)


async def test_the_loss_is_a_problem_until_the_next_stable_session(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a problem even while the handler still runs: the group has assigned the partitions to others by then."""
    async with working(env, max_poll_interval=LIMIT) as (group, _, handler, gate):
        assert group.session is not None
        await group.session._inner.wait_lost()
        await asyncio.sleep(0.1)
        for _ in range(3):
            health = group.health()
            assert health.state == "draining"
            assert len(health.problems) == 1
            assert health.problems[0].startswith("the membership was lost: ")
            assert "claim orders-0 is stuck" in health.problems[0]
            await asyncio.sleep(5.0)
        gate.open.set()
        await handler.until("setup", times=2)
        await env.bell.until(lambda: group.health().is_healthy, "healthy", env.limit)
    assert sum(r.levelno >= logging.WARNING and "is stuck" in r.getMessage() for r in caplog.records) == 1


async def test_work_that_renews_its_claim_is_not_stuck(classic: VirtualEnvironment) -> None:
    async def work(_session: Session, claim: Claim, record: Record) -> None:
        if record.offset == 1:
            for _ in range(6):
                await asyncio.sleep(LIMIT / 2)
                claim.renew()
        if record.offset == 2:
            claim.renew(5 * LIMIT)
            await asyncio.sleep(5 * LIMIT - 1)
        with pytest.raises(ConfigError, match=r"seconds=-1"):
            claim.renew(-1)

    ends, handler = SessionEndHook(), WorkHandler(classic, work)
    await classic.produce(4, [0])
    async with (
        member(classic, hooks=(ends,), max_poll_interval=LIMIT) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("done 0@3")
        await asyncio.sleep(3 * LIMIT)  # waits for records
        assert not ends.causes


async def test_a_renewal_counts_until_the_next_progress(classic: VirtualEnvironment) -> None:
    async def work(_session: Session, claim: Claim, record: Record) -> None:
        if record.offset == 1:
            claim.renew(100 * LIMIT)
        if record.offset == 2:
            await asyncio.sleep(50 * LIMIT)

    ends, handler = SessionEndHook(), WorkHandler(classic, work)
    await classic.produce(4, [0])
    async with (
        member(classic, hooks=(ends,), max_poll_interval=LIMIT) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("record 0@2")
        began = now()
        await classic.bell.until(
            lambda: group.session is None or group.session.ended, "the loss", classic.limit
        )
        assert LIMIT <= now() - began <= LIMIT * 1.2 + 1


@pytest.mark.parametrize("how", ["paused", "off", "nothing read", "marks"])
async def test_what_is_not_stuck(classic: VirtualEnvironment, how: str) -> None:
    class Waits(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            if how == "nothing read":
                await asyncio.sleep(5 * LIMIT)
            async for record in claim:
                if record.offset == 0 and how == "paused":
                    group.pause([claim.tp])
                    await asyncio.sleep(5 * LIMIT)
                    group.resume([claim.tp])
                if record.offset == 0 and how == "off":
                    await asyncio.sleep(50 * LIMIT)
                if record.offset == 0 and how == "marks":
                    for offset in range(1, 4):
                        await asyncio.sleep(0.85 * LIMIT)
                        session.mark_offset(claim.topic, claim.partition, offset)
                claim.mark(record)
                self.note(f"done {record.offset}")

    ends, handler = SessionEndHook(), Waits(classic)
    await classic.produce(5, [0])
    limit = 0.0 if how == "off" else LIMIT
    async with (
        member(classic, hooks=(ends,), max_poll_interval=limit) as group,
        running(group.run("orders", handler)),
    ):
        await classic.bell.until(lambda: "done 4" in handler.calls, "all records", 100 * LIMIT)
        assert not ends.causes


async def test_a_static_member_stops_its_heartbeats(classic: VirtualEnvironment) -> None:
    options = {"max_poll_interval": LIMIT, "group_instance_id": "a"}
    async with working(classic, **options) as (_, _, handler, gate):
        await handler.until("lost [0, 1, 2, 3]")
        stopped_at = now()
        assert not classic.cluster.history.of("LeaveGroup")
        assert all(beat.time <= stopped_at for beat in classic.cluster.history.of("Heartbeat"))
        gate.open.set()
        await handler.until("setup", times=2)


async def test_a_record_in_hand_of_records(ends: SessionEndHook, classic: VirtualEnvironment) -> None:
    """The record that the body of the loop works on can be stuck, but no partition of which no record is acquired."""
    await classic.produce(2, range(4))
    async with (
        member(classic, hooks=(ends,), max_poll_interval=LIMIT) as group,
        group.records("orders") as records,
    ):
        seen = [await anext(records) for _ in range(8)]
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(3 * LIMIT)
        assert not ends.causes
        await classic.produce(1, [2])
        record = await waiting
        began = now()
        await classic.bell.until(lambda: bool(ends.causes), "the loss", env_limit := 5 * LIMIT)
        assert LIMIT <= now() - began < env_limit
    cause = ends.causes[0]
    assert isinstance(cause.__cause__, ClaimStuck)
    assert cause.__cause__.partition == record.partition == 2
    assert len({(each.partition, each.offset) for each in seen}) == 8


async def test_the_member_has_left_before_it_joins_again(env: VirtualEnvironment) -> None:
    """This includes handlers that end at once when the claims are lost: the group would wait for the former member."""

    class Waits(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            async for _record in claim:
                await claim.wait_ended()

    handler = Waits(env)
    await env.produce(1, [0])
    name = "ConsumerGroupHeartbeat" if env.protocol == PROTOCOLS["consumer"] else "LeaveGroup"
    env.cluster.faults.on(name, where=lambda request: getattr(request, "member_epoch", -1) == -1).error(
        "COORDINATOR_LOAD_IN_PROGRESS"
    )
    async with (
        member(env, max_poll_interval=LIMIT) as group,
        running(group.run("orders", handler)),
    ):
        await env.bell.until(lambda: bool(handler.sessions), "a session", env.limit)
        await handler.sessions[0]._inner.wait_lost()
        lost_at = now()
        await handler.until("setup", times=2)
        assert now() - lost_at < 2.0
        assert len(env.cluster.group(env.group_id).members) == 1
