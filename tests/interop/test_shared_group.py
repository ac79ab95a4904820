"""One group on a real Apache Kafka, shared by a member of asyncgroup and one of aiokafka; either may lead."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from asyncgroup import TopicPartition
from tests.real.concurrent_stories import ConcurrentStories
from tests.real.support import RunningKafka
from tests.stories.members import Member
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.asyncio(loop_scope="module")

OURS, THEIRS = "ann-asyncgroup", "bob-aiokafka"
"""Client ids, which are prefixes of the member ids: the range assignor sorts by them, so asyncgroup comes first."""


class Theirs(ConsumerRebalanceListener):
    """An aiokafka member that reads and commits until it is stopped."""

    def __init__(self, env: RealEnvironment) -> None:
        self.env = env
        self.handled: list[tuple[str, int, int]] = []
        self.assigned: list[int] | None = None
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=env.bootstrap_servers,
            group_id=env.group_id,
            client_id=THEIRS,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=int(env.session_timeout * 1000),
            heartbeat_interval_ms=int(env.heartbeat_interval * 1000),
            metadata_max_age_ms=1000,
        )
        self._task: asyncio.Task[None] | None = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.assigned = None
        self.env.bell.ring()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned = sorted(tp.partition for tp in assigned)
        self.env.bell.ring()

    async def start(self) -> None:
        self.consumer.subscribe([self.env.topic], listener=self)
        await self.consumer.start()
        self._task = asyncio.create_task(self._consume())

    async def _consume(self) -> None:
        async for record in self.consumer:
            self.handled.append((record.topic, record.partition, record.offset))
            self.env.bell.ring()

    async def stop(self) -> None:
        """Leave the group; safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self.consumer.stop()


async def shared(env: RealEnvironment, ours: Member, theirs: Theirs, leader: str) -> None:
    """Wait until each member has two partitions, according to the coordinator as well."""

    async def is_shared() -> bool:
        if ours.session is None or theirs.assigned != [2, 3]:
            return False
        described = await env.admin.describe(env.group_id)
        assert described is not None
        partitions = {
            described.client_ids[member_id]: assignment.get(env.topic)
            for member_id, assignment in described.members.items()
        }
        return described.state == "Stable" and partitions == {OURS: [0, 1], THEIRS: [2, 3]}

    await env.bell.until_known(is_shared, "the group shared by halves", env.limit)
    assert ours.session is not None
    assert ours.session.is_leader is (leader == OURS)
    assert ours.session.assignment == {env.topic: [0, 1]}


async def all_handled(env: RealEnvironment, ours: Member, theirs: Theirs) -> None:
    """Wait until every record was handled by one of the two members."""
    wanted = {(*tp, offset) for tp, count in env.produced.items() for offset in range(count)}
    await env.bell.until(
        lambda: wanted <= {*ours.log.handled, *theirs.handled}, f"all {len(wanted)} records", env.limit
    )


def by_partition(handled: list[tuple[str, int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for _, partition, offset in handled:
        found[partition].append(offset)
    return found


async def lead_and_leave(env: RealEnvironment, leader: str, leaver: str) -> None:
    """The first member leads; after one member leaves, the other one resumes at its committed offsets."""
    await env.produce(50, range(4))
    theirs = Theirs(env)
    try:
        if leader == THEIRS:
            await theirs.start()
            await env.bell.until(lambda: theirs.assigned == [0, 1, 2, 3], "aiokafka alone", env.limit)
            ours = await env.member(OURS)
        else:
            ours = await env.member(OURS)
            await env.settled(ours)
            await theirs.start()
        await shared(env, ours, theirs, leader)

        await env.produce(50, range(4))
        await all_handled(env, ours, theirs)
        await env.all_committed()
        first = {"ours": len(ours.log.handled), "theirs": len(theirs.handled)}

        if leaver == OURS:
            await ours.leave()
            await env.bell.until(lambda: theirs.assigned == [0, 1, 2, 3], "aiokafka took over", env.limit)
        else:
            await theirs.stop()
            await env.settled(ours)
        await env.produce(50, range(4))
        await all_handled(env, ours, theirs)
        await env.all_committed()

        # Records that one member has committed are not read again by the other.
        late = by_partition([*ours.log.handled[first["ours"] :], *theirs.handled[first["theirs"] :]])
        assert late == {partition: list(range(100, 150)) for partition in range(4)}
        assert ours.log.failure is None
        assert set(env.produced) == {TopicPartition(env.topic, partition) for partition in range(4)}
    finally:
        await theirs.stop()


CASES = {
    f"{leader}-leads-{leaver}-leaves": (leader, leaver)
    for leader in (OURS, THEIRS)
    for leaver in (OURS, THEIRS)
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(
    request: pytest.FixtureRequest, apache_kafka: RunningKafka, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ConcurrentStories]:
    """Run all selected cases concurrently: they mostly wait for heartbeats."""

    async def tell(case: str) -> None:
        async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path_factory.mktemp("shared")) as env:
            await lead_and_leave(env, *CASES[case])

    async with ConcurrentStories.of(request, CASES, tell, len(CASES)) as told:
        yield told


@pytest.mark.parametrize("case", CASES)
async def test_shared_group(stories: ConcurrentStories, case: str) -> None:
    await stories.wait(case)
