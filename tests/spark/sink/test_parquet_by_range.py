"""ParquetByRange with a real Spark on a local disk."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from asyncgroup.errors import ConfigError
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.sink.parquet_by_range import ParquetByRange
from asyncgroup.spark.sink.range_files import HadoopFiles, StorageError
from asyncgroup.spark.sink.range_layout import StoredRange
from tests.spark.sink.frames import batch_frame

pytestmark = pytest.mark.timeout(600)  # the first jobs of a Spark on a busy machine


def part(start: int, end: int, partition: int = 0, topic: str = "orders") -> OffsetRange:
    return OffsetRange(topic, partition, start, end)


def stored(spark: SparkSession, path: Path) -> Counter[tuple[str, int, int, str]]:
    rows = ParquetByRange.read(spark, str(path)).collect()
    return Counter((r.topic, r.partition, r.offset, bytes(r.value).decode()) for r in rows)


def expected(*parts: OffsetRange, word: str = "v") -> Counter[tuple[str, int, int, str]]:
    return Counter((p.topic, p.partition, o, f"{word}{o}") for p in parts for o in range(p.start, p.end))


def test_batches_are_stored_and_replaced(spark: SparkSession, tmp_path: Path) -> None:
    store = ParquetByRange(spark, tmp_path)
    first = [part(0, 30), part(7, 9, 1), part(5, 6, 0, "_123"), part(0, 4, 3, "123")]
    store(*batch_frame(spark, first))
    store(*batch_frame(spark, [part(30, 40), part(9, 12, 1)]))
    # not committed, and redelivered: once longer, once shorter
    again = [part(30, 50), part(9, 11, 1)]
    store(*batch_frame(spark, again, word="new"))
    rest = Counter({("orders", 1, 11, "v11"): 1})
    assert stored(spark, tmp_path) == expected(*first) + expected(*again, word="new") + rest
    store(*batch_frame(spark, [part(11, 20, 1)], word="new"))
    assert stored(spark, tmp_path) == expected(*first) + expected(part(30, 50), part(9, 20, 1), word="new")
    assert not list(tmp_path.glob("_staging/*"))
    names = sorted(path.name.rsplit(".", 1)[0] for path in tmp_path.glob("topic=orders/*/*"))
    assert names == [
        "offsets=0-30.v1",
        "offsets=11-20.v2",
        "offsets=30-50.v2",
        "offsets=7-9.v1",
        "offsets=9-11.v2",
    ]


def test_transform_and_ranges_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    def odd(df: DataFrame) -> DataFrame:
        text = F.col("value").cast("string").alias("text")
        return df.where("offset % 2 = 1 and partition = 0").select("topic", "partition", "offset", text)

    store = ParquetByRange(spark, str(tmp_path), transform=odd, options={"compression": "zstd"})
    store(*batch_frame(spark, [part(0, 5), part(0, 5, 1)]))
    frame = ParquetByRange.read(spark, str(tmp_path))
    assert sorted((r.offset, r.text) for r in frame.collect()) == [(1, "v1"), (3, "v3")]
    assert frame.columns == ["topic", "partition", "offset", "text"]
    assert [path.suffix for path in tmp_path.glob("topic=orders/partition=1/*")] == [".empty"]
    assert list(tmp_path.rglob("*.zstd.parquet"))


@pytest.mark.full
def test_compaction(spark: SparkSession, tmp_path: Path) -> None:
    store = ParquetByRange(spark, tmp_path)
    for start in range(0, 50, 10):
        store(*batch_frame(spark, [part(start, start + 10), part(start, start + 1, 1)]))
    before = stored(spark, tmp_path)
    begun = ParquetByRange.read(spark, str(tmp_path))
    assert store.compact() == 4  # partition 1 has gaps
    assert stored(spark, tmp_path) == before
    assert begun.count() == sum(before.values())
    merged = list(tmp_path.glob("topic=orders/partition=0/offsets=0-40.v2.*/*.parquet"))
    assert len(merged) == 1
    assert [r.offset for r in spark.read.parquet(str(merged[0])).collect()] == list(range(40))
    assert store.vacuum() == 4
    assert stored(spark, tmp_path) == before
    assert len(list(tmp_path.glob("topic=*/partition=0/*"))) == 2


@pytest.mark.full
def test_columns_added_later_are_read(spark: SparkSession, tmp_path: Path) -> None:
    ParquetByRange(spark, tmp_path)(*batch_frame(spark, [part(0, 10)]))

    def more(df: DataFrame) -> DataFrame:
        return df.withColumn("more", F.lit(1))

    store = ParquetByRange(spark, str(tmp_path), transform=more, compact_after=1)
    store(*batch_frame(spark, [part(10, 20)]))
    store(*batch_frame(spark, [part(15, 30)]))  # it overlaps: the range before is then read in part
    store(*batch_frame(spark, [part(30, 40)]))
    assert list(tmp_path.glob("topic=orders/partition=0/offsets=0-30.v3.*"))
    frame = ParquetByRange.read(spark, str(tmp_path))
    assert sorted((r.offset, r.more) for r in frame.collect()) == [
        (o, None if o < 10 else 1) for o in range(40)
    ]


class FailingFiles(HadoopFiles):
    """A file system whose nth change fails."""

    def __init__(self, spark: SparkSession, path: str, changes: int) -> None:
        super().__init__(spark, path)
        self.changes = changes

    def _count(self) -> None:
        self.changes -= 1
        if self.changes < 0:
            raise StorageError("no more")

    def rename(self, name: str, target: str) -> None:
        self._count()
        super().rename(name, target)

    def remove(self, name: str) -> None:
        self._count()
        super().remove(name)

    def mkdir(self, name: str) -> None:
        self._count()
        super().mkdir(name)


@pytest.mark.full
def test_every_failure_of_the_file_system(spark: SparkSession, tmp_path: Path) -> None:
    """A redelivery fails at its first change, at its second one, and so on; `test_range_store` has longer sequences."""
    ParquetByRange(spark, str(tmp_path / "first"))(*batch_frame(spark, [part(0, 4)]))
    again = batch_frame(spark, [part(0, 6)])
    for changes in range(10):
        path = tmp_path / str(changes)
        shutil.copytree(tmp_path / "first", path)
        store = ParquetByRange(spark, str(path), files=FailingFiles(spark, str(path), changes))
        try:
            store(*again)
        except StorageError:
            assert stored(spark, path) in (expected(part(0, 4)), expected(part(0, 6)))
        else:
            break
    assert changes == 4
    assert stored(spark, path) == expected(part(0, 6))


@pytest.mark.parametrize("column", ["topic", "offset"])
def test_missing_columns_are_named(spark: SparkSession, tmp_path: Path, column: str) -> None:
    store = ParquetByRange(spark, str(tmp_path), transform=lambda df: df.drop(column))
    with pytest.raises(ConfigError, match=f"missing: {column}"):
        store(*batch_frame(spark, [part(0, 1)]))


def test_rows_of_no_range_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    df, _ = batch_frame(spark, [part(0, 5)])
    _, batch_id = batch_frame(spark, [part(0, 4)])
    with pytest.raises(PySparkException, match="none of its offset ranges"):
        ParquetByRange(spark, tmp_path)(df, batch_id)


@pytest.mark.parametrize("path", ["", "/data/[1]", "/data/{a,b}", "/data/*", "/data/a\\b", "/data/12:30"])
def test_paths_that_hadoop_would_not_list(spark: SparkSession, path: str) -> None:
    """Rows in a directory that is not listed would be ignored."""
    with pytest.raises(ConfigError, match="path="):
        ParquetByRange(spark, path)


@pytest.mark.parametrize("path", ["nosuch://host/data", "data:12"])
def test_paths_of_no_file_system(spark: SparkSession, path: str) -> None:
    with pytest.raises(StorageError, match=f"'{path}' cannot be used"):
        ParquetByRange(spark, path)


def test_nothing_stored(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no rows stored"):
        ParquetByRange.read(spark, str(tmp_path / "nowhere"))


def test_hadoop_files(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "with space, and comma"
    files = HadoopFiles(spark, str(root))
    assert files.has_atomic_rename
    assert files.ranges() == files.children("_staging") == []
    one = StoredRange("a.b", 0, 0, 10, 1, "ab")
    two = StoredRange("c", 12, 5, 10, 1, "cd", empty=True)
    for each in (one, two):
        files.mkdir(each.name)
    (root / one.name / "x").write_bytes(b"12345")
    assert files.ranges() == [one, two]
    assert files.ranges("c", 12) == [two]
    assert files.children(one.name) == ["x"]
    assert files.size(one.name) == 5
    assert 0 <= files.age(one.name) < 600
    files.rename(one.name, "topic=d/partition=0/elsewhere")
    assert not (root / one.name).exists()
    with pytest.raises(StorageError, match="could not be renamed"):
        files.rename("not-there", "topic=d/partition=0/there")
    files.remove("not-there")
    files.remove("topic=d")
    assert files.ranges() == [two]
