"""How claims and sessions end in each group protocol: the table of the guide's page on rebalances, row by row.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import BrokerError, Claim, RevokeTimeout, Session
from asyncgroup.group.sessions.end_limits import EndLimits
from asyncgroup.group.sessions.handler_calls import HandlerCalls
from tests.scenario.support import (
    ClaimReturns,
    SessionEndHook,
    WorkHandler,
    committed,
    member,
    running,
    stop,
    working,
)
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ends_session(protocol: str) -> bool:
    """Whether a rebalance ends the session."""
    return protocol == "eager"


@pytest_asyncio.fixture
async def env(protocol: str) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(protocol) as environment:
        yield environment


async def test_a_member_joins(env: VirtualEnvironment, ends_session: bool) -> None:
    handler, ends = WorkHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.consume("orders", handler)) as consuming:
        await handler.until("claim 3@0")
        await env.produce(2, range(4))
        await handler.until("done 3@1")
        async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
            await env.bell.until(lambda: bool(partitions_of(other)), "partitions of bob", env.limit)
            await asyncio.sleep(1.0)
            assert committed(env) == dict.fromkeys(range(4), 2)
            ended = [call for call in handler.calls if call.startswith("end")]
            assert consuming.done() is ends_session
            if ends_session:
                assert ends.names == ["Rebalanced"]
                assert len(ended) == 4
                assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]
            else:
                moved = partitions_of(other)
                assert sorted(ended) == [f"end {number}" for number in moved]
                assert handler.calls[-1] == f"revoked {moved}"
                assert sorted([*partitions_of(group), *moved]) == [0, 1, 2, 3]


async def test_the_topics_change(env: VirtualEnvironment, ends_session: bool) -> None:
    """By set_topics(), by new partitions, by a topic that is deleted."""
    await env.create_topic("a", 1)
    handler, ends = WorkHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        group.set_topics(["orders", "a"])
        await env.bell.until(lambda: len(partitions_of(group)) == 5, "a as well", env.limit)
        env.cluster.create_partitions("orders", 5)
        await env.bell.until(lambda: len(partitions_of(group)) == 6, "a new partition", env.limit)
        await handler.until("claim 4@0")
        await asyncio.sleep(1.0)
        env.cluster.delete_topic("a")
        await env.bell.until(lambda: partitions_of(group) == [0, 1, 2, 3, 4], "without a", env.limit)
        await asyncio.sleep(1.0)
        ended = ["TopicsChanged", "PartitionsChanged", "PartitionsChanged"]
        assert ends.names == (ended if ends_session else [])
        assert handler.calls.count("setup") == (4 if ends_session else 1)
        assert handler.calls.count("end 3") == (3 if ends_session else 0)


async def test_a_revoked_claim_ignores_its_limit(env: VirtualEnvironment, ends_session: bool) -> None:
    """Its record is in work for longer than `rebalance_timeout`, and its handler goes on when it is cancelled."""
    may_end = asyncio.Event()
    errors: list[BaseException] = []

    class Stuck(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            self.note(f"claim {claim.partition}")
            await claim.wait_ended()
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    self.note(f"cancelled {claim.partition}")

    handler, ends = Stuck(env), SessionEndHook()
    async with (
        member(env, hooks=(ends,), rebalance_timeout=12.0) as group,
        running(group.run("orders", handler)),
    ):
        reader = group.errors()
        await handler.until("claim 3")
        async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
            await env.bell.until(lambda: bool(partitions_of(other)), "partitions of bob", env.limit)
            await handler.until(f"cancelled {partitions_of(other)[0]}")
            await asyncio.sleep(3.0)
            if ends_session:
                assert group.session is handler.sessions[0], "it waits for the handlers"
                assert group.session.ended
            else:
                errors.append(await anext(reader))
                assert isinstance(errors[0], RevokeTimeout)
                assert ends.names == []
                assert not handler.sessions[0].ended
            may_end.set()


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
async def test_the_limit_of_a_revoked_claim_is_in_its_error(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the time that passed, which is longer on a busy event loop."""
    limit, may_end, drain = 0.0, asyncio.Event(), HandlerCalls.drain_claims

    async def drain_late(self: HandlerCalls, claims: Any, limits: EndLimits) -> Any:
        nonlocal limit
        limit = limits.hook_seconds
        stuck = await drain(self, claims, limits)
        await asyncio.sleep(0.5)
        return stuck

    class Stuck(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            self.note(f"claim {claim.partition}")
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

    handler = Stuck(env)
    monkeypatch.setattr(HandlerCalls, "drain_claims", drain_late)
    async with member(env, rebalance_timeout=12.0) as group, running(group.run("orders", handler)):
        reader = group.errors()
        await handler.until("claim 3")
        async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
            error = await anext(reader)
            may_end.set()
    assert isinstance(error, RevokeTimeout)
    assert 0.0 < limit == pytest.approx(error.limit, abs=0.01)


async def test_the_member_is_lost(ends: SessionEndHook, env: VirtualEnvironment) -> None:
    options = {"hooks": (ends,), "auto_commit_interval": 3000.0}
    async with working(env, "consume", **options) as (_group, consuming, handler, gate):
        await asyncio.sleep(1.0)
        env.network.blackhole("10.2.0.1")
        await env.bell.until(lambda: handler.sessions[0].ended, "the loss", env.limit)
        gate.open.set()
        await handler.until("cleanup")
        env.network.heal()
        await consuming
        assert handler.calls[handler.calls.index("end 0") :] == ["end 0", "lost [0, 1, 2, 3]", "cleanup"]
        assert (ends.names, committed(env)) == (["MemberLost"], {})


async def test_consume_claim_returns(env: VirtualEnvironment) -> None:
    handler, ends = ClaimReturns(env), SessionEndHook()
    await env.produce(5, [1])
    async with member(env, hooks=(ends,)) as group:
        await group.consume("orders", handler)
        assert ends.names == ["ClaimReturned"]
        assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]
        assert committed(env)[1] == 1


