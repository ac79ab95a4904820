"""Random test: tasks read each row once while leaders move, nodes die and responses are lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.testing import VirtualTimeLoop
from tests.broker.internals import log_of
from tests.broker.transactional import Writer
from tests.profiles import thinned
from tests.spark.source.reading import TOPIC, by_partition, fill, part, worker

PARTITIONS = 5
FAULTS = (
    "NOT_LEADER_OR_FOLLOWER",
    "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
    "UNKNOWN_TOPIC_ID",
)


def write(cluster: EmbeddedCluster, rng: random.Random) -> dict[int, list[int]]:
    """Write logs of many kinds; return the offsets of committed records by partition."""
    committed: dict[int, list[int]] = {}
    for number in range(PARTITIONS):
        log = log_of(cluster, TOPIC, number)
        writers = [Writer(log, 10 + which) for which in range(2)]
        mine = committed[number] = []
        for _ in range(rng.randrange(3, 25)):
            if rng.random() < 0.6:
                count = rng.randrange(1, 60)
                mine += range(log.end_offset, log.end_offset + count)
                codec = rng.choice(["none", "none", "lz4", "zstd"])
                fill(
                    cluster,
                    count,
                    partition=number,
                    per_batch=rng.randrange(1, 40),
                    size=rng.randrange(8, 900),
                    codec=codec,
                )
                continue
            writer = rng.choice(writers)
            first = writer.write(*(b"v" * rng.randrange(50) for _ in range(rng.randrange(1, 9))))
            written = range(first, log.end_offset)
            if rng.random() < 0.5:
                writer.commit()
                mine += written
            else:
                writer.abort()
    return committed


async def disturb(cluster: EmbeddedCluster, rng: random.Random) -> None:
    """Inject a fault every few milliseconds, for a while; start all nodes at the end."""
    for _ in range(40):
        await asyncio.sleep(rng.expovariate(50))
        number, node = rng.randrange(PARTITIONS), rng.randrange(1, 4)
        alive = [one for one, held in cluster.nodes.items() if held.running]
        match rng.randrange(6):
            case 0 if node in alive:
                cluster.move_leader(TOPIC, number, node)
            case 1 if len(alive) > 1:
                await cluster.stop_node(node)
            case 2:
                await cluster.start_node(node)
            case 3:
                cluster.faults.on("Fetch", node=node).disconnect(
                    rng.choice(["before", "after", "mid-frame"])
                ).optional()
            case 4:
                cluster.faults.on("Fetch", node=node).error(rng.choice(FAULTS)).optional()
            case _:
                cluster.slow_node(node, rng.choice([0.002, 0.002, 0.05]))
    for node in cluster.nodes:
        await cluster.start_node(node)


def some_ranges(cluster: EmbeddedCluster, rng: random.Random) -> list[OffsetRange]:
    """Return ranges of all partitions, some split in two."""
    found = []
    for number in rng.sample(range(PARTITIONS), PARTITIONS):
        end = cluster.partition(TOPIC, number).log_end_offset
        start, middle, stop = sorted(rng.randrange(end + 1) for _ in range(3))
        found += (
            [part(start, stop, number)]
            if rng.random() < 0.6
            else [part(start, middle, number), part(middle, stop, number)]
        )
    return found


async def storm(seed: int) -> None:
    rng = random.Random(seed)
    async with EmbeddedCluster(3, seed=seed) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        committed = write(cluster, rng)
        if gaps := rng.random() < 0.3:
            cluster.compact(TOPIC)
        level = rng.choice(["read_uncommitted", "read_committed"])
        options: dict[str, Any] = {
            "fetch_bytes": rng.choice([500, 5_000, 50_000, 4 << 20]),
            "config": {"isolation_level": level, "request_timeout": 2.0},
        }
        for node in cluster.nodes:
            cluster.slow_node(node, 0.002)
        disturbing = asyncio.create_task(disturb(cluster, rng))
        async with worker(cluster, **options) as one:
            while not disturbing.done():
                ranges = some_ranges(cluster, rng)
                rows = by_partition(await one.rows(*ranges))
                for number in range(PARTITIONS):
                    held = {record.offset for record in cluster.records(TOPIC, number)}
                    if level == "read_committed":
                        held &= set(committed[number])
                    wanted = [
                        o for r in ranges if r.partition == number for o in range(r.start, r.end) if o in held
                    ]
                    assert rows.get(number, []) == wanted, (seed, number, gaps, level)
        await disturbing


def run(seed: int) -> None:
    loop = VirtualTimeLoop(max_virtual_time=36_000)
    try:
        loop.run_until_complete(storm(seed))
    finally:
        loop.close()


@pytest.mark.parametrize("seed", thinned(range(8)))
def test_each_row_once(seed: int) -> None:
    run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 400, 20))
def test_each_row_once_for_many_seeds(first: int) -> None:
    for seed in range(1000 + first, 1020 + first):
        run(seed)
