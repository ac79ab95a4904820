"""The heartbeats of the heartbeat thread in virtual time, without the thread: the member's own are held by the broker.

Nothing else runs on an event loop that is blocked, so the coordinator does not answer the member's own requests here. The
stand-in is the one that the thread runs; tests/group/liveness/test_heartbeat_thread.py blocks real event loops.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import ClientConfig, ConsumerGroup, TopicPartition
from asyncgroup.broker import Fault
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.errors import AsyncGroupError, ClaimStuck, EventLoopBlocked
from asyncgroup.group.liveness.heartbeat_snapshot import ThreadHandover, ThreadReport
from asyncgroup.group.liveness.thread_heartbeats import ThreadHeartbeats
from asyncgroup.wire import messages as m
from tests.group.internals import make_second_client, membership_of
from tests.scenario.support import SessionEndHook, WorkHandler, committed, member, now, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture(params=PROTOCOLS)
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(str(request.param), nodes=3) as environment:
        yield environment


def api(env: VirtualEnvironment) -> str:
    return "ConsumerGroupHeartbeat" if env.protocol == PROTOCOLS["consumer"] else "Heartbeat"


def hold_heartbeats(env: VirtualEnvironment, name: str | None = None) -> Fault:
    """Leave the member's own heartbeats without a response, and without an effect, as if they had never been sent.

    `name`: of another API; all if it is empty.
    """
    fault = env.cluster.faults.on(api(env) if name is None else name or None, client_id="ann", times=None)
    return fault.answer(lambda _: m.HeartbeatResponse()).drop()


def thread_heartbeats(
    env: VirtualEnvironment, group: ConsumerGroup, error: AsyncGroupError | None = None
) -> ThreadHeartbeats:
    """What the heartbeat thread of this member would run; with `error` it has to leave at once."""

    def make_cluster() -> ClusterClient:
        return ClusterClient(env.bootstrap_servers, ClientConfig(client_id="stand-in"))

    return ThreadHeartbeats(membership_of(group).heartbeats.handover, make_cluster, lambda _now: error, 1.0)


async def test_it_keeps_the_member_in_its_group(env: VirtualEnvironment) -> None:
    """The coordinator may move during the block. After it the member goes on where it was."""
    ends, handler = SessionEndHook(), WorkHandler(env)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        session = group.session
        fault = hold_heartbeats(env)
        async with running(thread_heartbeats(env, group).run()):
            await asyncio.sleep(2 * env.session_timeout)
            await env.kill_node(env.cluster.coordinator(env.group_id))
            await asyncio.sleep(2 * env.session_timeout)
        beats = env.cluster.history.of(api(env), client_id="stand-in")
        assert len(beats) >= 3.5 * env.session_timeout / env.heartbeat_interval
        fault.cancel()
        await asyncio.sleep(env.session_timeout)
        assert not ends.causes
        assert group.session is session
        await env.produce(3, range(4))
        await handler.until("done 3@2")
        await env.all_committed()


async def test_a_member_joins_meanwhile(env: VirtualEnvironment) -> None:
    """The rebalance waits for the member: nothing is confirmed for it, and it loses nothing."""
    ends, handler = SessionEndHook(), WorkHandler(env)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        await env.produce(3, range(4))
        await handler.until("done 3@2")
        fault = hold_heartbeats(env)
        async with running(thread_heartbeats(env, group).run()):
            await asyncio.sleep(env.session_timeout)
            async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
                await asyncio.sleep(2 * env.session_timeout)
                assert partitions_of(other) == []
                assert not [cause for cause in ends.causes if "lost" in str(cause)]
                fault.cancel()
                await env.bell.until(
                    lambda: len(partitions_of(other)) == 2 == len(partitions_of(group)), "halves", env.limit
                )
    assert committed(env) == dict.fromkeys(range(4), 3)
    assert not [cause for cause in ends.causes if "lost" in str(cause)]


async def test_members_come_and_go_meanwhile(env: VirtualEnvironment) -> None:
    """By the consumer protocol the member's epoch advances several times without it."""
    ends, handler = SessionEndHook(), WorkHandler(env)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env)
        async with running(thread_heartbeats(env, group).run()):
            for name in ("bob", "carl"):
                async with member(env, name) as other, running(other.run("orders", WorkHandler(env))):
                    await asyncio.sleep(env.session_timeout)
            fault.cancel()
            await asyncio.sleep(env.heartbeat_interval)
        await env.bell.until(lambda: len(partitions_of(group)) == 4, "all partitions", env.limit)
        await env.produce(3, range(4))
        await handler.until("done 3@2")
        await env.all_committed()
    assert not [cause for cause in ends.causes if "lost" in str(cause)]