async def test_a_handler_raises(env: VirtualEnvironment) -> None:
    async def work(_session: Session, claim: Claim, record: Any) -> None:
        if (claim.partition, record.offset) == (0, 3):
            raise RuntimeError("broken")

    handler = WorkHandler(env, work)
    await env.produce(5, [0])
    async with member(env) as group:
        with pytest.raises(RuntimeError, match="broken") as caught:
            await group.run("orders", handler)
        assert any("orders" in note for note in caught.value.__notes__)
        assert committed(env)[0] == 3
        assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["closed", "cancelled"])
async def test_the_group_is_closed_or_the_caller_cancelled(
    handler: WorkHandler, env: VirtualEnvironment, is_cancelled: bool
) -> None:
    await env.produce(5, range(4))
    async with member(env, auto_commit_interval=3000.0) as group:
        async with running(group.run("orders", handler)) as run:
            await handler.until("done 3@4")
            await stop(group, run, by_cancellation=is_cancelled)
        assert committed(env) == dict.fromkeys(range(4), 5)
        assert handler.calls[-2:] == ["revoked [0, 1, 2, 3]", "cleanup"]
        assert not env.cluster.group(env.group_id).members, "it has left"


async def test_a_static_member_that_is_closed_stays(handler: WorkHandler, env: VirtualEnvironment) -> None:
    async with member(env, group_instance_id="one") as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
    assert env.cluster.group(env.group_id).members


async def test_an_instance_id_that_is_in_use(
    env: VirtualEnvironment, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The classic protocol fences the member that is there, the other one refuses the newcomer, which then has nothing to leave."""
    handler, newcomer = WorkHandler(env), WorkHandler(env)
    async with (
        member(env, group_instance_id="one") as group,
        running(group.run("orders", handler)) as first,
        member(env, group_instance_id="one") as other,
    ):
        await handler.until("claim 3@0")
        async with running(other.run("orders", newcomer)) as second:
            refused = second if protocol == "consumer" else first
            with pytest.raises(BrokerError) as caught:
                await refused
            assert caught.value.name == (
                "UNRELEASED_INSTANCE_ID" if protocol == "consumer" else "FENCED_INSTANCE_ID"
            )
    assert "could not leave" not in caplog.text
