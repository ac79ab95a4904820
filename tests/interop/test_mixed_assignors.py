"""One group on a real Apache Kafka, shared with other clients whose assignors have the same names.

Whichever member leads, the assignment is balanced and no partition is assigned twice.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pytest
import pytest_asyncio

from tests.peers import import_peer
from tests.real.concurrent_stories import ConcurrentStories
from tests.real.support import RunningKafka
from tests.stories.members import Member
from tests.stories.real import RealEnvironment

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = set(range(4))

AT_ONCE = 3
"""The number of groups that run concurrently."""

KAFKA_PYTHON_POLL = 3
"""Seconds of a poll; a shorter one can hang the client, see test_foreign_clients.py."""


class Other(Protocol):
    """A member of another client library, used by one thread."""

    def poll(self) -> None:
        """Poll once."""

    def assigned(self) -> set[int]:
        """Return its partitions; may be called from any thread."""

    def close(self) -> None:
        """Leave."""


class KafkaPython:
    """kafka-python with its sticky assignor."""

    def __init__(self, env: RealEnvironment, _protocol: str) -> None:
        self._assigned: set[int] = set()
        self._consumer = kafka_python().KafkaConsumer(
            bootstrap_servers=env.bootstrap_servers.split(","),
            group_id=env.group_id,
            heartbeat_interval_ms=200,
            session_timeout_ms=6000,
            metadata_max_age_ms=1000,
            partition_assignment_strategy=[
                sys.modules["kafka.coordinator.assignors.sticky.sticky_assignor"].StickyPartitionAssignor
            ],
        )
        self._consumer.subscribe([env.topic], listener=self.listener())

    def listener(self) -> object:
        """Return a listener that records the assignment, as a poll may take long."""
        mine = self

        class Listener(kafka_python().ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, _revoked: object) -> None:
                mine._assigned = set()

            def on_partitions_assigned(self, assigned: Any) -> None:
                mine._assigned = {tp.partition for tp in assigned}

        return Listener()

    def poll(self) -> None:
        self._consumer.poll(timeout_ms=1000 * KAFKA_PYTHON_POLL)

    def assigned(self) -> set[int]:
        return self._assigned

    def close(self) -> None:
        self._consumer.close()


def kafka_python() -> Any:
    """Import the package, in a release that has the sticky assignor."""
    import_peer("kafka.coordinator.assignors.sticky.sticky_assignor")
    return import_peer("kafka")


class Confluent:
    """librdkafka with the assignor of that name."""

    def __init__(self, env: RealEnvironment, protocol: str) -> None:
        from confluent_kafka import Consumer

        self._assigned: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": env.bootstrap_servers,
                "group.id": env.group_id,
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 6000,
                "topic.metadata.refresh.interval.ms": 1000,
                "partition.assignment.strategy": protocol,
            }
        )
        self._consumer.subscribe([env.topic])

    def poll(self) -> None:
        self._consumer.poll(0.1)
        # In another thread this call may wait forever.
        self._assigned = {tp.partition for tp in self._consumer.assignment()}

    def assigned(self) -> set[int]:
        return self._assigned

    def close(self) -> None:
        self._consumer.close()


class InThread:
    """Runs the other member in a thread."""

    def __init__(self, make: Callable[[], Other]) -> None:
        self._make = make
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="another client")
        self.member: Other | None = None
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            self.member = member = self._make()
            try:
                while not self._ending.is_set():
                    member.poll()
            finally:
                self.member = None
                member.close()
        except BaseException as error:
            self.failure = error

    @property
    def assigned(self) -> set[int]:
        """Its partitions."""
        member = self.member
        return member.assigned() if member is not None else set()

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Leave the group; safe to call twice."""
        self._ending.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        if self.failure is not None:
            raise self.failure


def ours_has(ours: Member, env: RealEnvironment) -> set[int]:
    return set(ours.session.assignment.get(env.topic, ())) if ours.session is not None else set()


async def shared(env: RealEnvironment, *members: Member, other: InThread) -> list[set[int]]:
    """Wait for a balanced assignment; return the partitions of each member, the other client's last."""

    def shares() -> list[set[int]]:
        return [*(ours_has(ours, env) for ours in members), set(other.assigned)]

    def is_balanced() -> bool:
        assert other.failure is None
        sizes = [len(share) for share in shares()]
        return sum(sizes) == 4 and set().union(*shares()) == PARTITIONS and max(sizes) - min(sizes) <= 1

    await env.bell.until(is_balanced, f"{len(members) + 1} members share the topic", env.limit)
    return shares()


async def mix(
    env: RealEnvironment, client: Callable[[RealEnvironment, str], Other], protocol: str, leader: str
) -> None:
    """One member of each library, then a second one of asyncgroup, then the other client leaves."""
    if client is KafkaPython:
        kafka_python()  # first imported here: in the thread its warnings would be errors
    other = InThread(lambda: client(env, protocol))
    try:
        if leader == "theirs":
            other.start()
            await env.bell.until(lambda: other.assigned == PARTITIONS, "the other alone", env.limit)
        ann = await env.member("ann", assignors=(protocol,))
        if leader == "ours":
            await env.settled(ann)
            other.start()
        both = await shared(env, ann, other=other)
        assert ann.session is not None
        assert ann.session.is_leader is (leader == "ours")

        bob = await env.member("bob", assignors=(protocol,))
        three = await shared(env, ann, bob, other=other)
        if protocol == "sticky" and leader == "ours":
            assert three[0] <= both[0], "ann keeps her partitions"
            assert three[2] <= both[1], "kafka-python keeps its partitions"
    finally:
        await other.stop()
    group = await env.settled(ann, bob)
    assert [len(topics[env.topic]) for topics in group.assignment.values()] == [2, 2]
    if protocol == "sticky":
        assert three[0] <= ours_has(ann, env)
        assert three[1] <= ours_has(bob, env)


CLIENTS: dict[str, tuple[Callable[[RealEnvironment, str], Other], str]] = {
    "kafka-python-sticky": (KafkaPython, "sticky"),
    "confluent-range": (Confluent, "range"),
    "confluent-roundrobin": (Confluent, "roundrobin"),
}
CASES = {
    f"{name}-{leader}": (*client, leader) for name, client in CLIENTS.items() for leader in ("ours", "theirs")
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(
    request: pytest.FixtureRequest, apache_kafka: RunningKafka, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ConcurrentStories]:
    """Run all selected cases concurrently: they mostly wait for the other client."""

    async def tell(case: str) -> None:
        async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path_factory.mktemp("mixed")) as env:
            await mix(env, *CASES[case])

    async with ConcurrentStories.of(request, CASES, tell, AT_ONCE) as told:
        yield told


@pytest.mark.parametrize("case", CASES)
async def test_a_mixed_group(stories: ConcurrentStories, case: str) -> None:
    await stories.wait(case)
