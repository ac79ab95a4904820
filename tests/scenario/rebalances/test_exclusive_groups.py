"""Exclusive groups: one member holds the group, every other one raises ConsumerBusy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncgroup import BrokerError, ConsumerBusy, Session
from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.workqueue.group_engine.exclusive_group import (
    ExclusiveAssignor,
    check_is_holder,
    check_not_busy,
)
from tests.scenario.support import WorkHandler, committed, member, now, running
from tests.stories.virtual import VirtualEnvironment

HEARTBEAT = 1.0
TIMEOUT = 10.0
ANN = "10.2.0.1"
BOB = "10.2.0.2"


def exclusive(since_ms: int, **config: Any) -> dict[str, Any]:
    return {
        "assignors": (ExclusiveAssignor(since_ms),),
        "heartbeat_interval": HEARTBEAT,
        "session_timeout": TIMEOUT,
        **config,
    }


class ExclusiveWork(WorkHandler):
    """Raises ConsumerBusy in `setup` if another member holds the group."""

    def __init__(self, env: VirtualEnvironment, group: ConsumerGroup) -> None:
        super().__init__(env)
        self.group = group

    async def setup(self, session: Session) -> None:
        await check_is_holder(self.group.cluster._inner, session)
        await super().setup(session)


@contextlib.asynccontextmanager
async def holding(
    env: VirtualEnvironment, group: ConsumerGroup, host: str = ANN
) -> AsyncIterator[ExclusiveWork]:
    """Run the member on this host in the block, which begins when it has all partitions."""
    work = ExclusiveWork(env, group)
    async with contextlib.AsyncExitStack() as exits:
        with env.network.source(host):
            await exits.enter_async_context(running(group.run("orders", work)))
        await work.until("assigned [0, 1, 2, 3]")
        yield work


async def check(group: ConsumerGroup, **options: Any) -> None:
    await check_not_busy(group.cluster._inner, group.group_id, **options)


async def test_the_second_one_is_refused_before_it_joins(env: VirtualEnvironment) -> None:
    async with (
        member(env, "ann", **exclusive(1)) as first,
        member(env, "bob", host=BOB, **exclusive(2)) as second,
    ):
        await check(first)  # there is no such group yet
        async with holding(env, first):
            with pytest.raises(ConsumerBusy, match=r"another consumer holds the group 'g': ann-\S+ \(client 'ann' at 10\.2\.0\.1\)") as caught:  # fmt: skip
                await check(second)
            assert caught.value.group_id == "g"
            assert env.cluster.history.of("JoinGroup", client_id="bob") == []
        await first.aclose()
        await check(second)  # it has left
        async with holding(env, second, BOB):
            pass


async def test_one_that_joins_all_the_same_is_refused_and_does_not_interrupt_the_other(
    env: VirtualEnvironment,
) -> None:
    """The new member's clock is earlier, but the other one owns the partitions."""
    async with (
        member(env, "ann", **exclusive(2)) as first,
        member(env, "bob", host=BOB, **exclusive(1)) as second,
    ):
        async with holding(env, first) as work:
            began = now()
            other = ExclusiveWork(env, second)
            with pytest.raises(ConsumerBusy, match=r"ann-\S+ \(client 'ann' at 10\.2\.0\.1\)"):
                await second.run("orders", other)
            assert now() - began < 3 * HEARTBEAT
            await second.aclose()
            await env.produce(3, range(4))
            for partition in range(4):
                await work.until(f"done {partition}@2")
            assert len(env.cluster.group("g").members) == 1
        assert other.calls == ["cleanup"]
        assert work.calls.count("setup") == 1
        assert [call for call in work.calls if call.startswith(("revoked", "lost"))] == [
            "revoked [0, 1, 2, 3]"
        ]
    assert committed(env) == dict.fromkeys(range(4), 3)


