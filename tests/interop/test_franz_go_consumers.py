"""franz-go's members with the consumer protocol (KIP-848), alone and in a group with ours, on both brokers.

At every moment one of the members has each partition; every record is handled once. Skipped without Go or its modules.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.interop.crew import take_turns
from tests.real.support import RunningKafka
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.full

FRANZ: Final = "franz-go-consumer"

TURNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("", f"{FRANZ}/1", "consumer"),
    ("", f"{FRANZ}/2", "consumer"),
    (f"{FRANZ}/1", "", "consumer"),
    ("", "ours-consumer", "consumer"),
    ("", f"{FRANZ}/3", "consumer"),
    (f"{FRANZ}/2", "", "consumer"),
    (f"{FRANZ}/3", "", "consumer"),
    ("", f"{FRANZ}/4", "consumer"),
    ("ours-consumer", "", "consumer"),
)
"""Who leaves, who joins then, and the protocol of the group after that."""


async def share(env: RealEnvironment) -> None:
    crew = await take_turns(env, TURNS)
    handled = Counter(record for member in crew.former for record in member.handled)
    assert handled == Counter(
        (tp.partition, offset) for tp, count in env.produced.items() for offset in range(count)
    )
    assert all(member.handled for member in crew.former)


async def test_members_of_franz_go_on_the_embedded_broker(kafka_at_hand: None, tmp_path: Path) -> None:
    """The members commit with their member epoch, and no commit is refused."""
    async with (
        EmbeddedCluster(
            1, group_consumer_heartbeat_interval=0.2, group_consumer_assignment_interval=0.1
        ) as cluster,
        RealEnvironment(cluster.bootstrap_servers, tmp_path) as env,
    ):
        await share(env)
        check_requests(cluster, env.group_id)


def check_requests(cluster: EmbeddedCluster, group_id: str) -> None:
    """Check that each commit of franz-go's has an epoch that its member was given, and that none is refused."""
    history = cluster.history
    assert history.of("JoinGroup", group=group_id) == []
    given = {
        (each.response.member_id, each.response.member_epoch)
        for each in history.of("ConsumerGroupHeartbeat", client_id="franz-go", answered=True)
    }
    commits = history.of("OffsetCommit", client_id="franz-go")
    made = {
        (commit.request.member_id, commit.request.generation_id_or_member_epoch)
        for commit in commits
        if commit.request.topics
    }
    assert made <= given
    assert len({member_id for member_id, _ in made}) == 4
    assert {
        part.error_code for commit in commits for topic in commit.response.topics for part in topic.partitions
    } == {0}


@pytest.mark.soak
@pytest.mark.timeout(300)  # most of a minute on an idle machine
async def test_members_of_franz_go_on_a_real_kafka(apache_kafka: RunningKafka, tmp_path: Path) -> None:
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await share(env)