def warnings_of(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """The log lines with this text."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if part in line]


@pytest.mark.parametrize("is_static", [False, True])
async def test_the_loss_is_one_log_line_which_says_what_the_member_does(
    env: VirtualEnvironment, is_static: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A static member of the classic protocol does not leave: its heartbeats end."""
    handler, ends = WorkHandler(env), SessionEndHook()
    options = {"group_instance_id": "a"} if is_static else {}
    async with member(env, hooks=(ends,), **options) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env)
        error = ClaimStuck("g", TopicPartition("orders", 0), 12.0, 10.0)
        await thread_heartbeats(env, group, error).run()
        fault.cancel()
        await handler.until("setup", times=2)
    (line,) = warnings_of(caplog, "claim orders-0 is stuck")
    stays = is_static and env.protocol != PROTOCOLS["consumer"]
    assert ("the member leaves its group" in line) is not stays
    assert ("heartbeats" in line) is stays
    assert isinstance(ends.causes[0].__cause__, ClaimStuck)


async def test_another_block_after_the_member_has_left(env: VirtualEnvironment) -> None:
    """The event loop is blocked again before the member's own heartbeats have taken the loss: nothing more is sent."""
    handler, stuck = WorkHandler(env), ClaimStuck("g", TopicPartition("orders", 0), 12.0, 10.0)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        heartbeats = membership_of(group).heartbeats
        assert heartbeats.handover.snapshot is not None
        blocked = ThreadHandover()
        blocked.snapshot = replace(heartbeats.handover.snapshot, due=now())  # type: ignore[type-var]
        blocked.report = ThreadReport(0.0, 0.0, heartbeats.handover.snapshot.identity, stuck)

        def make_cluster() -> ClusterClient:
            return ClusterClient(env.bootstrap_servers, ClientConfig(client_id="stand-in"))

        async with running(ThreadHeartbeats(blocked, make_cluster, lambda _now: None, 1.0).run()):
            await asyncio.sleep(1.0)
        assert blocked.report is not None
        assert blocked.report.left_because is stuck
    assert not env.cluster.history.of(client_id="stand-in")


async def test_the_log_says_which_heartbeat_was_not_answered(
    handler: WorkHandler, env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env)
        silent = env.cluster.faults.on(api(env), client_id="stand-in").drop()
        snapshot = membership_of(group).heartbeats.handover.snapshot
        assert snapshot is not None
        with caplog.at_level(logging.INFO, "asyncgroup.group"):
            async with running(thread_heartbeats(env, group).run()):
                await silent.wait_hit()
                await asyncio.sleep(snapshot.timeout + 0.1)
        fault.cancel()
    expected = f"no response to the heartbeat within {snapshot.timeout:g} s"
    assert any(line.startswith("group g: ") and line.endswith(expected) for line in caplog.messages)


async def test_it_leaves_for_the_member(env: VirtualEnvironment) -> None:
    ends, handler = SessionEndHook(), WorkHandler(env)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env)
        began = now()
        await thread_heartbeats(env, group, EventLoopBlocked("g", 300.0)).run()
        async with member(env, "bob") as other, running(other.run("orders", WorkHandler(env))):
            await env.bell.until(lambda: partitions_of(other) == [0, 1, 2, 3], "all partitions", 3.0)
            assert now() - began < 3.0
            fault.cancel()
            await env.bell.until(lambda: bool(ends.causes), "the loss", env.limit)
            assert isinstance(ends.causes[0].__cause__, EventLoopBlocked)
            await env.bell.until(lambda: len(partitions_of(group)) == 2, "a share", env.limit)


async def test_the_partitions_of_a_static_member_wait_for_it(env: VirtualEnvironment) -> None:
    handler = WorkHandler(env)
    async with (
        member(env, group_instance_id="a") as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env)
        await thread_heartbeats(env, group, EventLoopBlocked("g", 300.0)).run()
        left = env.cluster.history.of(client_id="stand-in")
        assert not [exchange for exchange in left if exchange.api == "LeaveGroup"]
        fault.cancel()
        await handler.until("setup", times=2)