async def test_of_two_that_join_at_once_the_one_that_waits_longer_holds_the_group(
    env: VirtualEnvironment,
) -> None:
    async with (
        member(env, "ann", **exclusive(2)) as first,
        member(env, "bob", host=BOB, **exclusive(1)) as second,
    ):
        await asyncio.gather(check(first), check(second))
        works = [ExclusiveWork(env, first), ExclusiveWork(env, second)]
        async with running(second.run("orders", works[1])) as winner:
            with pytest.raises(ConsumerBusy, match=r"bob-\S+ \(client 'bob' at 10\.2\.0\.2\)"):
                await first.run("orders", works[0])
            await first.aclose()
            await works[1].until("assigned [0, 1, 2, 3]")
            await asyncio.sleep(2 * TIMEOUT)
            assert not winner.done()
            assert works[1].calls.count("setup") == 1


async def test_a_dead_holder_holds_the_group_until_its_session_times_out(env: VirtualEnvironment) -> None:
    async with (
        member(env, "ann", **exclusive(1)) as first,
        member(env, "bob", host=BOB, **exclusive(2)) as second,
    ):
        async with holding(env, first) as work:
            await asyncio.sleep(3 * TIMEOUT)
            env.network.blackhole("10.2.0.1")
            died = now()
            while True:
                try:
                    await check(second)
                except ConsumerBusy:
                    await asyncio.sleep(HEARTBEAT / 2)
                else:
                    break
            assert TIMEOUT - 2 * HEARTBEAT <= now() - died <= TIMEOUT + 2 * HEARTBEAT
            async with holding(env, second, BOB) as other:
                await work.until("lost [0, 1, 2, 3]")
                # the former holder joins again, and is refused like any other
                env.network.heal("10.2.0.1")
                await asyncio.sleep(5 * TIMEOUT)
                assert len(env.cluster.group("g").members) == 1
                assert other.calls.count("setup") == 1
                assert work.calls.count("setup") == 1


async def test_a_static_member_is_not_refused_by_itself(env: VirtualEnvironment) -> None:
    static = exclusive(1, group_instance_id="ann")
    async with member(env, "ann", **static) as first, holding(env, first):
        pass
    async with member(env, "ann", **static) as again:
        with pytest.raises(ConsumerBusy):
            await check(again)
        await check(again, group_instance_id="ann")
        # its member id is new, its assignment may be the one from before: that it holds the group is in there
        async with holding(env, again):
            pass


async def test_a_group_without_that_assignor(env: VirtualEnvironment) -> None:
    """User data of other assignors names no holder: partitions decide."""
    async with member(env, "ann") as first, running(first.run("orders", WorkHandler(env))):
        await env.bell.until(lambda: first.session is not None and bool(first.session.partitions), "it joined", env.limit)  # fmt: skip
        assert first.session is not None
        await check_is_holder(first.cluster._inner, first.session)
    async with member(env, "ann") as first:
        env.cluster.create_topic("one", 1)
        async with member(env, "bob", host=BOB) as second:
            works = [ExclusiveWork(env, first), ExclusiveWork(env, second)]
            runs = [asyncio.create_task(group.run("one", work)) for group, work in zip((first, second), works, strict=True)]  # fmt: skip
            done, rest = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            for run in done:
                with pytest.raises(ConsumerBusy, match=r"another consumer holds the group 'g'(\n|$)"):
                    await run
            for run in rest:
                run.cancel()
            await asyncio.wait(runs)


async def test_the_holder_is_named_by_its_member_id_if_the_coordinator_does_not_describe_it(
    env: VirtualEnvironment,
) -> None:
    async with (
        member(env, "ann", **exclusive(1)) as first,
        member(env, "bob", host=BOB, **exclusive(2)) as second,
    ):
        async with holding(env, first):
            plan = env.cluster.faults.on("DescribeGroups").hold()
            began = now()
            with pytest.raises(
                ConsumerBusy, match=r"another consumer holds the group 'g': ann-[-0-9a-f]+(\n|$)"
            ):
                await second.run("orders", ExclusiveWork(env, second))
            assert now() - began < 5 * HEARTBEAT
            plan.cancel()


async def test_errors_of_the_coordinator(env: VirtualEnvironment) -> None:
    faults = env.cluster.faults
    async with member(env, "bob", host=BOB, **exclusive(1)) as group:
        for name in ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"):
            faults.on("DescribeGroups").error(name)
            await check(group)
        faults.on("DescribeGroups").error("GROUP_AUTHORIZATION_FAILED")
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await check(group)
        await env.cluster.stop_node(env.cluster.coordinator("g"))
        await check(group)
