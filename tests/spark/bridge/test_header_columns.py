"""Header columns of DataFrames: Spark's conversion works for any split of batches and any mix of headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings as rules, strategies as st

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.columns import arrow_schema
from asyncgroup.model import Batch, Record
from asyncgroup.spark import BatchId, ForeachBatch
from asyncgroup.spark.arrow import frame_schema
from asyncgroup.spark.bridge.frames import create_frame, resize_batches
from tests.profiles import examples, thinned
from tests.spark.bridge.fakes import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")

Mix = Callable[[int], list[tuple[str, bytes | None]]]

MIXES: dict[str, Mix] = {
    "none has headers": lambda _: [],
    "all have headers": lambda n: [("trace", b"%d" % n)],
    "every second": lambda n: [("trace", b"%d" % n)] if n % 2 else [],
    "the first only": lambda n: [("trace", b"1")] if n == 0 else [],
    "all but the first": lambda n: [("trace", b"1")] if n else [],
    "first half": lambda n: [("trace", b"%d" % n)] if n < 3_000 else [],
    "null values and repeated keys": lambda n: [("a", None), ("a", b"%d" % n), ("", b"")][: n % 4],
}


def batch(start: int, count: int, mix: Mix, partition: int = 0) -> Any:
    rows = [
        Record(TOPIC, partition, offset, 1_000, 0, None, b"v", mix(offset))
        for offset in range(start, start + count)
    ]
    return Batch(TOPIC, partition, rows).to_arrow(include_headers=True)


def as_spark_converts(batches: Sequence[Any]) -> Any:
    """Convert a table as `createDataFrame` does before the JVM gets it; needs no Java."""
    from pyspark.sql.pandas.types import _check_arrow_table_timestamps_localize

    schema = frame_schema(include_headers=True)
    return _check_arrow_table_timestamps_localize(pa.Table.from_batches(batches), schema, True, "UTC")


def check(chunks: list[Any], cores: int) -> None:
    parts = resize_batches(chunks, cores)
    for part in parts:
        part.validate(full=True)
        assert part.schema == arrow_schema(include_headers=True)
    expected = pa.Table.from_batches(chunks).to_pylist()
    assert as_spark_converts(parts).to_pylist() == expected


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("cores", thinned([7, 1, 2]))
def test_sparks_conversion_accepts_every_mix_of_headers(name: str, cores: int) -> None:
    check([batch(0, 6_001, MIXES[name])], cores)


@rules(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5_000), st.sampled_from(sorted(MIXES))), min_size=1, max_size=5),
    st.integers(1, 8),
    st.integers(0, 40),
)
def test_sparks_conversion_accepts_every_split_of_batches(
    shapes: list[tuple[int, str]], cores: int, skipped: int
) -> None:
    chunks, start = [], 0
    for count, name in shapes:
        made = batch(start, count, MIXES[name])
        # a batch may be a view already, of the rows before or after an offset
        chunks.append(made.slice(min(skipped, count - 1)))
        start += count
    check(chunks, cores)


def test_headers_are_not_copied() -> None:
    whole = batch(0, 8_000, lambda n: [("trace", b"x" * 100)] if n % 2 else [])
    parts = resize_batches([whole], 4)
    assert len(parts) > 1
    values = whole["headers"].values.field(1).buffers()[2].address
    assert {part["headers"].values.field(1).buffers()[2].address for part in parts} == {values}


# --- with a real Spark ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIXES)
def test_spark_reads_back_every_mix_of_headers(spark: SparkSession, name: str) -> None:
    mix = MIXES[name]
    frame = create_frame(
        spark, [batch(0, 3_000, mix), batch(3_000, 3_500, mix).slice(500), batch(0, 7, mix, 1)]
    )
    assert frame.rdd.getNumPartitions() > 1
    found = {
        (row.partition, row.offset): [
            (h.key, None if h.value is None else bytes(h.value)) for h in row.headers or ()
        ]
        for row in frame.select("partition", "offset", "headers").collect()
    }
    offsets = [(0, n) for n in (*range(3_000), *range(3_500, 6_500))] + [(1, n) for n in range(7)]
    assert found == {(partition, n): mix(n) for partition, n in offsets}


async def test_the_bridge_delivers_and_commits_records_with_and_without_headers(spark: SparkSession) -> None:
    count, mix = 9_000, MIXES["every second"]
    seen: list[tuple[int, int]] = []

    def store(df: Any, _batch_id: BatchId) -> None:
        with_headers = df.where(
            "size(headers) = 1 AND cast(cast(headers[0].value as string) as bigint) = offset"
        ).count()
        seen.append((df.count(), with_headers))

    config = ConsumerConfig(auto_offset_reset="earliest")
    async with EmbeddedCluster(1) as cluster:
        cluster.create_topic(TOPIC, 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(count):
                await producer.enqueue(TOPIC, b"v", headers=mix(number), partition=0)
        async with ConsumerGroup(cluster.bootstrap_servers, "g", config) as group:
            handler = ForeachBatch(spark, store, include_headers=True, max_rows=count, max_wait=5.0)
            run = asyncio.create_task(group.run(TOPIC, handler))
            async with asyncio.timeout(60):
                while (
                    sum(found.offset for found in cluster.group("g").offsets.values()) < count
                    and not run.done()
                ):
                    await asyncio.sleep(0.02)
            await group.aclose()
            await run
    assert (sum(rows for rows, _ in seen), sum(headed for _, headed in seen)) == (count, count // 2)
