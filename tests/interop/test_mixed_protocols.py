"""A group moves from the classic protocol to the consumer protocol and back while its members are replaced, on both brokers.

They are ours, Java's and librdkafka's, of either protocol; at every moment one of them has each partition, and every record
is handled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.interop.crew import Ours, take_turns
from tests.real.support import RunningKafka
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.java

TURNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("", "ours-classic", "classic"),
    ("", "java", "classic"),
    ("", "librdkafka-consumer", "consumer"),
    ("java", "java-consumer", "consumer"),
    ("ours-classic", "ours-consumer", "consumer"),
    ("librdkafka-consumer", "librdkafka", "consumer"),
    ("java-consumer", "ours-classic", "consumer"),
    ("ours-consumer", "java", "classic"),
)
"""Who leaves, who joins then, and the protocol of the group after that."""


async def move(env: RealEnvironment) -> None:
    crew = await take_turns(env, TURNS)
    sessions = [len(member.sessions) for member in crew.former if isinstance(member, Ours)]
    assert sessions == [1, 1, 1], "the sessions of our members last while the group changes its protocol"


@pytest.mark.full
async def test_a_group_moves_between_the_protocols_on_the_embedded_broker(
    kafka_at_hand: None, tmp_path: Path
) -> None:
    async with (
        EmbeddedCluster(
            1, group_consumer_heartbeat_interval=0.2, group_consumer_assignment_interval=0.1
        ) as cluster,
        RealEnvironment(cluster.bootstrap_servers, tmp_path) as env,
    ):
        await move(env)


@pytest.mark.soak
async def test_a_group_moves_between_the_protocols_on_a_real_kafka(
    apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await move(env)
