"""Ranges are read exactly from various logs, and few other bytes are fetched; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark.source.executor.workers import read_ranges
from tests.broker.internals import complete_delayed_operations, log_of, partition_in
from tests.broker.transactional import Writer
from tests.spark.source.reading import TOPIC, by_partition, fetches, fill, now, part, settings, worker

pytestmark = pytest.mark.virtual(max_virtual_time=86_400)


# --- records read -----------------------------------------------------------------------------------------------------


async def test_rows_equal_the_records_of_the_log(brokers: EmbeddedCluster) -> None:
    fill(brokers, 100, headers=True)
    async with worker(brokers, include_headers=True) as one:
        rows = await one.rows(part(13, 87))
    assert [
        (row["offset"], row["key"], row["value"], row["topic"], row["partition"], row["timestampType"])
        for row in rows
    ] == [(r.offset, r.key, r.value, TOPIC, 0, 0) for r in brokers.records(TOPIC, 0)[13:87]]
    assert [row["timestamp"] for row in rows] == [r.time for r in brokers.records(TOPIC, 0)[13:87]]
    assert [row["headers"] for row in rows[:2]] == [[{"key": "n", "value": b"13"}], None]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_and_position_of_start_and_end(brokers: EmbeddedCluster, codec: str) -> None:
    fill(brokers, 50, per_batch=10, codec=codec)
    async with worker(brokers) as one:
        for start, end in [(0, 50), (0, 1), (49, 50), (10, 20), (9, 21), (13, 17), (20, 20)]:
            assert await one.offsets(part(start, end)) == list(range(start, end)), (start, end)


async def test_empty_ranges_make_no_request() -> None:
    assert list(read_ranges(settings("127.0.0.1:1"), [part(5, 5), part(7, 6)])) == []
    assert list(read_ranges(settings("127.0.0.1:1"), [])) == []


async def test_a_thousand_ranges_share_fetches(brokers: EmbeddedCluster) -> None:
    brokers.create_topic("many", 1000)
    for number in range(1000):
        fill(brokers, 5, partition=number, topic="many")
    async with worker(brokers) as one:
        rows = await one.rows(*(part(1, 4, number, "many") for number in range(1000)))
    assert by_partition(rows) == {number: [1, 2, 3] for number in range(1000)}
    assert fetches(brokers) < 40


async def test_gaps_of_compaction_and_markers_at_the_ends(brokers: EmbeddedCluster) -> None:
    fill(brokers, 100, keys=7)
    brokers.compact(TOPIC)
    left = [record.offset for record in brokers.records(TOPIC, 0)]
    assert len(left) < 20
    writer = Writer(log_of(brokers, TOPIC, 0), 77)
    for _ in range(3):
        writer.write(b"a", b"b")
        writer.commit()
    async with worker(brokers) as one:
        assert await one.offsets(part(0, 109)) == [*left, 100, 101, 103, 104, 106, 107]
        assert await one.offsets(part(0, 50)) == [offset for offset in left if offset < 50]
        assert await one.offsets(part(102, 103)) == [], "only a transaction marker"
        assert await one.offsets(part(1, left[0])) == []


async def test_transactions(brokers: EmbeddedCluster) -> None:
    log = log_of(brokers, TOPIC, 0)
    first, second = Writer(log, 1), Writer(log, 2)
    first.write(b"0", b"1")
    second.write(b"2")
    first.abort()
    second.write(b"4")
    second.commit()
    first.write(b"6")
    first.commit()
    committed = {"isolation_level": "read_committed"}
    async with worker(brokers) as one, worker(brokers, config=committed) as careful:
        assert await one.offsets(part(0, 8)) == [0, 1, 2, 4, 6]
        assert await careful.offsets(part(0, 8)) == [2, 4, 6]
        assert await careful.offsets(part(1, 5)) == [2, 4]
        # aborted records that were fetched ahead must not be returned
        assert await careful.offsets(part(5, 8)) == [6]


async def test_an_open_transaction_is_waited_for(brokers: EmbeddedCluster) -> None:
    writer = Writer(log_of(brokers, TOPIC, 0), 1)
    fill(brokers, 3)
    writer.write(b"open")

    async def commit_later() -> None:
        await asyncio.sleep(20)
        writer.commit()
        complete_delayed_operations(brokers, partition_in(brokers, TOPIC, 0))

    committing = asyncio.create_task(commit_later())
    async with worker(brokers, config={"isolation_level": "read_committed"}) as one:
        assert await one.offsets(part(0, 4)) == [0, 1, 2, 3]
    await committing
    assert now() == pytest.approx(20, abs=2)


async def test_records_larger_than_a_fetch(brokers: EmbeddedCluster) -> None:
    fill(brokers, 5, per_batch=1, size=300_000)
    async with worker(brokers, fetch_bytes=1000) as one:
        rows = await one.rows(part(1, 4))
    assert [(row["offset"], len(row["value"])) for row in rows] == [(n, 300_000) for n in (1, 2, 3)]


async def test_large_records_make_small_batches(brokers: EmbeddedCluster) -> None:
    fill(brokers, 60, per_batch=1, size=1_000_000)
    async with worker(brokers) as one:
        sizes = [made.num_rows async for made in one.batches(part(0, 60))]
    assert sum(sizes) == 60
    assert max(sizes) <= 20


async def test_many_small_rows_make_batches_of_thousands(brokers: EmbeddedCluster) -> None:
    fill(brokers, 50_000, per_batch=500)
    async with worker(brokers) as one:
        sizes = [made.num_rows async for made in one.batches(part(0, 50_000))]
    assert sum(sizes) == 50_000
    assert all(4_000 <= size <= 10_000 for size in sizes[:-1])


async def test_a_huge_batch_is_split(brokers: EmbeddedCluster) -> None:
    fill(brokers, 25_000, per_batch=25_000, size=8, codec="lz4")
    async with worker(brokers) as one:
        sizes = [made.num_rows async for made in one.batches(part(1, 24_999))]
    assert sum(sizes) == 24_998
    assert all(4_000 <= size <= 10_000 for size in sizes)


# --- fetches ----------------------------------------------------------------------------------------------------------


def fetched_bytes(cluster: EmbeddedCluster) -> list[int]:
    return [
        len(data.records or b"")
        for exchange in cluster.history.of("Fetch")
        for topic in exchange.response.responses
        for data in topic.partitions
    ]


async def test_little_is_fetched_beyond_the_end() -> None:
    async with EmbeddedCluster(history_payloads=True) as brokers:
        brokers.create_topic(TOPIC, 1)
        fill(brokers, 30_000, per_batch=20, size=100)
        whole = sum(len(record.value or b"") + 20 for record in brokers.records(TOPIC, 0))
        async with worker(brokers, fetch_bytes=400_000) as one:
            assert len(await one.offsets(part(0, 15_000))) == 15_000
            sizes = fetched_bytes(brokers)
            assert max(sizes) <= 400_000
            assert sum(sizes) < whole / 2 * 1.2
            brokers.history.clear()
            assert len(await one.offsets(part(20_000, 20_100))) == 100
            assert sum(fetched_bytes(brokers)) < 100_000, "the mean size of records is known by now"


async def test_records_fetched_after_the_end_are_not_fetched_again(brokers: EmbeddedCluster) -> None:
    fill(brokers, 1000, per_batch=7)
    async with worker(brokers) as one:
        assert await one.offsets(part(3, 500)) == list(range(3, 500))
        asked = fetches(brokers)
        assert await one.offsets(part(500, 900)) == list(range(500, 900))
        assert fetches(brokers) == asked
        assert await one.offsets(part(10, 20)) == list(range(10, 20)), "other offsets"
        assert fetches(brokers) == asked + 1
        assert await one.offsets(part(900, 1000)) == list(range(900, 1000))


async def test_records_fetched_ahead_expire(brokers: EmbeddedCluster) -> None:
    fill(brokers, 100)
    async with worker(brokers) as one:
        await one.offsets(part(0, 50))
        await asyncio.sleep(100)
        asked = fetches(brokers)
        assert await one.offsets(part(50, 100)) == list(range(50, 100))
        assert fetches(brokers) > asked


async def test_the_next_fetch_is_sent_before_the_last_is_read(brokers: EmbeddedCluster) -> None:
    fill(brokers, 400, size=1000)
    async with worker(brokers, fetch_bytes=100_000) as one:
        seen = []

        async def look(_step: int) -> None:
            await asyncio.sleep(0.01)  # decoding takes a while
            seen.append(fetches(brokers))

        assert len(await one.offsets(part(0, 400), between=look)) == 400
    assert seen[:3] == [2, 3, 4]


async def test_the_next_range_is_requested_before_the_last_is_read() -> None:
    async with EmbeddedCluster(history_payloads=True) as brokers:
        brokers.create_topic(TOPIC, 2)
        for number in range(2):
            fill(brokers, 100, partition=number, per_batch=100, size=1000)

        def asked() -> list[int]:
            """Return the partition of each Fetch."""
            return [
                part.partition
                for exchange in brokers.history.of("Fetch")
                for topic in exchange.request.topics
                for part in topic.partitions
            ]

        async with worker(brokers, fetch_bytes=150_000) as one:
            seen = []

            async def look(_step: int) -> None:
                await asyncio.sleep(0.01)  # decoding takes a while
                seen.append(asked())

            rows = await one.rows(part(0, 100), part(0, 100, 1), between=look)
        assert by_partition(rows) == {0: list(range(100)), 1: list(range(100))}
        assert seen[0] == [0, 1], (
            "the first range was decoded while the fetch of the second one was in flight"
        )
