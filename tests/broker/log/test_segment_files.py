"""The files of a log: torn tails, damaged batches, and what a crash during compaction leaves."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncgroup.broker.errors import AppendError, KafkaStorageError
from asyncgroup.broker.log.file_segments import FileStore, segment_path
from asyncgroup.broker.log.open_files import OpenFiles
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.broker.log.recovery import recover
from tests.broker.batches import append, batch, keyed, sequenced
from tests.broker.transactional import Writer, transactional
from tests.profiles import examples

EXAMPLES = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


class LogDirectory:
    """Context manager: the log of one partition, opened from its directory."""

    def __init__(self, directory: Path, segment_bytes: int = 1 << 30) -> None:
        self.files = OpenFiles(max_open=2)
        self.directory = directory
        self.log = PartitionLog("t", 0)
        self.log.segments.segment_bytes = segment_bytes
        self.log.segments.store = FileStore(self.files, directory, lambda _offset: None)
        found = recover(self.files, directory)
        self.log.restore(found.segments, found.batches, start_offset=0, epochs=[])

    def __enter__(self) -> PartitionLog:
        return self.log

    def __exit__(self, *_) -> None:
        self.files.close()


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in read_records(log)]


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("*.log")
    return path


def broken(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


def unwritable(*_args, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- open files ----------------------------------------------------------------------------------------------


def test_failures_of_files_that_are_gone_are_forgotten(tmp_path, monkeypatch):
    """Else they would be kept forever, and each read and write would look them up."""
    files = OpenFiles()
    deleted, renamed, replaced, inside = (
        tmp_path / "topic" / name for name in ("deleted", "renamed", "replaced", "inside/0.log")
    )
    for path in (deleted, renamed, replaced, inside):
        files.create(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", unwritable)
        for path in (deleted, renamed, replaced, inside):
            with pytest.raises(OSError, match="No space left") as caught:
                files.write(path, 0, [b"a"])
            assert caught.value.filename == str(path)
        patch.setattr(Path, "unlink", broken)
        with pytest.raises(OSError, match="No space left"):
            files.remove(deleted)
    assert {path for _, path in files._failing} == {deleted, renamed, replaced, inside}
    files.remove(deleted)
    assert {path for _, path in files._failing} == {renamed, replaced, inside}
    files.replace(renamed, replaced)
    assert {path for _, path in files._failing} == {inside}
    files.close_below(tmp_path / "topic" / "inside")
    assert not files._failing
    assert repr(files) == "<OpenFiles 0 open>"


def test_a_file_that_cannot_be_read_is_logged_once(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "asyncgroup.broker.log.open_files")
    files, path = OpenFiles(), tmp_path / "0.log"
    files.create(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", unwritable)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left") as caught:
                files.read(path, 0, 1)
            assert caught.value.filename == str(path)
    for _ in range(2):
        assert files.read(path, 0, 1) == b""
    assert [record.getMessage() for record in caplog.records] == [
        f"data directory, read: [Errno 28] No space left on device: '{path}'",
        f"data directory, read: {path} succeeds again",
    ]
    files.close()


# -- batches -------------------------------------------------------------------------------------------------


def test_a_file_contains_only_the_batches(tmp_path):
    with LogDirectory(tmp_path) as log:
        append(log, batch(b"a"), 7)
        append(log, batch(b"b", b"c"), 8)
        kept = bytes(log.read(0, 1 << 20))
    assert (tmp_path / "00000000000000000000.log").read_bytes() == kept
    with LogDirectory(tmp_path) as log:
        assert bytes(log.read(0, 1 << 20)) == kept
        assert log.epochs == [(7, 0), (8, 1)]


@EXAMPLES
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    share=st.floats(0, 1),
    garbage=st.binary(max_size=90),
)
def test_complete_batches_before_a_torn_append_are_kept(tmp_path_factory, sizes, share, garbage):
    directory = tmp_path_factory.mktemp("log")
    with LogDirectory(directory) as log:
        for number, size in enumerate(sizes):
            append(log, batch(b"%d" % number * size), 0)
        ends = [entry.position + entry.size for entry in log.segments.batch_index.batches]
        everything = values(log)
    path = only_file(directory)
    cut = int(ends[-1] * share)
    path.write_bytes(path.read_bytes()[:cut] + garbage)
    whole = sum(end <= cut for end in ends)
    with LogDirectory(directory) as log:
        assert values(log) == everything[:whole]
        assert log.end_offset == whole
        assert path.stat().st_size == ([0, *ends])[whole]
        assert append(log, batch(b"on"), 0).base_offset == whole
    with LogDirectory(directory) as log:
        assert values(log) == [*everything[:whole], b"on"]


def test_a_batch_larger_than_the_read_window(tmp_path):
    with LogDirectory(tmp_path) as log:
        for _ in range(2):
            append(log, batch(os.urandom(3_000_000)), 0, max_batch_bytes=1 << 24)
        append(log, batch(b"small"), 0)
    with LogDirectory(tmp_path) as log:
        assert [len(value or b"") for value in values(log)] == [3_000_000, 3_000_000, 5]
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:5_000_000])
    with LogDirectory(tmp_path) as log:
        assert log.end_offset == 1


def test_a_damaged_batch_ends_the_log_and_later_data_is_kept_as_corrupt(tmp_path):
    with LogDirectory(tmp_path, segment_bytes=200) as log:
        for number in range(6):
            append(log, batch(b"%d" % number), 0)
        assert len(log.segments) == 3
    path = segment_path(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with LogDirectory(tmp_path) as log:
        assert values(log) == [b"0", b"1", b"2"]
        append(log, batch(b"new"), 0)
    aside = sorted(tmp_path.glob("*.corrupt"))
    assert [one.name for one in aside] == [f"0000000000000000000{offset}.log.corrupt" for offset in (2, 4)]
    assert aside[0].read_bytes() == data
    with LogDirectory(tmp_path) as log:
        assert values(log) == [b"0", b"1", b"2", b"new"]


@pytest.mark.parametrize(("damaged", "aside"), [(0, 1), (1, 1), (2, 0)])
def test_data_after_a_damaged_batch_of_the_last_segment_is_kept_as_corrupt(tmp_path, damaged, aside):
    """Damage of the last batch looks like a torn append."""
    with LogDirectory(tmp_path) as log:
        for number in range(3):
            append(log, batch(b"%d" % number), 0)
        position = log.segments.batch_index.batches[damaged].position
    path = only_file(tmp_path)
    for byte in (0, 8, 16, 69):  # offset, length, magic, records
        data = bytearray(path.read_bytes())
        data[position + byte] ^= 0x40
        path.write_bytes(data)
        with LogDirectory(tmp_path) as log:
            assert log.end_offset == damaged
        copies = list(tmp_path.glob("*.corrupt"))
        assert [one.read_bytes() for one in copies] == [data] * aside
        data[position + byte] ^= 0x40
        path.write_bytes(data)


def test_more_segments_than_open_files(tmp_path):
    directory = LogDirectory(tmp_path, segment_bytes=80)
    with directory as log:
        for number in range(300):
            append(log, batch(b"%d" % number), 0)
        assert values(log) == [b"%d" % number for number in range(300)]
        assert len(directory.files._descriptors) == 2


def test_producer_state_is_restored(tmp_path):
    with LogDirectory(tmp_path, segment_bytes=100) as log:
        for number in range(7):
            append(log, sequenced(number), 0)
        one = Writer(log, 1)
        one.write(b"a")
        one.abort()
        one.write(b"b")
    with LogDirectory(tmp_path) as log:
        assert append(log, sequenced(4), 0) == (4, 4, True, 1000)
        assert append(log, sequenced(7), 0).base_offset == log.end_offset - 1
        assert log.last_stable_offset == 9
        assert [tuple(aborted) for aborted in log._aborted] == [(1, 7, 8)]


def test_truncation_of_a_log_with_deleted_records(tmp_path):
    """The records before the log start offset are still in the file."""
    with LogDirectory(tmp_path) as log:
        for number in range(4):
            append(log, batch(b"%d" % number), 0)
        log.delete_records(2)
        log.truncate(3)
        append(log, batch(b"new"), 0)
        assert values(log) == [b"2", b"new"]
    with LogDirectory(tmp_path) as log:
        assert values(log) == [b"0", b"1", b"2", b"new"], "the log start offset is in the metadata"


def test_a_producer_with_only_a_marker_left_continues(tmp_path):
    with LogDirectory(tmp_path, segment_bytes=100) as log:
        writer = Writer(log, 1)
        for _ in range(3):
            writer.write(b"a")
        writer.commit()
        log.delete_records(3)
        assert log.delete_old_segments(0, -1, -1) == 3
    with LogDirectory(tmp_path) as log:
        writer.log = log
        assert writer.write(b"b") == 4
        with pytest.raises(AppendError):
            append(log, transactional(b"c", producer_id=1, sequence=9), 0)


# -- crashes during compaction ----------------------------------------------------------------------------------


def test_unfinished_compaction_has_no_effect(tmp_path):
    with LogDirectory(tmp_path) as log:
        append(log, batch(b"a"), 0)
    (tmp_path / "00000000000000000000.cleaned").write_bytes(b"half")
    with LogDirectory(tmp_path) as log:
        assert values(log) == [b"a"]
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000000.log"]


def test_segments_whose_batches_are_in_a_compacted_segment_are_removed(tmp_path, monkeypatch):
    """Killed after the first of several segments was replaced by the compacted one, before the others were deleted."""
    with LogDirectory(tmp_path, segment_bytes=200) as log:
        for number in range(6):
            append(log, batch(b"%d" % number), 0)
        log.segments.segment_bytes = 1 << 20
        monkeypatch.setattr(FileStore, "remove", lambda *_: None)
        log.compact(2000, 1000)
        expected = values(log)
    monkeypatch.undo()
    assert len(list(tmp_path.glob("*.log"))) == 4
    with LogDirectory(tmp_path) as log:
        assert values(log)[-1:] == expected == [b"5"]
        assert log.end_offset == 6


def test_a_full_disk_leaves_the_log_uncompacted(tmp_path, monkeypatch):
    with LogDirectory(tmp_path) as log:
        for number in range(3):
            append(log, batch(b"%d" % number), 0)
        log.roll()
        write = os.pwritev

        monkeypatch.setattr(os, "pwritev", broken)
        with pytest.raises(KafkaStorageError, match=r"t-0: .*No space"):
            log.compact(2000, 1000)
        assert values(log) == [b"0", b"1", b"2"]
        monkeypatch.setattr(os, "pwritev", write)
        log.compact(2000, 1000)
        assert values(log) == [b"2"]
    assert list(tmp_path.glob("*.cleaned")) == []


def test_compacted_records_do_not_come_back(tmp_path, monkeypatch):
    """A value in a file that cannot be deleted has its tombstone in a later segment: the tombstone must also stay."""
    with LogDirectory(tmp_path) as log:
        for key, value in ((b"x", b"v"), (b"k", b"value"), (b"k", None), (b"y", b"v")):
            append(log, keyed((key, value)), 0)
            log.roll()
        log.segments.segment_bytes = 2 * log.segments[1].size
        unlink = Path.unlink

        def stuck(path: Path, missing_ok: bool = False) -> None:
            if path == segment_path(tmp_path, 1):
                raise OSError(errno.EBUSY, "Device or resource busy")
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", stuck)
        for now in (2000, 9000):
            with suppress(KafkaStorageError):
                log.compact(now, 1000)
        kept = list(tmp_path.glob("*.log"))
        monkeypatch.setattr(Path, "unlink", unlink)
    assert len(kept) > len(log.segments)
    with LogDirectory(tmp_path) as log:
        assert {record.key: record.value for record in read_records(log)}.get(b"k") is None
        log.compact(9000, 1000)
        log.compact(99000, 1000)
        assert values(log) == [b"v", b"v"]
    assert len(list(tmp_path.glob("*.log"))) == 2