async def test_no_broker_answers(handler: WorkHandler, env: VirtualEnvironment) -> None:
    """The thread tries again, each time with a new client, until a broker answers."""
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        addresses = list(env.cluster.bootstrap_servers.split(","))
        fault = hold_heartbeats(env)
        calls = 0

        def make_cluster() -> ClusterClient:
            nonlocal calls
            calls += 1
            servers = "127.0.0.1:1" if calls < 4 else addresses
            return ClusterClient(servers, ClientConfig(client_id="stand-in"))

        standing = ThreadHeartbeats(
            membership_of(group).heartbeats.handover, make_cluster, lambda _now: None, 1.0
        )
        async with running(standing.run()):
            await asyncio.sleep(2 * env.session_timeout)
        assert calls == 4
        assert env.cluster.history.of(api(env), client_id="stand-in")
        fault.cancel()


async def test_a_heartbeat_in_flight_fails_after_it(env: VirtualEnvironment) -> None:
    """When it fails, no broker has answered the member itself for a session timeout, but the stand-in."""
    ends, handler = SessionEndHook(), WorkHandler(env)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        session = group.session
        await env.bell.until(lambda: len(env.cluster.history.of(api(env))) >= 2, "a heartbeat", env.limit)
        fault = hold_heartbeats(env, "")
        await asyncio.sleep(0.8 * env.session_timeout)
        async with running(thread_heartbeats(env, group).run()):
            await asyncio.sleep(0.5 * env.session_timeout)
            assert not ends.causes
            assert group.session is session
        fault.cancel()


LEAVES = {"eager": "LeaveGroup", "cooperative": "LeaveGroup", "consumer": "ConsumerGroupHeartbeat"}


def leaves(env: VirtualEnvironment, client_id: str) -> list[Any]:
    """The member's requests to leave."""
    name = next(name for name, options in PROTOCOLS.items() if options == env.protocol)
    sent = env.cluster.history.of(LEAVES[name], client_id=client_id)
    return [exchange for exchange in sent if getattr(exchange.request, "member_epoch", -1) == -1]


async def test_its_leave_is_repeated_at_the_new_coordinator(env: VirtualEnvironment) -> None:
    handler = WorkHandler(env)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env).optional()
        api_name = "ConsumerGroupHeartbeat" if env.protocol == PROTOCOLS["consumer"] else "LeaveGroup"
        env.cluster.faults.on(api_name, client_id="stand-in").error("NOT_COORDINATOR")
        await thread_heartbeats(env, group, EventLoopBlocked("g", 300.0)).run()
        assert not env.cluster.group(env.group_id).members
        assert len(leaves(env, "stand-in")) == 2
        fault.cancel()


async def test_the_member_leaves_itself_if_the_thread_could_not(env: VirtualEnvironment) -> None:
    """The event loop runs again before the leave has arrived: the member must not join while the group waits for it."""
    ends, handler = SessionEndHook(), WorkHandler(env)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = hold_heartbeats(env)
        lost = (
            env.cluster.faults.on(client_id="stand-in", times=None)
            .answer(lambda _: m.HeartbeatResponse())
            .drop()
        )
        async with running(thread_heartbeats(env, group, EventLoopBlocked("g", 300.0)).run()):
            await asyncio.sleep(1.0)
        lost.cancel()
        fault.cancel()
        began = now()
        await handler.until("setup", times=2)
        assert now() - began < 2 * env.heartbeat_interval + 1.0
        assert isinstance(ends.causes[0].__cause__, EventLoopBlocked)
        assert leaves(env, "ann")
        assert len(env.cluster.group(env.group_id).members) == 1


async def test_its_client_also_knows_the_bootstrap_servers(env: VirtualEnvironment) -> None:
    """While the event loop was blocked all brokers may have got other addresses."""
    async with member(env) as group:
        client = group.cluster._inner
        servers = set(env.bootstrap_servers.split(","))
        moved = {1: BrokerInfo(1, "::1", 9092, None)}
        client.network.set_view(replace(client.view, brokers=moved))
        second = make_second_client(group)()
        assert set(second.network.addresses) == {"[::1]:9092", *servers}
        client.network.set_view(replace(client.view, brokers={}))
        assert set(make_second_client(group)().network.addresses) == servers
