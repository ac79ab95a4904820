"""A rolling upgrade to the cooperative protocol and back, on a real Kafka under traffic (KIP-429)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.profiles import thinned
from tests.real.support import RunningKafka
from tests.stories.fleet import Fleet
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.asyncio

NAMES = ("ann", "bob", "cat")


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
