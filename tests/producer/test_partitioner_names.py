"""The partitioners by name: sarama's and librdkafka's hashes, and what records without a key get."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from asyncgroup.config import ProducerConfig
from asyncgroup.config.producer import PARTITIONERS
from asyncgroup.errors import InvalidRecordError
from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.producer import TimedRoundRobin, TopicPartitioner
from asyncgroup.producer.partitioners import StickyPartition, crc32_partition, fnv1a_partition, topic_rule
from tests.producer.support import TOPIC, stored, writing

# partitions among 3, 50 and 1000, computed by sarama 1.61.1: NewHashPartitioner and NewConsistentCRCHashPartitioner
SARAMA = {
    b"": ((0, 35, 35), (0, 0, 0)),
    b"a": ((0, 26, 76), (0, 7, 907)),
    b"foobar": ((0, 26, 576), (2, 19, 69)),
    b"1468509572224": ((2, 48, 648), (1, 25, 225)),  # FNV-1a: -2147483648 as a signed number
    b"eggs": ((2, 15, 865), (2, 30, 30)),
    b"order-17": ((0, 44, 194), (2, 20, 420)),
    b"\xff\xfe\x00": ((0, 44, 544), (1, 30, 780)),
    b"a-little-bit-long-string": ((1, 4, 104), (0, 4, 554)),
    b"SheetJS": ((0, 23, 823), (0, 26, 26)),
}


@pytest.mark.parametrize(("key", "expected"), SARAMA.items())
def test_saramas_vectors(key: bytes, expected: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    sizes = (3, 50, 1000)
    assert tuple(fnv1a_partition(key, size) for size in sizes) == expected[0]
    assert tuple(crc32_partition(key, size) for size in sizes) == expected[1]


def chosen(name: str, keys: Sequence[bytes | None], available: Sequence[int] = range(6)) -> list[int]:
    """Return the partitions, among 6, that the rule of a name gives to these keys; -1 for the sticky one."""
    rule = topic_rule(TOPIC, ProducerConfig(partitioner=name, linger=0.0), random.Random(1))

    def one(key: bytes | None) -> int:
        number = rule.key_partition(key, 6) if key is not None and rule.key_partition is not None else -1
        return number if number >= 0 or rule.choose is None else rule.choose(key, 6, available)

    return [one(key) for key in keys]


MURMUR2, FNV1A, CRC32 = (
    hash_of(b"k", 6) for hash_of in (partition_for_key, fnv1a_partition, crc32_partition)
)


@pytest.mark.parametrize(
    ("name", "expected"),  # with the keys b"k", b"", None
    [
        ("default", [MURMUR2, partition_for_key(b"", 6), -1]),
        ("murmur2_random", [MURMUR2, partition_for_key(b"", 6), -1]),
        ("murmur2", [MURMUR2, partition_for_key(b"", 6), partition_for_key(b"", 6)]),
        ("fnv1a_random", [FNV1A, fnv1a_partition(b"", 6), -1]),
        ("fnv1a", [FNV1A, fnv1a_partition(b"", 6), fnv1a_partition(b"", 6)]),
        ("consistent_random", [CRC32, -1, -1]),
        ("consistent", [CRC32, 0, 0]),
        ("sticky", [-1, -1, -1]),
        ("round_robin", [0, 1, 2]),
    ],
)
def test_keys_and_records_without_one(name: str, expected: list[int]) -> None:
    assert chosen(name, [b"k", b"", None]) == expected


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "key"), [("sticky", b"k"), ("sticky", b""), ("consistent_random", b"")])
async def test_records_whose_key_has_no_effect_share_batches(name: str, key: bytes) -> None:
    async with writing(partitions=3, partitioner=name, linger=10.0) as (_, producer):
        await producer.enqueue(TOPIC, b"the topic is looked up", key=key)
        await producer.flush()
        for number in range(100):
            await producer.enqueue(TOPIC, b"%d" % number, key=key)
        batches = list(producer._inner.accumulator.incomplete)
        await producer.flush()
    assert sum(batch.count for batch in batches) == 100
    assert len(batches) == 1


def test_every_name_has_a_rule() -> None:
    for name in PARTITIONERS:
        assert topic_rule(TOPIC, ProducerConfig(partitioner=name), random.Random(1))


def test_round_robin_uses_available_partitions_only() -> None:
    assert chosen("round_robin", [None] * 5, available=[1, 4]) == [1, 4, 1, 4, 1]


def test_random_uses_available_partitions_evenly() -> None:
    counts = Counter(chosen("random", [b"k", None] * 1000, available=[0, 2, 5]))
    assert set(counts) == {0, 2, 5}
    assert all(550 < count < 800 for count in counts.values())


def test_a_single_partition_keeps_the_keys_apart() -> None:
    places = chosen("single_partition", [None, b"k", None, None])
    assert places[0] == places[2] == places[3]
    assert places[1] == MURMUR2


def test_timed_round_robin_without_an_interval_changes_with_each_record() -> None:
    places = chosen("timed_round_robin", [None] * 7)
    assert [(place - places[0]) % 6 for place in places] == [0, 1, 2, 3, 4, 5, 0]


def test_a_partition_with_fewer_waiting_batches_is_the_more_likely() -> None:
    """The example of `BuiltInPartitioner.java`: queues of 0, 3 and 1 batches have the weights 4, 1 and 3."""
    sticky = StickyPartition(random.Random(1))
    counts = Counter(sticky.next_partition([7, 8, 9], [0, 3, 1]) for _ in range(8000))
    assert [round(counts[number] / 1000) for number in (7, 8, 9)] == [4, 1, 3]


@pytest.mark.usefixtures("no_asyncio_errors")
class TestProducers:
    async def test_timed_round_robin_switches_at_a_time_boundary(self) -> None:
        async with writing(linger=0.1, partitioner="timed_round_robin") as (_, producer):
            await asyncio.sleep(1 - asyncio.get_running_loop().time() % 1 + 0.01)
            seen = []
            for _ in range(13):
                futures = [producer.send_nowait(TOPIC, b"x") for _ in range(3)]
                seen.append({(await future).partition for future in futures})
                await asyncio.sleep(1 - asyncio.get_running_loop().time() % 1 + 0.01)
            assert all(len(partitions) == 1 for partitions in seen)
            numbers = [partitions.pop() for partitions in seen]
            assert [(number - numbers[0]) % 6 for number in numbers] == [*range(6), *range(6), 0]

    async def test_manual_needs_a_partition(self) -> None:
        async with writing(partitioner="manual") as (_, producer):
            for _ in range(2):  # before the topic is known, and after
                with pytest.raises(
                    InvalidRecordError, match=r"partition=None .*number, as partitioner='manual'"
                ):
                    await producer.send(TOPIC, b"x", key=b"k")
                assert (await producer.send(TOPIC, b"x", partition=3)).partition == 3
            assert "0 of 33554432 bytes" in repr(producer)

    async def test_an_own_object_has_a_state_for_each_topic(self) -> None:
        class EveryOther:
            def for_topic(self, topic: str) -> TopicPartitioner:
                asked.append(topic)
                count = 0

                def choose(_key: bytes | None, partitions: int, available: Sequence[int]) -> int:
                    nonlocal count
                    assert (partitions, list(available)) == (6, [0, 1, 2, 3, 4, 5])
                    count += 2
                    return count % 6

                return choose

        asked: list[str] = []
        async with writing(partitioner=EveryOther()) as (cluster, producer):
            cluster.create_topic("other", 6)
            for topic in (TOPIC, "other"):
                places = [(await producer.send(topic, b"x", key=b"k")).partition for _ in range(4)]
                assert places == [2, 4, 0, 2]
            assert asked == [TOPIC, "other"]

    async def test_an_own_timed_round_robin(self) -> None:
        partitioner = TimedRoundRobin(0, key_partition=None, rng=random.Random(1))
        async with writing(partitioner=partitioner) as (_, producer):
            assert len({(await producer.send(TOPIC, b"x", key=b"k")).partition for _ in range(6)}) == 6

    async def test_few_records_stay_in_one_partition_until_they_fill_a_batch(self) -> None:
        """KIP-794: by bytes, however many batches they are sent in."""
        async with writing(linger=0.0, batch_size=1000) as (_, producer):
            places = [(await producer.send(TOPIC, b"." * 79)).partition for _ in range(60)]  # 100 bytes each
            # the tenth record makes it 1,000 bytes: it is the first one in the next partition
            assert [n for n in range(1, 60) if places[n] != places[n - 1]] == list(range(9, 60, 9))

    async def test_a_slow_leader_does_not_get_more_than_its_share(self) -> None:
        """KIP-794: with a switch at each batch, a partition whose batches are sent late would get larger ones."""
        async with writing(
            nodes=3, partitions=3, linger=0.0, batch_size=2000, adaptive_partitioning=False
        ) as (cluster, producer):
            await producer.send(TOPIC, b"x", partition=0)
            slow = cluster.leader(TOPIC, 0)
            cluster.faults.on("Produce", node=slow, times=None).delay(0.5)
            for _ in range(900):
                await producer.enqueue(TOPIC, b"." * 100)
                await asyncio.sleep(0.005)
            await producer.flush()
            counts = [len(stored(cluster, partition)) for partition in range(3)]
            assert max(counts) < 1.5 * min(counts), counts

    async def test_adaptive_partitioning_avoids_a_slow_leader(self) -> None:
        async def share(**config: Any) -> float:
            async with writing(nodes=3, partitions=3, linger=0.0, batch_size=2000, **config) as (
                cluster,
                producer,
            ):
                await producer.send(TOPIC, b"x", partition=0)
                cluster.faults.on("Produce", node=cluster.leader(TOPIC, 0), times=None).delay(0.5)
                for _ in range(900):
                    await producer.enqueue(TOPIC, b"." * 100)
                    await asyncio.sleep(0.005)
                await producer.flush()
                return len(stored(cluster, 0)) / 901

        assert await share() < 0.7 * await share(adaptive_partitioning=False)
