"""A group moves from the classic protocol to the consumer protocol and back while its members are replaced, on both brokers.

They are ours, Java's and librdkafka's, of either protocol; at every moment one of them has each partition, and every record
is handled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from asyncgroup.broker import EmbeddedCluster
from tests.interop.cooperative_peers import CooperativePeer
from tests.real.support import RunningKafka
from tests.stories.environment import CONSUMER
from tests.stories.real import RealEnvironment
from tests.stories.sharing import are_described, are_shared_evenly
from tests.stories.traffic import completed_traffic

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

PARTITIONS = range(4)


class Ours(Handler):
    """Our member; it marks each record and notes it."""

    def __init__(self, env: RealEnvironment, name: str, protocol: str) -> None:
        self.env = env
        self.name = name
        self.handled: list[tuple[int, int]] = []
        self.sessions: list[Session] = []
        config = {"assignors": ("cooperative-sticky",)} if protocol == "classic" else CONSUMER
        options = ConsumerConfig(**env.config(name, **config))
        self.group = ConsumerGroup(env.bootstrap_servers, env.group_id, options, hooks=[env.bell])
        self._task: asyncio.Task[None] | None = None

    @property
    def assigned(self) -> set[int]:
        session = self.group.session
        return {tp.partition for tp in session.partitions} if session is not None else set()

    async def setup(self, session: Session) -> None:
        self.sessions.append(session)

    async def consume_claim(self, _session: Session, claim: Claim) -> None:
        async for record in claim:
            self.handled.append((record.partition, record.offset))
            claim.mark(record)
            self.env.bell.ring()

    async def start(self) -> None:
        await self.group.__aenter__()
        self._task = asyncio.create_task(self.group.run(self.env.topic, self), name=self.name)

    async def stop(self) -> None:
        """Leave the group; raises what ended `run()`. Safe to call twice."""
        task, self._task = self._task, None
        await self.group.aclose()
        if task is not None:
            await task


class Crew:
    """The members of the group at present, and those that have left."""

    def __init__(self, env: RealEnvironment) -> None:
        self.env = env
        self.members: dict[str, Ours | CooperativePeer] = {}
        self.former: list[Ours | CooperativePeer] = []

    async def joins(self, name: str) -> None:
        """Start a member: ours is called `ours-classic` or `ours-consumer`, the others as in `cooperative_peers`."""
        if name.startswith("ours"):
            member: Ours | CooperativePeer = Ours(self.env, name, name.partition("-")[2])
            self.members[name] = member
            await member.start()
        else:
            member = self.members[name] = CooperativePeer(name, self.env.bell.ring)
            await member.start(self.env.bootstrap_servers, self.env.topic, self.env.group_id)

    async def leaves(self, name: str) -> None:
        member = self.members.pop(name)
        self.former.append(member)
        await member.stop()

    async def shared(self, kind: str) -> None:
        """Wait until the members share the partitions evenly, in a group of this protocol, and the coordinator agrees."""
        env = self.env

        async def is_shared() -> bool:
            parts = [member.assigned for member in self.members.values()]
            if not are_shared_evenly(PARTITIONS, parts):
                return False
            describe = env.admin.describe if kind == "classic" else env.admin.describe_consumers
            return are_described(parts, await describe(env.group_id), env.topic)

        names = ", ".join(self.members)
        await env.bell.until_known(is_shared, f"a {kind} group shared by {names}", env.limit)

    async def all_handled(self) -> None:
        """Wait until every record was handled; our members handle none twice."""
        env = self.env
        wanted = {(tp.partition, offset) for tp, count in env.produced.items() for offset in range(count)}
        everyone = [*self.members.values(), *self.former]
        await env.bell.until(
            lambda: wanted <= {record for member in everyone for record in member.handled},
            f"all {len(wanted)} records",
            env.limit,
        )
        ours = Counter(record for member in everyone if isinstance(member, Ours) for record in member.handled)
        assert set(ours.values()) == {1}

    async def stop(self) -> None:
        for name in list(self.members):
            await self.leaves(name)


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
    crew = Crew(env)
    try:
        async with completed_traffic(env, PARTITIONS):
            for leaves, joins, kind in TURNS:
                if leaves:
                    await crew.leaves(leaves)
                await crew.joins(joins)
                await crew.shared(kind)
                await asyncio.sleep(0.5)
        await crew.all_handled()
        sessions = [len(member.sessions) for member in crew.former if isinstance(member, Ours)]
        assert sessions == [1, 1], "the sessions of our members last while the group changes its protocol"
        await env.all_committed()
    finally:
        await crew.stop()


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


async def test_a_group_moves_between_the_protocols_on_a_real_kafka(
    apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as env:
        await move(env)
