"""What is in the files of a log: torn tails, damaged batches, what a crash leaves of compaction."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncgroup.broker.errors import AppendError, StorageError
from asyncgroup.broker.log import PartitionLog
from asyncgroup.broker.storage.file_segments import FileStore, segment_path
from asyncgroup.broker.storage.open_files import OpenFiles
from asyncgroup.broker.storage.recovery import recover
from tests.broker.batches import batch, keyed, sequenced
from tests.broker.transactional import Writer, transactional

EXAMPLES = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


class Place:
    """A directory with one partition's log; used with `with`."""

    def __init__(self, directory: Path, segment_bytes: int = 1 << 30) -> None:
        self.files = OpenFiles(most_open=2)
        self.directory = directory
        self.log = PartitionLog("t", 0)
        self.log.segment_bytes = segment_bytes
        self.log.store = FileStore(self.files, directory, lambda _offset: None)
        found = recover(self.files, directory)
        self.log.restore(found.segments, found.batches, start_offset=0, epochs=[])

    def __enter__(self) -> PartitionLog:
        return self.log

    def __exit__(self, *_) -> None:
        self.files.close()


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("*.log")
    return path


def broken(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


# -- batches -------------------------------------------------------------------------------------------------


def test_a_file_holds_the_batches_and_nothing_else(tmp_path):
    with Place(tmp_path) as log:
        log.append(batch(b"a"), 7)
        log.append(batch(b"b", b"c"), 8)
        kept = bytes(log.read(0, 1 << 20))
    assert (tmp_path / "00000000000000000000.log").read_bytes() == kept
    with Place(tmp_path) as log:
        assert bytes(log.read(0, 1 << 20)) == kept
        assert log.epochs == [(7, 0), (8, 1)]


@EXAMPLES
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    share=st.floats(0, 1),
    garbage=st.binary(max_size=90),
)
def test_wherever_an_append_was_cut_short_what_was_before_is_there(tmp_path_factory, sizes, share, garbage):
    directory = tmp_path_factory.mktemp("log")
    with Place(directory) as log:
        for number, size in enumerate(sizes):
            log.append(batch(b"%d" % number * size), 0)
        ends = [place.position + place.size for place in log._batches]
        everything = values(log)
    path = only_file(directory)
    cut = int(ends[-1] * share)
    path.write_bytes(path.read_bytes()[:cut] + garbage)
    whole = sum(end <= cut for end in ends)
    with Place(directory) as log:
        assert values(log) == everything[:whole]
        assert log.end_offset == whole
        assert path.stat().st_size == ([0, *ends])[whole]
        assert log.append(batch(b"on"), 0).base_offset == whole
    with Place(directory) as log:
        assert values(log) == [*everything[:whole], b"on"]


def test_a_batch_larger_than_a_window_is_read(tmp_path):
    with Place(tmp_path) as log:
        log.max_batch_bytes = 1 << 24
        for _ in range(2):
            log.append(batch(os.urandom(3_000_000)), 0)
        log.append(batch(b"small"), 0)
    with Place(tmp_path) as log:
        assert [len(value or b"") for value in values(log)] == [3_000_000, 3_000_000, 5]
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:5_000_000])
    with Place(tmp_path) as log:
        assert log.end_offset == 1


