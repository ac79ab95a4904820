"""The metadata log: the latest record per key, torn ends, damage, snapshots, and a cluster on a damaged directory."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.metadata import metadata_log
from asyncgroup.broker.metadata.metadata_log import MetadataLog, read_frames
from asyncgroup.errors import ConfigError
from tests.broker.batches import append, batch
from tests.broker.internals import log_of
from tests.profiles import examples

EXAMPLES = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def opened(directory: Path) -> MetadataLog:
    log = MetadataLog(OpenFiles(), directory)
    log.open()
    return log


def close(log: MetadataLog) -> None:
    """Close the files of a log, as the end of its process does."""
    log._files.close()


CHANGES = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3), st.booleans()), max_size=30)


@pytest.fixture(autouse=True)
def snapshots():
    with pytest.MonkeyPatch.context() as patch:
        yield lambda size: patch.setattr(metadata_log, "SNAPSHOT_AFTER", size)


@EXAMPLES
@given(
    changes=CHANGES, again=CHANGES, snapshot_after=st.sampled_from([1, 100, 1 << 20]), share=st.floats(0, 1)
)
def test_state_is_the_latest_record_per_key_before_a_cut(
    tmp_path_factory, snapshots, changes, again, snapshot_after, share
):
    snapshots(snapshot_after)
    directory = tmp_path_factory.mktemp("metadata")
    expected: dict[str, int] = {}
    for part in (changes, again):
        log = opened(directory)
        assert {key[0]: record["value"] for key, record in log.state.items()} == expected
        for key, value, deleted in part:
            if deleted:
                log.delete(key)
                expected.pop(key, None)
            else:
                log.put({"key": [key], "value": value})
                expected[key] = value
        close(log)
        assert len(list(directory.iterdir())) == 1
    (path,) = directory.iterdir()
    data = path.read_bytes()
    records, end = read_frames(data)
    assert end == len(data)
    cut = int(len(data) * share)
    path.write_bytes(data[:cut])
    ends = list(itertools.accumulate(len(metadata_log._framed(record)) for record in records))
    if cut < ends[0] + records[0]["snapshot"]:
        with pytest.raises(KafkaStorageError, match=r"damaged at byte \d+, in its snapshot"):
            opened(directory)
        return
    left: dict[str, int] = {}
    for record in records[1 : sum(one <= cut for one in ends)]:
        left.pop(record["key"][0], None)
        if not record.get("deleted"):
            left[record["key"][0]] = record["value"]
    log = opened(directory)
    assert {key[0]: record["value"] for key, record in log.state.items()} == left
    close(log)


def some_metadata(directory: Path, count: int) -> tuple[Path, bytearray]:
    """Write a file with a snapshot of three records, followed by `count` records."""
    for numbers in (range(3), range(3, 3 + count)):
        log = opened(directory)
        for number in numbers:
            log.put({"key": ["k", number], "value": number})
        close(log)
    (path,) = directory.iterdir()
    return path, bytearray(path.read_bytes())


def test_a_torn_record_ends_the_log(tmp_path):
    path, data = some_metadata(tmp_path, 3)
    data[-3] ^= 1
    path.write_bytes(data)
    log = opened(tmp_path)
    assert sorted(log.state) == [("k", number) for number in range(5)]
    close(log)


def test_damaged_metadata_is_rejected(tmp_path):
    """Otherwise the files of topics whose records are lost would be deleted."""
    path, data = some_metadata(tmp_path, 3)
    last = len(metadata_log._framed({"key": ["k", 5], "value": 5}))
    for position in range(len(data) - last):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(KafkaStorageError, match="damaged at byte"):
            opened(tmp_path)
        assert path.read_bytes() == damaged
    for size in (0, 1, 30):
        path.write_bytes(data[:size])
        with pytest.raises(KafkaStorageError, match="in its snapshot"):
            opened(tmp_path)


async def test_damaged_metadata_leaves_the_topics_on_disk(tmp_path):
    async with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("t")
        append(log_of(cluster, "t", 0), batch(b"a"), 0)
    (path,) = (tmp_path / "metadata").iterdir()
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(KafkaStorageError, match=r"\.metadata: damaged"):
        async with EmbeddedCluster(data_dir=tmp_path):
            pass
    path.write_bytes(whole)
    async with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert len(cluster.records("t")) == 1


def test_an_interrupted_snapshot_has_no_effect(tmp_path):
    """Killed before the new file was renamed, or before the old one was deleted."""
    _, data = some_metadata(tmp_path, 2)
    (tmp_path / "0000000009.metadata.new").write_bytes(data[:40])
    (tmp_path / "0000000000.metadata").write_bytes(data[:40])
    (tmp_path / "notes.metadata").write_bytes(b"not ours")
    log = opened(tmp_path)
    assert sorted(log.state) == [("k", number) for number in range(5)]
    assert {path.name for path in tmp_path.iterdir()} == {log._path.name, "notes.metadata"}
    close(log)


def test_a_snapshot_is_repeated_if_its_directory_entry_may_be_lost(tmp_path, monkeypatch):
    """After a loss of power the previous file could be back, without later records."""
    log = opened(tmp_path)
    monkeypatch.setattr(metadata_log, "SNAPSHOT_AFTER", 1)
    named: list[str] = []

    def sync_directory(directory: Path) -> None:
        newest = max(path.name for path in directory.glob("*.metadata"))
        if newest == "0000000002.metadata" and "failed" not in named:
            named.append("failed")
            raise OSError(errno.EIO, "Input/output error")
        named.append(newest)

    monkeypatch.setattr(log._files, "sync_directory", sync_directory)
    log.put({"key": ["k", 0], "value": 0})
    assert log._path.name == "0000000002.metadata"
    assert "failed" in named
    monkeypatch.setattr(metadata_log, "SNAPSHOT_AFTER", 1 << 20)
    log.put({"key": ["k", 1], "value": 1})
    assert log._path.name == "0000000003.metadata" == named[-1]
    log.put({"key": ["k", 2], "value": 2})
    close(log)
    again = opened(tmp_path)
    assert len(again.state) == 3
    close(again)


async def test_a_directory_with_a_newer_format_is_rejected(tmp_path):
    log = opened(tmp_path / "metadata")
    log.put({"key": ["cluster"], "id": "x", "format": 2})
    close(log)
    with pytest.raises(ConfigError, match="format 1 or older"):
        async with EmbeddedCluster(data_dir=tmp_path):
            pass


async def test_directories_of_unknown_topics_are_deleted(tmp_path):
    stray = tmp_path / "topics" / ("t." + "0" * 32) / "0"
    async with EmbeddedCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("kept")
        append(log_of(cluster, "kept", 0), batch(b"a"), 0)
    stray.mkdir(parents=True)
    async with EmbeddedCluster(data_dir=tmp_path) as cluster:
        assert len(cluster.records("kept")) == 1
    assert not stray.exists()
