"""Resets of offsets beside Kafka's own `ConsumerGroupCommand` on one Kafka: random cases, active groups, leaderless partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session, TopicPartition
from asyncgroup.admin import Admin, NewTopic, ResetRefused
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.java_tools import JavaTools
from tests.real.reset_cases import ACTIVE, LEADERLESS, NO_ROWS, ResetScene, scene, unique
from tests.real.support import IS_NEWEST_RELEASE, NEEDS_KAFKA_4, RunningKafka, require_newest_release

CASES = 10
SEEDS = 20


@asynccontextmanager
async def topics(
    servers: str, tools: JavaTools, path: Path, nodes: Sequence[int] = ()
) -> AsyncIterator[ResetScene]:
    """Logs that begin late, are empty, or had all their records deleted; names of 24 and 25 characters, which CSV quotes."""
    async with Admin(servers) as admin:
        made = scene(admin, tools, servers, path / "offsets.csv")
        plain, short, long = unique("orders"), unique("just-quoted-no-"), unique("just-quoted-yes-")
        assert (len(short), len(long)) == (24, 25)
        deleted = {TopicPartition(plain, 0): 5, TopicPartition(short, 0): None}
        await made.create({plain: [14, 6, 0], short: [9], long: [3, 12]}, deleted, nodes)
        made.missing = [TopicPartition(plain, 9), TopicPartition("nothing", 0)]
        yield made


@asynccontextmanager
async def member(servers: str, group_id: str, topic: str, protocol: str) -> AsyncIterator[None]:
    """Run a member; it has partitions in the block and has left after it."""
    joined = asyncio.Event()

    async def wait(_: Session, claim: Claim) -> None:
        joined.set()
        await claim.wait_ended()

    config = ConsumerConfig(group_protocol=protocol)  # type: ignore[arg-type]
    async with ConsumerGroup(servers, group_id, config) as group, asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run(topic, wait))
        await joined.wait()
        yield
        await group.aclose()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_resets(
    apache_kafka: RunningKafka, java_tools: JavaTools, tmp_path: Path, seed: int
) -> None:
    protocol = "consumer" if IS_NEWEST_RELEASE and seed % 4 != 1 else "classic"
    await random_resets(apache_kafka.bootstrap_servers, java_tools, tmp_path, seed, protocol)


@pytest.mark.full
async def test_random_resets_on_an_old_kafka(
    kafka_39: RunningKafka, java_tools: JavaTools, tmp_path: Path
) -> None:
    await random_resets(kafka_39.bootstrap_servers, java_tools, tmp_path, 1, "classic")


async def random_resets(servers: str, tools: JavaTools, path: Path, seed: int, protocol: str) -> None:
    """Groups that do not exist, have only commits, or had members; and one that has a member."""
    rng = random.Random(seed)
    async with topics(servers, tools, path) as made, AsyncExitStack() as stack:
        topic = next(iter(made.ends)).topic
        ours, theirs, active = (unique(name) for name in ("ours", "theirs", "active"))
        await asyncio.gather(*(once(servers, group_id, topic, protocol) for group_id in (ours, theirs)))
        await stack.enter_async_context(member(servers, active, topic, protocol))
        outcomes = []
        for _ in range(CASES):
            kind = rng.choice(["new", "new", "former", "former", "active"])
            if kind == "active":
                assert await made.compare(made.case(rng), active, active) in (ACTIVE, NO_ROWS)
                continue
            pair = (ours, theirs) if kind == "former" else (unique("ours"), unique("theirs"))
            outcomes.append(await made.compare(made.case(rng), *pair))
        assert "" in outcomes


async def once(servers: str, group_id: str, topic: str, protocol: str) -> None:
    async with member(servers, group_id, topic, protocol):
        pass


@pytest.mark.full
async def test_random_resets_while_some_partitions_have_no_leader(
    apache_kafka_3: ApacheKafka, java_tools: JavaTools, tmp_path: Path
) -> None:
    rng = random.Random(1)
    servers = apache_kafka_3.bootstrap_servers
    async with topics(servers, java_tools, tmp_path, (1, 2, 3)) as made:
        described = (await made.admin.describe_topics({tp.topic for tp in made.ends})).raise_first()
        leaders = {
            (name, part.partition): part.leader for name in described for part in described[name].partitions
        }
        made.missing += [tp for tp in made.ends if leaders[tp] == 2]
        await asyncio.to_thread(apache_kafka_3.stop_node, 2)
        try:
            outcomes = [
                await made.compare(made.case(rng), unique("ours"), unique("theirs")) for _ in range(2 * CASES)
            ]
        finally:
            await asyncio.to_thread(apache_kafka_3.start_node, 2)
    assert {"", LEADERLESS} <= set(outcomes)


@pytest.mark.full
async def test_a_share_group_is_refused(
    apache_kafka: RunningKafka, java_tools: JavaTools, tmp_path: Path
) -> None:
    """The command plans a reset, and fails when it commits."""
    require_newest_release("share groups")
    servers, group_id = apache_kafka.bootstrap_servers, unique("share")
    async with topics(servers, java_tools, tmp_path) as made:
        topic = next(iter(made.ends)).topic
        reader = ("--bootstrap-server", servers, "--group", group_id, "--topic", topic)
        await java_tools("kafka-console-share-consumer", *reader, "--timeout-ms", "1000")
        output = await java_tools(
            "kafka-consumer-groups", *reader, "--reset-offsets", "--to-latest", "--execute"
        )
        assert "GroupIdNotFoundException" in output.text
        with pytest.raises(ResetRefused, match="type share"):
            await made.admin.plan_reset(group_id, "latest", topics=[topic])


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_a_member_that_joins_after_the_plan(apache_kafka: RunningKafka, protocol: str) -> None:
    servers, name = apache_kafka.bootstrap_servers, unique("late")
    async with Admin(servers) as admin:
        (await admin.create_topics({name: NewTopic(2, 1)})).raise_first()
        plan = await admin.plan_reset(name, "latest", topics=[name])
        async with member(servers, name, name, protocol):
            done = await admin.reset_offsets(plan)
            assert list(done.errors) == [TopicPartition(name, 0), TopicPartition(name, 1)]
            for error in done.errors.values():
                assert "UNKNOWN_MEMBER_ID (25): state Stable: stop its members first" in str(error)
        assert (await admin.reset_offsets(plan)).raise_first() == plan.offsets
