"""Groups that move from the classic protocol to the consumer protocol and back while members are restarted (KIP-848)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import ErrorCode
from tests.profiles import long_family, thinned
from tests.stories.fleet import Fleet
from tests.stories.virtual import VirtualEnvironment

PARTITIONS = 7
NAMES = ("ann", "bob", "cat")
CONSUMER: dict[str, Any] = {"group_protocol": "consumer"}


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(
        nodes=2,
        partitions=PARTITIONS,
        group_consumer_heartbeat_interval=0.5,
        group_consumer_assignment_interval=0.1,
    ) as environment:
        environment.heartbeat_interval = 0.5
        yield environment


def kind_of(env: VirtualEnvironment) -> str:
    """Return the protocol of the group: that of a consumer group has no leader."""
    view = env.cluster.group(env.group_id)
    assert view.state in ("Stable", "Assigning", "Reconciling", "PreparingRebalance"), view.state
    return "classic" if view.leader is not None else "consumer"


@pytest.mark.parametrize("former", thinned(["cooperative-sticky", "sticky", "range"], every=3))
async def test_a_group_moves_from_one_protocol_to_the_other_and_back(
    env: VirtualEnvironment, former: str
) -> None:
    """With the first member of the consumer protocol it is a consumer group, with the last one a classic group again."""
    async with Fleet(env, PARTITIONS) as fleet:
        for name in NAMES:
            await fleet.start(name, former)
        assert kind_of(env) == "classic"
        for name in NAMES:
            await fleet.restart(name, **CONSUMER)
            assert kind_of(env) == "consumer"
        for name in NAMES:
            assert kind_of(env) == "consumer"
            await fleet.restart(name, former)
        assert kind_of(env) == "classic"
        await fleet.all_handled_once()


async def test_cooperative_members_keep_their_sessions(env: VirtualEnvironment) -> None:
    """The move of the group is a rebalance like others: what a cooperative member keeps goes on."""
    async with Fleet(env, PARTITIONS) as fleet:
        for name in ("ann", "bob"):
            await fleet.start(name, "cooperative-sticky")
        sessions = {name: fleet.session(name) for name in ("ann", "bob")}
        await fleet.start("cat", **CONSUMER)
        await asyncio.sleep(fleet.settling)
        assert kind_of(env) == "consumer"
        await fleet.stop("cat")
        await fleet.settled()
        assert kind_of(env) == "classic"
        assert {name: fleet.session(name) for name in sessions} == sessions
        await fleet.all_handled_once()


async def test_static_members_change_their_protocol(env: VirtualEnvironment) -> None:
    """A static member of the consumer protocol leaves for a while when it stops, a classic one does not leave at all."""
    async with Fleet(env, PARTITIONS) as fleet:
        for name in NAMES:
            await fleet.start(name, "sticky", group_instance_id=name)
        for config in (CONSUMER, {}):
            for name in NAMES:
                await fleet.stop(name)
                await fleet.start(name, *(() if config else ("sticky",)), group_instance_id=name, **config)
                await asyncio.sleep(fleet.settling)
            assert kind_of(env) == ("consumer" if config else "classic")
        await fleet.all_handled_once()


async def test_the_coordinator_moves_with_members_of_both_protocols(env: VirtualEnvironment) -> None:
    async with Fleet(env, PARTITIONS) as fleet:
        await fleet.start("ann", "cooperative-sticky")
        await fleet.start("bob", **CONSUMER)
        for _ in range(4):
            env.cluster.move_coordinator(env.group_id, 3 - env.cluster.coordinator(env.group_id))
            await asyncio.sleep(fleet.settling)
            await fleet.settled()
            assert kind_of(env) == "consumer"
        await fleet.stop("bob")
        await fleet.settled()
        assert kind_of(env) == "classic"
        await fleet.all_handled_once()


async def test_a_member_of_each_protocol_starts_a_group() -> None:
    """The classic one is first. Kafka cannot make its group a consumer group before the first generation."""
    async with VirtualEnvironment.made(nodes=1, partitions=PARTITIONS, initial_rebalance_delay=3.0) as env:
        async with Fleet(env, PARTITIONS) as fleet:
            await fleet.start("ann", "range", settles=False)
            await asyncio.sleep(1.0)
            assert env.cluster.group(env.group_id).state == "PreparingRebalance"
            await fleet.start("bob", **CONSUMER)
            assert kind_of(env) == "consumer"
            await asyncio.sleep(fleet.settling)
            await fleet.all_handled_once()
            beats = env.cluster.history.of("ConsumerGroupHeartbeat")
            assert beats[0].response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_member_whose_group_became_a_classic_one_joins_again() -> None:
    """The last member of the consumer protocol is removed, as after a long pause of its process, and comes back."""
    options = {"group_consumer_session_timeout": 4.0, "group_consumer_heartbeat_interval": 0.5}
    async with VirtualEnvironment.made(nodes=1, partitions=PARTITIONS, **options) as env:
        env.heartbeat_interval = 0.5

        def has_leader() -> bool:
            return env.cluster.group(env.group_id).leader is not None

        async with Fleet(env, PARTITIONS) as fleet:
            await fleet.start("ann", "cooperative-sticky")
            await fleet.start("bob", **CONSUMER)
            lost = env.cluster.faults.on("ConsumerGroupHeartbeat", client_id="bob", times=None).disconnect()
            await env.bell.until(has_leader, "a classic group", env.limit)
            lost.cancel()
            await env.bell.until(lambda: not has_leader(), "bob joins again", env.limit)
            await fleet.settled()
            await asyncio.sleep(fleet.settling)
            await fleet.all_handled()


async def test_the_last_member_that_goes_back_prefers_another_assignor(env: VirtualEnvironment) -> None:
    """It is a static one, and its group becomes a classic one between its JoinGroup and its SyncGroup.

    The response to JoinGroup has the member's first assignor; SyncGroup is refused, as the group has another one. As in Kafka.
    """
    async with Fleet(env, PARTITIONS) as fleet:
        await fleet.start("ann", "range")
        await fleet.start("bob", group_instance_id="bob", **CONSUMER)
        await fleet.stop("bob")
        await fleet.start("bob", "roundrobin", "range", group_instance_id="bob")
        refused = [sync.response.error_code for sync in env.cluster.history.of("SyncGroup", client_id="bob")]
        assert refused[0] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        await asyncio.sleep(fleet.settling)
        assert kind_of(env) == "classic"
        await fleet.all_handled_once()


FORMER = ("cooperative-sticky", "sticky", "range")


@pytest.mark.full
@pytest.mark.parametrize("seed", long_family(range(40), every=10))
async def test_random_restarts_with_both_protocols(env: VirtualEnvironment, seed: int) -> None:
    """Restarts overlap with rebalances, upgrades and downgrades, and the coordinator moves.

    Some records are handled twice: if two members leave between two heartbeats of a third one, the classic group has a
    generation that the third one has never been in, and the third one loses what it has, as with Kafka.
    """
    rng = random.Random(seed)
    former = FORMER[seed % len(FORMER)]
    async with Fleet(env, PARTITIONS) as fleet:
        await fleet.start("ann", former)
        for _ in range(8):
            absent = [name for name in NAMES if name not in fleet.running]
            name = rng.choice(NAMES)
            if name in absent:
                config, assignors = rng.choice([(CONSUMER, ()), ({}, (former,))])
                await fleet.start(name, *assignors, settles=False, **config)
            elif len(fleet.running) > 1:
                await fleet.stop(name)
            # A downgrade begins a rebalance, which the next coordinator does not know of: without the member that has left, it
            # finds a stable group in which the partitions of the former one have no owner, as with Kafka.
            if not rng.randrange(4) and env.cluster.group(env.group_id).state != "PreparingRebalance":
                env.cluster.move_coordinator(env.group_id, 3 - env.cluster.coordinator(env.group_id))
            await asyncio.sleep(rng.choice([0, 0.01, 0.3, 1, 3]))
        await fleet.settled()
        await asyncio.sleep(fleet.settling)
        await fleet.all_handled()