def test_a_damaged_batch_ends_the_log_and_what_is_behind_is_put_aside(tmp_path):
    with Place(tmp_path, segment_bytes=200) as log:
        for number in range(6):
            log.append(batch(b"%d" % number), 0)
        assert len(log.segments) == 3
    path = segment_path(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with Place(tmp_path) as log:
        assert values(log) == [b"0", b"1", b"2"]
        log.append(batch(b"new"), 0)
    aside = sorted(tmp_path.glob("*.corrupt"))
    assert [one.name for one in aside] == [f"0000000000000000000{offset}.log.corrupt" for offset in (2, 4)]
    assert aside[0].read_bytes() == data
    with Place(tmp_path) as log:
        assert values(log) == [b"0", b"1", b"2", b"new"]


@pytest.mark.parametrize(("damaged", "aside"), [(0, 1), (1, 1), (2, 0)])
def test_what_is_behind_a_damaged_batch_of_the_last_segment_is_put_aside(tmp_path, damaged, aside):
    """Damage at the very end looks like an append that was cut short."""
    with Place(tmp_path) as log:
        for number in range(3):
            log.append(batch(b"%d" % number), 0)
        place = log._batches[damaged].position
    path = only_file(tmp_path)
    for byte in (0, 8, 16, 69):  # offset, length, magic, records
        data = bytearray(path.read_bytes())
        data[place + byte] ^= 0x40
        path.write_bytes(data)
        with Place(tmp_path) as log:
            assert log.end_offset == damaged
        copies = list(tmp_path.glob("*.corrupt"))
        assert [one.read_bytes() for one in copies] == [data] * aside
        data[place + byte] ^= 0x40
        path.write_bytes(data)


def test_more_segments_than_files_may_be_open(tmp_path):
    place = Place(tmp_path, segment_bytes=80)
    with place as log:
        for number in range(300):
            log.append(batch(b"%d" % number), 0)
        assert values(log) == [b"%d" % number for number in range(300)]
        assert len(place.files._descriptors) == 2


def test_producers_are_known_again(tmp_path):
    with Place(tmp_path, segment_bytes=100) as log:
        for number in range(7):
            log.append(sequenced(number), 0)
        one = Writer(log, 1)
        one.write(b"a")
        one.abort()
        one.write(b"b")
    with Place(tmp_path) as log:
        assert log.append(sequenced(4), 0) == (4, 4, True, 1000)
        assert log.append(sequenced(7), 0).base_offset == log.end_offset - 1
        assert log.last_stable_offset == 9
        assert [tuple(aborted) for aborted in log._aborted] == [(1, 7, 8)]


def test_a_truncation_of_a_log_that_lost_its_beginning(tmp_path):
    """What is before the log's start is still in the file."""
    with Place(tmp_path) as log:
        for number in range(4):
            log.append(batch(b"%d" % number), 0)
        log.delete_records(2)
        log.truncate(3)
        log.append(batch(b"new"), 0)
        assert values(log) == [b"2", b"new"]
    with Place(tmp_path) as log:
        assert values(log) == [b"0", b"1", b"2", b"new"], "where it starts is in the metadata"


def test_a_producer_of_which_a_marker_is_left_goes_on(tmp_path):
    with Place(tmp_path, segment_bytes=100) as log:
        writer = Writer(log, 1)
        for _ in range(3):
            writer.write(b"a")
        writer.commit()
        log.delete_records(3)
        assert log.retain(0, -1, -1) == 3
    with Place(tmp_path) as log:
        writer.log = log
        assert writer.write(b"b") == 4
        with pytest.raises(AppendError):
            log.append(transactional(b"c", producer_id=1, sequence=9), 0)


# -- what a crash leaves of compaction ---------------------------------------------------------------------------


def test_compaction_that_was_not_finished_leaves_no_trace(tmp_path):
    with Place(tmp_path) as log:
        log.append(batch(b"a"), 0)
    (tmp_path / "00000000000000000000.cleaned").write_bytes(b"half")
    with Place(tmp_path) as log:
        assert values(log) == [b"a"]
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000000.log"]


def test_segments_whose_batches_are_in_another_one_already_go(tmp_path, monkeypatch):
    """Killed after the first of several segments was replaced by what is left of all."""
    with Place(tmp_path, segment_bytes=200) as log:
        for number in range(6):
            log.append(batch(b"%d" % number), 0)
        log.segment_bytes = 1 << 20
        monkeypatch.setattr(FileStore, "remove", lambda *_: None)
        log.compact(2000, 1000)
        expected = values(log)
    monkeypatch.undo()
    assert len(list(tmp_path.glob("*.log"))) == 4
    with Place(tmp_path) as log:
        assert values(log)[-1:] == expected == [b"5"]
        assert log.end_offset == 6


def test_a_disk_that_is_full_leaves_a_log_uncompacted(tmp_path, monkeypatch):
    with Place(tmp_path) as log:
        for number in range(3):
            log.append(batch(b"%d" % number), 0)
        log.roll()
        write = os.pwritev

        monkeypatch.setattr(os, "pwritev", broken)
        with pytest.raises(StorageError, match=r"t-0: .*No space"):
            log.compact(2000, 1000)
        assert values(log) == [b"0", b"1", b"2"]
        monkeypatch.setattr(os, "pwritev", write)
        log.compact(2000, 1000)
        assert values(log) == [b"2"]
    assert list(tmp_path.glob("*.cleaned")) == []


def test_what_was_compacted_away_does_not_come_back(tmp_path, monkeypatch):
    """A file that cannot be deleted holds a value whose tombstone is in a later segment: that has to stay as well."""
    with Place(tmp_path) as log:
        for key, value in ((b"x", b"v"), (b"k", b"value"), (b"k", None), (b"y", b"v")):
            log.append(keyed((key, value)), 0)
            log.roll()
        log.segment_bytes = 2 * log.segments[1].size
        unlink = Path.unlink

        def stuck(path: Path, missing_ok: bool = False) -> None:
            if path == segment_path(tmp_path, 1):
                raise OSError(errno.EBUSY, "Device or resource busy")
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", stuck)
        for now in (2000, 9000):
            with suppress(StorageError):
                log.compact(now, 1000)
        kept = list(tmp_path.glob("*.log"))
        monkeypatch.setattr(Path, "unlink", unlink)
    assert len(kept) > len(log.segments)
    with Place(tmp_path) as log:
        assert {record.key: record.value for record in log.records()}.get(b"k") is None
        log.compact(9000, 1000)
        log.compact(99000, 1000)
        assert values(log) == [b"v", b"v"]
    assert len(list(tmp_path.glob("*.log"))) == 2
