"""Random tests: a minute of fetch failures of all kinds, by seed; each record must be delivered once, in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.fetch_outcome import FETCH_ACTIONS, FetchAction
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import AsyncGroupError
from asyncgroup.testing import current_network
from tests.consumer.brokers import client, fetches, fill, now
from tests.profiles import long_family

PARTITIONS = 4
CODES = [
    code for code, action in FETCH_ACTIONS.items() if action in (FetchAction.REDISPATCH, FetchAction.FAIL)
]


async def read_on(consumer: PartitionConsumer, found: list[int], rng: random.Random) -> None:
    """A reader that ignores errors and is slow at times; it reads single records or batches."""
    batches = consumer.batches(max_records=7)
    while not consumer.ended:
        try:
            if rng.random() < 0.5:
                found.append((await anext(consumer)).offset)
            else:
                found += [record.offset for record in await anext(batches)]
        except StopAsyncIteration:
            return
        except AsyncGroupError:
            continue
        if rng.random() < 0.1:
            await asyncio.sleep(rng.uniform(0, 0.5))


async def storm(brokers: EmbeddedCluster, rng: random.Random) -> None:
    for _ in range(60):
        fault = brokers.faults.on(
            rng.choice(["Fetch", "Fetch", "Fetch", "Metadata"]),
            nth=rng.randrange(1, 4),
            times=rng.randrange(1, 5),
        )
        match rng.randrange(5):
            case 0:
                fault.error(rng.choice(CODES))
            case 1:
                fault.disconnect(rng.choice(["before", "after", "mid-frame"]))
            case 2:
                fault.delay(rng.uniform(0, 3))
            case 3:
                fault.drop()
            case 4:
                brokers.move_leader("orders", rng.randrange(PARTITIONS), rng.randrange(1, 3))
        for partition in range(PARTITIONS):
            fill(brokers, "orders", partition, batches=2, records=rng.randrange(1, 6), size=50)
        await asyncio.sleep(rng.uniform(0, 2))


@pytest.mark.parametrize("seed", long_family(range(12)))
async def test_each_record_once_and_in_order(brokers: EmbeddedCluster, seed: int) -> None:
    rng = random.Random(seed)
    current_network().latency = 0.002
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    async with client(
        brokers,
        request_timeout=4.0,
        buffer_bytes=8000,
        max_partition_fetch_bytes=1000,
        fetch_retry_max=rng.choice([None, 3]),
    ) as reader:
        consumers = reader.read("orders", *range(PARTITIONS))
        tasks = [
            asyncio.ensure_future(read_on(consumer, offsets, random.Random(f"{seed}-{consumer.partition}")))
            for consumer, offsets in zip(consumers, found, strict=True)
        ]
        await storm(brokers, rng)
        brokers.faults.clear()
        healed, asked = now(), len(fetches(brokers))
        ends = [brokers.partition("orders", partition).log_end_offset for partition in range(PARTITIONS)]
        while [consumer.position for consumer in consumers] != ends:
            await asyncio.sleep(0.1)
            assert now() - healed < 60, (consumers, ends)
        for consumer in consumers:
            consumer._inner.end()
        await asyncio.gather(*tasks)
        assert asked < 20_000
    assert found == [list(range(end)) for end in ends]
