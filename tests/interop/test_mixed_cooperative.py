"""A cooperative group shared with Java, librdkafka, franz-go and sarama, each of them leading once, on both brokers.

What our member retains is consumed all the time, in one session; every record is handled.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from asyncgroup.broker import EmbeddedCluster
from tests.interop.cooperative_peers import PEERS, CooperativePeer
from tests.profiles import thinned
from tests.real.concurrent_stories import ConcurrentStories
from tests.real.support import RunningKafka
from tests.stories.real import RealEnvironment
from tests.stories.sharing import are_described, are_shared_evenly
from tests.stories.traffic import completed_traffic

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = range(4)

LONGEST_GAP = 2.0
"""Seconds between two records of a retained partition on a busy machine; alone they are 0.05 apart."""

AT_ONCE = 2
"""The number of groups that run concurrently."""


class Reader(Handler):
    """Marks each record; notes when it was handled, and the claims and sessions."""

    def __init__(self, env: RealEnvironment) -> None:
        self.env = env
        self.handled: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.claims: list[int] = []
        self.sessions: list[Session] = []

    async def setup(self, session: Session) -> None:
        self.sessions.append(session)

    async def consume_claim(self, _session: Session, claim: Claim) -> None:
        self.claims.append(claim.partition)
        async for record in claim:
            self.handled[record.partition].append((asyncio.get_running_loop().time(), record.offset))
            claim.mark(record)
            self.env.bell.ring()


class Ours:
    """Our member."""

    def __init__(self, env: RealEnvironment, name: str) -> None:
        self.env = env
        self.name = name
        self.reader = Reader(env)
        self.is_leader = False
        config = env.config(name, assignors=("cooperative-sticky",))
        self.group = ConsumerGroup(
            env.bootstrap_servers, env.group_id, ConsumerConfig(**config), hooks=[env.bell, self]
        )
        self._task: asyncio.Task[None] | None = None

    def on_join(self, _group_id: str, _member_id: str, _generation_id: int, is_leader: bool) -> None:
        self.is_leader = is_leader

    @property
    def assigned(self) -> set[int]:
        session = self.group.session
        return {tp.partition for tp in session.partitions} if session is not None else set()

    async def start(self) -> None:
        await self.group.__aenter__()
        self._task = asyncio.create_task(self.group.run(self.env.topic, self.reader), name=self.name)

    async def stop(self) -> None:
        """Leave the group; raises what ended `run()`. Safe to call twice."""
        task, self._task = self._task, None
        await self.group.aclose()
        if task is not None:
            await task


async def shared(env: RealEnvironment, *members: Ours | CooperativePeer) -> None:
    """Wait until the members share the partitions evenly, and the coordinator says the same."""

    async def is_shared() -> bool:
        parts = [member.assigned for member in members]
        if not are_shared_evenly(PARTITIONS, parts):
            return False
        return are_described(parts, await env.admin.describe(env.group_id), env.topic)

    names = ", ".join(member.name for member in members)
    await env.bell.until_known(is_shared, f"the group shared by {names}", env.limit)


async def share(env: RealEnvironment, client: str, leader: str) -> None:
    """The first member leads; ours and the other one share, another of ours joins, the other one leaves."""
    ann, bob = Ours(env, "ann"), Ours(env, "bob")
    other = CooperativePeer(client, env.bell.ring)
    start_other = partial(other.start, env.bootstrap_servers, env.topic, env.group_id)
    try:
        async with completed_traffic(env, PARTITIONS):
            if leader == "theirs":
                await start_other()
                await shared(env, other)
                await ann.start()
            else:
                await ann.start()
                await shared(env, ann)
                await flows(ann)
                await start_other()
            await shared(env, ann, other)
            assert ann.is_leader is (leader == "ours")
            retained = set(ann.assigned)
            both_at = asyncio.get_running_loop().time()
            await flows(ann)

            await bob.start()
            await shared(env, ann, bob, other)
            retained &= ann.assigned
            assert retained
            await flows(ann, bob)

            await other.stop()
            await shared(env, ann, bob)
            assert retained <= ann.assigned
            await flows(ann, bob)
        await all_handled(env, ann, bob, other)
        (session,) = ann.reader.sessions
        assert ann.group.session is session, "one session over all rebalances"
        assert len(bob.reader.sessions) == 1
        check_retained(ann, retained, both_at)
        check_handed_over(ann, bob, other, first=leader == "ours")
        await env.all_committed()
    finally:
        await other.stop()
        await ann.stop()
        await bob.stop()


async def flows(*members: Ours) -> None:
    """Wait until each partition that these members have has had some more records."""
    wanted = {
        (member, number): len(member.reader.handled[number]) + 5
        for member in members
        for number in member.assigned
    }
    await members[0].env.bell.until(
        lambda: all(len(member.reader.handled[n]) >= count for (member, n), count in wanted.items()),
        "records of the partitions that are assigned",
        members[0].env.limit,
    )


async def all_handled(env: RealEnvironment, ann: Ours, bob: Ours, other: CooperativePeer) -> None:
    """Wait until every record was handled by a member."""
    wanted = {(tp.partition, offset) for tp, count in env.produced.items() for offset in range(count)}

    def is_done() -> bool:
        ours = {
            (number, offset)
            for member in (ann, bob)
            for number, records in member.reader.handled.items()
            for _, offset in records
        }
        return wanted <= ours | set(other.handled)

    await env.bell.until(is_done, f"all {len(wanted)} records", env.limit)


def check_retained(ann: Ours, retained: set[int], since: float) -> None:
    """Check that each retained partition had one claim, each record once, and no gap that shows a stop."""
    for number in retained:
        records = ann.reader.handled[number]
        offsets = [offset for _, offset in records]
        assert ann.reader.claims.count(number) == 1
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        gaps = [after - before for (before, _), (after, _) in pairwise(records) if before >= since]
        assert max(gaps) < LONGEST_GAP, (number, max(gaps))


def check_handed_over(ann: Ours, bob: Ours, other: CooperativePeer, *, first: bool) -> None:
    """Check that our members handle no record twice, and that the other one continues where ann ended, if she was first."""
    for number in PARTITIONS:
        both = [offset for member in (ann, bob) for _, offset in member.reader.handled[number]]
        assert len(both) == len(set(both)), number
    if not first:
        return
    starts: dict[int, int] = {}
    for number, offset in other.handled:
        starts.setdefault(number, offset)
    assert len(starts) == 2
    for number, start in starts.items():
        before = {offset for _, offset in ann.reader.handled[number] if offset < start}
        assert before == set(range(start)), number


CASES: dict[str, Any] = {
    f"{client}-{leader}-lead": (client, leader) for client in PEERS for leader in ("ours", "theirs")
}
ON_EMBEDDED: Final = thinned(CASES, every=4)
ON_KAFKA: Final = thinned(reversed(CASES), every=4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded(
    request: pytest.FixtureRequest, kafka_at_hand: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ConcurrentStories]:
    """The stories on the embedded broker."""

    async def tell(case: str) -> None:
        async with (
            EmbeddedCluster(1) as cluster,
            RealEnvironment(cluster.bootstrap_servers, tmp_path_factory.mktemp("mixed")) as env,
        ):
            await share(env, *CASES[case])

    async with ConcurrentStories.of(request, ON_EMBEDDED, tell, AT_ONCE) as told:
        yield told


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(
    request: pytest.FixtureRequest, apache_kafka: RunningKafka, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ConcurrentStories]:
    """The stories on a real Kafka."""

    async def tell(case: str) -> None:
        async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path_factory.mktemp("mixed")) as env:
            await share(env, *CASES[case])

    async with ConcurrentStories.of(request, ON_KAFKA, tell, AT_ONCE) as told:
        yield told


@pytest.mark.parametrize("case", ON_EMBEDDED)
async def test_a_mixed_group_on_the_embedded_broker(embedded: ConcurrentStories, case: str) -> None:
    await embedded.wait(case)


@pytest.mark.full
@pytest.mark.parametrize("case", ON_KAFKA)
async def test_a_mixed_group_on_a_real_kafka(real: ConcurrentStories, case: str) -> None:
    await real.wait(case)
