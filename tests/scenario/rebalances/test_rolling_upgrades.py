"""Rolling upgrades of a group to the cooperative protocol and back, in two rounds of restarts (KIP-429)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup import Session
from tests.profiles import long_family, thinned
from tests.stories.fleet import Fleet
from tests.stories.virtual import VirtualEnvironment

PARTITIONS = 7
NAMES = ("ann", "bob", "cat")


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1, partitions=PARTITIONS) as environment:
        environment.heartbeat_interval = 0.5
        yield environment


def protocol_of(env: VirtualEnvironment) -> str:
    """Return the assignor that the coordinator has chosen."""
    view = env.cluster.group(env.group_id)
    exchange = next(e for e in reversed(env.cluster.history.of("JoinGroup")) if not e.response.error_code)
    assert view.state == "Stable"
    protocol: str = exchange.response.protocol_name
    return protocol


@pytest.mark.parametrize("former", thinned(["sticky", "range", "roundrobin"], every=3))
async def test_a_rolling_upgrade_in_two_rounds(env: VirtualEnvironment, former: str) -> None:
    """The protocol stays eager until a member offers cooperative assignors only; then its claims last over rebalances."""
    async with Fleet(env, PARTITIONS) as fleet:
        for name in NAMES:
            await fleet.start(name, former)
        for name in NAMES:
            assert protocol_of(env) == former, "a member still offers this one alone"
            await fleet.restart(name, "cooperative-sticky", former)
        assert protocol_of(env) == "cooperative-sticky"
        upgraded: dict[str, Session] = {}
        for name in NAMES:
            kept = {other: fleet.session(other) for other in upgraded}
            former_sessions = {other: fleet.session(other) for other in NAMES if other not in (*kept, name)}
            await fleet.restart(name, "cooperative-sticky")
            assert {other: fleet.session(other) for other in kept} == kept, "cooperative members keep theirs"
            assert all(fleet.session(other) is not session for other, session in former_sessions.items()), (
                "members with an eager assignor in the list do not"
            )
            upgraded[name] = fleet.session(name)
        assert protocol_of(env) == "cooperative-sticky"
        await fleet.all_handled_once()


@pytest.mark.full
@pytest.mark.parametrize("former", ["range", "sticky"])
async def test_a_rolling_downgrade_in_two_rounds(env: VirtualEnvironment, former: str) -> None:
    async with Fleet(env, PARTITIONS) as fleet:
        for name in NAMES:
            await fleet.start(name, "cooperative-sticky")
        for name in NAMES:
            await fleet.restart(name, "cooperative-sticky", former)
        assert protocol_of(env) == "cooperative-sticky"
        for name in NAMES:
            await fleet.restart(name, former)
        assert protocol_of(env) == former
        await fleet.all_handled_once()


async def test_a_rolling_upgrade_of_static_members(env: VirtualEnvironment) -> None:
    """A static member comes back within its session timeout; each restart makes the group rebalance once, if at all."""
    async with Fleet(env, PARTITIONS) as fleet:
        for name in NAMES:
            await fleet.start(name, "sticky", group_instance_id=name)
        for assignors in (("cooperative-sticky", "sticky"), ("cooperative-sticky",)):
            for name in NAMES:
                await fleet.stop(name)
                await fleet.start(name, *assignors, group_instance_id=name)
                await asyncio.sleep(fleet.settling)
        assert protocol_of(env) == "cooperative-sticky"
        await fleet.all_handled_once()


LISTS = (("cooperative-sticky",), ("cooperative-sticky", "sticky"), ("range", "cooperative-sticky"))
"""Lists of assignors that can share a group: the first is cooperative, the others are eager."""


@pytest.mark.full
@pytest.mark.parametrize("seed", long_family(range(40), every=10))
async def test_random_restarts_of_a_mixed_group(env: VirtualEnvironment, seed: int) -> None:
    """Eager and cooperative members in one group, any of which leads; restarts overlap with rebalances."""
    rng = random.Random(seed)
    async with Fleet(env, PARTITIONS) as fleet:
        await fleet.start("ann", *LISTS[0])
        for _ in range(8):
            absent = [name for name in NAMES if name not in fleet.running]
            name = rng.choice(NAMES)
            if name in absent:
                await fleet.start(name, *rng.choice(LISTS), settles=False)
            elif len(fleet.running) > 1:
                await fleet.stop(name)
            await asyncio.sleep(rng.choice([0, 0.01, 0.3, 1, 3]))
        await fleet.settled()
        await asyncio.sleep(fleet.settling)
        await fleet.all_handled_once()
