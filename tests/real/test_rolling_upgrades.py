"""Rolling upgrades to the cooperative and the consumer protocol and back, on a real Kafka under traffic (KIP-429, KIP-848)."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.testing.apache_kafka.properties import consumer_heartbeats
from tests.profiles import thinned
from tests.real.support import RunningKafka
from tests.stories.fleet import Fleet
from tests.stories.real import RealEnvironment

NAMES = ("ann", "bob", "cat")
FIVE = (*NAMES, "dan", "eve")


@pytest.mark.full
@pytest.mark.parametrize("former", thinned(["sticky", "range"], every=2))
async def test_a_rolling_upgrade_and_downgrade(
    apache_kafka: RunningKafka, tmp_path: Path, former: str
) -> None:
    """Nothing is lost, and nothing is handled twice, as each restart is orderly."""
    async with (
        RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env,
        Fleet(env, partitions=4, settling=0.5) as fleet,
    ):
        for name in NAMES:
            await fleet.start(name, former)
        for assignors in [("cooperative-sticky", former), ("cooperative-sticky",)]:
            for name in NAMES:
                await fleet.restart(name, *assignors)
        session = fleet.session("ann")
        await fleet.restart("cat", "cooperative-sticky")
        assert fleet.session("ann") is session, "a session lasts over rebalances now"
        for assignors in [("cooperative-sticky", former), (former,)]:
            for name in NAMES:
                await fleet.restart(name, *assignors)
        await fleet.all_handled_once()


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_five_members_use_each_protocol_in_turn(kafka_at_hand: None, tmp_path: Path) -> None:
    """From eager to cooperative to the consumer protocol and back. Nothing is lost, nothing is handled twice."""
    async with (
        ApacheKafka(properties=consumer_heartbeats(1.0)) as kafka,
        RealEnvironment(kafka.bootstrap_servers, tmp_path) as env,
    ):
        await env.admin.create_partitions(env.topic, 10)
        async with Fleet(env, partitions=10, settling=0.3) as fleet:
            await upgrade_and_downgrade(fleet)


async def upgrade_and_downgrade(fleet: Fleet) -> None:
    for name in FIVE:
        await fleet.start(name, "range")
    for assignors in [("cooperative-sticky", "range"), ("cooperative-sticky",)]:
        for name in FIVE:
            await fleet.restart(name, *assignors)
    for name in FIVE:
        await fleet.restart(name, group_protocol="consumer")
    described = await fleet.env.admin.describe_consumers(fleet.env.group_id)
    assert described is not None
    assert len(described.members) == len(FIVE)
    for assignors in [("cooperative-sticky",), ("cooperative-sticky", "range"), ("range",)]:
        for name in FIVE:
            await fleet.restart(name, *assignors)
    await fleet.all_handled_once()
