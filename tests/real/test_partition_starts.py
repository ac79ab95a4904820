"""Partitions whose only replica is on a killed broker: the others are read, and these once it is back."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session, TopicPartition
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import until_shown
from tests.stories.admin import Admin

# a quarter of a minute on an idle machine; longer than all limits of a test together, which say what is missing
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

LIMIT = 180.0
"""The longest time in seconds that each wait may take."""

PARTITIONS = 6
KILLED = 3
"""The id of the killed node."""


class Reader(Handler):
    """Collects the partitions of which a record was read."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.sessions: list[Session] = []
        self._changed = asyncio.Event()

    async def setup(self, session: Session) -> None:
        self.sessions.append(session)

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            self.seen.add(record.partition)
            self._changed.set()

    async def until(self, partitions: set[int]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT):
                while self.seen != partitions:
                    self._changed.clear()
                    await self._changed.wait()
        assert self.seen == partitions


async def until_leaderless(kafka: ApacheKafka, topic: str, partitions: set[int]) -> None:
    """Wait until the controller has taken these partitions from the killed node, and none else."""

    async def leaderless() -> set[int]:
        async with Admin(kafka.bootstrap_servers).cluster as cluster:  # a new one asks for the metadata
            found = (await cluster.topics([topic]))[topic]
        return set(found.partitions).difference(found.writable)

    await until_shown(leaderless, partitions, LIMIT)


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param({"assignors": ("range",)}, id="eager"),
        pytest.param({"assignors": ("cooperative-sticky",)}, id="cooperative", marks=pytest.mark.soak),
        pytest.param({"group_protocol": "consumer"}, id="consumer", marks=pytest.mark.soak),
    ],
)
async def test_partitions_on_a_killed_broker(
    apache_kafka_3: ApacheKafka, protocol: dict[str, object]
) -> None:
    topic = f"starts-{uuid.uuid4()}"
    admin = Admin(apache_kafka_3.bootstrap_servers)
    async with admin.cluster:
        client = AdminClient({"bootstrap.servers": apache_kafka_3.bootstrap_servers})
        # the records have timestamp 0: half a minute after its start, and then every 5 minutes, a broker deletes those
        # that its retention does not keep
        kept = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
        client.create_topics([kept])[topic].result(LIMIT)
        for number in range(PARTITIONS):
            await admin.produce(TopicPartition(topic, number), [b"v"])
        found = (await admin.cluster.topics([topic]))[topic].partitions
        leaders = {number: info.leader for number, info in found.items()}
    offline = {number for number, leader in leaders.items() if leader == KILLED}
    healthy = set(range(PARTITIONS)) - offline
    assert offline
    assert healthy
    apache_kafka_3.kill(KILLED)
    try:
        config = ConsumerConfig(auto_offset_reset="earliest", **protocol)  # type: ignore[arg-type]
        reader = Reader()
        async with ConsumerGroup(apache_kafka_3.bootstrap_servers, topic, config) as group:
            run = asyncio.create_task(group.run(topic, reader))
            await reader.until(healthy)
            await until_leaderless(apache_kafka_3, topic, offline)
            async with asyncio.timeout(LIMIT):
                while "cannot start" not in str(group.health().problems):
                    await asyncio.sleep(0.1)
            await asyncio.to_thread(apache_kafka_3.start_node, KILLED)
            await reader.until(set(range(PARTITIONS)))
            assert len(reader.sessions) == 1, "nothing has rebalanced"
            await group.aclose()
            await run
    finally:
        if apache_kafka_3.pid(KILLED) is None:
            apache_kafka_3.start_node(KILLED)
