"""Liveness and readiness of a group member, in virtual time: what makes them fail, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Delivery, Producer, Session, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError
from asyncgroup.telemetry.probes import live, ready
from asyncgroup.testing import MemorySource
from tests.stories.holding import mark_all

EARLIEST = ConsumerConfig(auto_offset_reset="earliest")


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("orders", 2)
        yield cluster


@asynccontextmanager
async def consuming(
    broker: EmbeddedCluster, handler: Any = mark_all, config: ConsumerConfig = EARLIEST
) -> AsyncIterator[ConsumerGroup]:
    async with ConsumerGroup(broker.bootstrap_servers, "g", config) as group:
        running = asyncio.create_task(group.run("orders", handler))
        yield group
        await group.aclose()
        await asyncio.wait([running])


class Watch:
    """What probes answer every second: the seconds since the start at which an answer changed."""

    def __init__(self, *clients: Any) -> None:
        self.clients = clients
        self.live: list[tuple[int, bool]] = []
        self.ready: list[tuple[int, bool]] = []
        self.reasons: set[str] = set()

    async def seconds(self, count: int) -> None:
        for second in range(count):
            for found, result in ((self.live, live(self.clients)), (self.ready, ready(self.clients))):
                if not found or found[-1][1] != result.passed:
                    found.append((second, result.passed))
                self.reasons |= {reason.split(" for ")[0] for reason in result.reasons}
            await asyncio.sleep(1)


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.full)])
async def test_an_outage_of_ten_minutes_restarts_nothing(broker: EmbeddedCluster, protocol: Any) -> None:
    config = ConsumerConfig(auto_offset_reset="earliest", group_protocol=protocol)
    async with consuming(broker, config=config) as group:
        await asyncio.sleep(20)
        watch = Watch(group)
        await watch.seconds(5)
        await broker.stop_node(1)
        await watch.seconds(600)
        await broker.start_node(1)
        await watch.seconds(60)
    assert watch.live == [(0, True)]
    (start, down, up) = watch.ready
    assert (start, down[1], up[1]) == ((0, True), False, True)
    limit = group.config.effective_session_timeout if protocol == "classic" else 45
    assert down[0] <= limit + 5
    assert up[0] < 60


@pytest.mark.full
@pytest.mark.parametrize("assignors", ["range", "cooperative-sticky"])
async def test_rebalances_and_members_without_partitions_stay_ready(
    broker: EmbeddedCluster, assignors: str
) -> None:
    config = ConsumerConfig(auto_offset_reset="earliest", assignors=assignors)
    async with consuming(broker, config=config) as group:
        await asyncio.sleep(20)
        watch = Watch(group)
        async with consuming(broker, config=config), consuming(broker, config=config) as third:
            await watch.seconds(30)
            assert sum(not each.health().claims for each in (group, third)) <= 1
            assert ready([group, third]).passed
        await watch.seconds(30)
    assert watch.ready == watch.live == [(0, True)]


@pytest.mark.full
async def test_lag_and_a_slow_handler_are_no_reasons(broker: EmbeddedCluster) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        await asyncio.gather(*(producer.send("orders", b"%d" % n, partition=0) for n in range(1000)))

    async def slow(session: Session, claim: Claim) -> None:
        async for record in claim:
            await asyncio.sleep(30)
            claim.mark(record)

    async with consuming(broker, slow) as group:
        await asyncio.sleep(20)
        watch = Watch(group)
        await watch.seconds(300)
        assert group.health().lag > 950
    assert watch.ready == watch.live == [(0, True)]


async def test_a_record_that_is_held_beyond_max_poll_interval(broker: EmbeddedCluster) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send("orders", b"a", partition=0)
    stuck, calls = asyncio.Event(), 0

    async def handle(session: Session, claim: Claim) -> None:
        nonlocal calls
        async for _ in claim:
            calls += 1
            while calls == 1 and not stuck.is_set():  # as code that cannot be cancelled
                try:
                    await stuck.wait()
                except asyncio.CancelledError:
                    continue

    config = ConsumerConfig(auto_offset_reset="earliest", max_poll_interval=60.0)
    async with consuming(broker, handle, config) as group:
        watch = Watch(group)
        await watch.seconds(300)
        assert watch.live[0] == (0, True)
        assert [passed for _, passed in watch.live] == [True, False]
        assert 60 <= watch.live[1][0] <= 70
        assert not group.health().live
        assert "orders-0" in str(group.health().fatal)
        stuck.set()
        again = Watch(group)
        await again.seconds(30)  # the handler has ended, and the member joins again
        assert again.live[-1][1]
        assert again.ready[-1][1]


@pytest.mark.full
async def test_a_renewed_claim_is_not_stuck(broker: EmbeddedCluster) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send("orders", b"a", partition=0)

    async def handle(session: Session, claim: Claim) -> None:
        async for _ in claim:
            claim.renew(500)
            await asyncio.sleep(400)

    config = ConsumerConfig(auto_offset_reset="earliest", max_poll_interval=60.0)
    async with consuming(broker, handle, config) as group:
        await asyncio.sleep(20)
        watch = Watch(group)
        await watch.seconds(300)
    assert watch.live == watch.ready == [(0, True)]


async def test_a_fenced_member_is_not_live(broker: EmbeddedCluster) -> None:
    config = ConsumerConfig(auto_offset_reset="earliest", group_instance_id="one")
    async with consuming(broker, config=config) as group:
        await asyncio.sleep(20)
        assert live([group]).passed
        async with consuming(broker, config=config) as other:
            await asyncio.sleep(30)
            assert not live([group]).passed
            assert "FENCED_INSTANCE_ID" in live([group]).reasons[0]
            assert live([group]).reasons[0].startswith("g: run() has ended")
            assert ready([group]).reasons == live([group]).reasons
            assert live([other]).passed
            assert ready([other]).passed
            assert not ready([group, other]).passed
            assert live([]).passed


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_for_which_the_group_has_no_place_is_not_live(protocol: str) -> None:
    """GROUP_MAX_SIZE_REACHED ends `run()`, as in Java: nothing consumes, and a restart joins as soon as there is a place."""
    config = replace(EARLIEST, group_protocol=protocol)
    sizes = {"group_max_size": 1} if protocol == "classic" else {"group_consumer_max_size": 1}
    async with EmbeddedCluster(nodes=1, seed=1, **sizes) as broker:
        broker.create_topic("orders", 2)
        async with ConsumerGroup(broker.bootstrap_servers, "g", config) as group:
            async with consuming(broker, config=config) as other:
                await asyncio.sleep(20)
                with pytest.raises(BrokerError, match="GROUP_MAX_SIZE_REACHED"):
                    await group.run("orders", mark_all)
                assert live([group]).reasons[0].startswith("g: run() has ended: BrokerError: ")
                assert ready([group]).reasons == live([group]).reasons
                assert live([other]).passed
                assert ready([other]).passed
            running = asyncio.create_task(group.run("orders", mark_all))
            await asyncio.sleep(20)
            assert live([group]).passed
            assert ready([group]).passed
            await group.aclose()
            await running


async def test_the_error_of_a_handler_is_fatal_until_the_next_call_of_run(broker: EmbeddedCluster) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send("orders", b"a", partition=0)
    fails = True

    async def handle(session: Session, claim: Claim) -> None:
        async for record in claim:
            if fails:
                raise ValueError("a bug")
            claim.mark(record)

    async with ConsumerGroup(broker.bootstrap_servers, "g", EARLIEST) as group:
        assert group.health().live
        assert group.health().not_ready == "nothing consumes: neither run() nor consume() is running"
        for call in (group.run, group.consume):
            with pytest.raises(ValueError, match="a bug"):
                await call("orders", handle)
            assert group.health().fatal == "run() has ended: ValueError: a bug"
            assert group.health().as_dict()["live"] is False
        fails = False
        running = asyncio.create_task(group.run("orders", handle))
        await asyncio.sleep(20)
        assert group.health().live
        assert group.health().ready
        await group.aclose()
        await running
        assert group.health().live
        assert group.health().not_ready == "the group is closed"


async def test_consume_in_a_loop_is_not_restarted_for_an_outage(broker: EmbeddedCluster) -> None:
    """`consume()` raises what is retriable: the caller retries, and a restart would not help."""
    config = ConsumerConfig(auto_offset_reset="earliest", rejoin_retry_max=0)
    async with ConsumerGroup(broker.bootstrap_servers, "g", config) as group:
        broker.faults.on("JoinGroup").error("COORDINATOR_NOT_AVAILABLE")
        with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
            await group.consume("orders", mark_all)
        assert group.health().live
        broker.faults.clear()
        broker.faults.on("JoinGroup").error("GROUP_AUTHORIZATION_FAILED")
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await group.consume("orders", mark_all)
        assert "GROUP_AUTHORIZATION_FAILED" in str(group.health().fatal)


@pytest.mark.full
async def test_a_queue_that_has_ended_is_not_live(broker: EmbeddedCluster) -> None:
    async with WorkQueue(broker.bootstrap_servers, "q", "orders", config=EARLIEST) as queue:

        async def handle(delivery: Delivery) -> None: ...

        running = asyncio.create_task(queue.run(handle))
        await asyncio.sleep(20)
        assert live([queue]).passed
        assert ready([queue]).passed
        broker.faults.on("Heartbeat").error("GROUP_AUTHORIZATION_FAILED")
        await asyncio.wait([running])
        assert isinstance(running.exception(), BrokerError)
        assert "GROUP_AUTHORIZATION_FAILED" in live([queue]).reasons[0]
        assert not ready([queue]).passed


async def test_a_queue_without_a_broker_is_live_and_ready() -> None:
    async with WorkQueue(MemorySource()) as queue:
        assert live([queue]).passed
        assert ready([queue]).passed
        assert ready([queue]).as_dict() == {"passed": True, "reasons": []}
