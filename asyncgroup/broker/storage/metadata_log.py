"""The cluster's metadata as a log of changes: framed, checked by CRC, rewritten as a snapshot now and then.

A record is a JSON object with a key; the newest record of a key counts, and one that says `deleted` ends it. So the
state at any moment is one record a key, and a snapshot is just these (KRaft's `__cluster_metadata`, made small).

A file is `<number>.metadata`; a frame in it: length and CRC-32 of the payload, four bytes each, and the payload.
A new file begins with a snapshot, whose length its first record says, and is put into its place in one step, then the
one before it is deleted. So only behind the snapshot, and only at the very end, can there be a record that was cut short
when the process died. Anything else is damage: such a file is not opened, as what it no longer says of topics would be
thrown away.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.storage.open_files import OpenFiles

__all__ = ["MetadataLog", "MetadataRecord", "read_frames"]

log = logging.getLogger(__name__)

MetadataRecord: TypeAlias = dict[str, Any]
"""A change: `key`, a list of texts and numbers, and what is so now."""

_FRAME = struct.Struct(">II")
_BEGINNING: Final = b'{"key":'
"""Of every record but a file's first."""
_SUFFIX: Final = ".metadata"
_NEW: Final = ".new"

SNAPSHOT_AFTER: Final = 1 << 20
"""Bytes of changes behind a snapshot, more than as many as the snapshot's own, after which another one is written."""


class MetadataLog:
    """The state by key, and the file that keeps it."""

    def __init__(self, files: OpenFiles, directory: Path) -> None:
        self._files, self._directory = files, directory
        self.state: dict[tuple[str | int, ...], MetadataRecord] = {}
        self._number = 0
        self._size = self._snapshot_size = 0
        self._behind = False

    def __repr__(self) -> str:
        return f"<MetadataLog {self._path.name}, {len(self.state)} keys, {self._size} bytes>"

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._number:010}{_SUFFIX}"

    def open(self) -> None:
        """Read what is there, and begin a new file with it. Raises StorageError if it is damaged."""
        self._files.make_directory(self._directory)
        for leftover in self._directory.glob(f"*{_NEW}"):
            leftover.unlink()
        stems = [path.stem for path in self._directory.glob(f"*{_SUFFIX}")]
        numbers = sorted(int(stem) for stem in stems if stem.isdecimal())
        if numbers:
            self._number = numbers[-1]
            for record in _read_file(self._path):
                self._apply(record)
        self.snapshot()
        for number in numbers:
            self._files.remove(self._directory / f"{number:010}{_SUFFIX}")

    def put(self, record: MetadataRecord, *, happened: bool = False) -> None:
        """Change the state; written when this returns. Nothing is done if it is so already.

        OSError if the disk does not take it: then nothing has changed, unless it has `happened`; the next change brings
        it along in that case.
        """
        key = tuple(record["key"])
        before = self.state.get(key)
        if not self._behind and before == record:
            return
        self._apply(record)
        try:
            self._write(record)
        except OSError:
            if happened:
                self._behind = True
            elif before is None:
                del self.state[key]
            else:
                self.state[key] = before
            raise

    def _write(self, *records: MetadataRecord) -> None:
        if self._behind:
            self.snapshot()
            return
        frames = b"".join(map(_framed, records))
        self._files.write(self._path, self._size, [frames])
        self._size += len(frames)
        if self._size - self._snapshot_size > max(SNAPSHOT_AFTER, self._snapshot_size):
            try:
                self.snapshot()
            except OSError as error:
                log.warning("no snapshot of the metadata could be written: %s", error)

    def delete(self, *key: str | int, happened: bool = False) -> None:
        """Forget a key."""
        if key in self.state:
            self.put(_deleted(key), happened=happened)

    def forget(self, keys: Iterable[tuple[str | int, ...]]) -> None:
        """Forget many keys, in one write. It has happened, also if that raises OSError: the next change brings it along."""
        gone = [_deleted(key) for key in keys if key in self.state]
        for record in gone:
            self._apply(record)
        try:
            if gone:
                self._write(*gone)
        except OSError:
            self._behind = True
            raise

    def of(self, kind: str) -> list[MetadataRecord]:
        """The records whose keys begin like this."""
        return [record for key, record in self.state.items() if key[0] == kind]

    def snapshot(self) -> None:
        """Begin a new file with the state of now."""
        old = self._path
        target = self._directory / f"{self._number + 1:010}{_SUFFIX}"
        records = b"".join(map(_framed, self.state.values()))
        data = _framed({"snapshot": len(records)}) + records
        new = target.with_suffix(_SUFFIX + _NEW)
        self._files.create(new)
        self._files.write(new, 0, [data])
        self._files.replace(new, target)
        self._number += 1
        self._size = self._snapshot_size = len(data)
        self._behind = True  # until this file is sure to be the one that is found
        self._files.keep_names(self._directory)
        self._behind = False
        try:
            self._files.remove(old)
        except OSError as error:  # no harm: the newest counts
            log.warning("%s could not be deleted: %s", old, error)

    def _apply(self, record: MetadataRecord) -> None:
        key = tuple(record["key"])
        if record.get("deleted"):
            self.state.pop(key, None)
        else:
            self.state[key] = record


def _deleted(key: tuple[str | int, ...]) -> MetadataRecord:
    return {"key": list(key), "deleted": True}


def _framed(record: MetadataRecord) -> bytes:
    payload = json.dumps(record, separators=(",", ":")).encode()
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _read_file(path: Path) -> list[MetadataRecord]:
    """The records of a file; a torn one at its end is left out."""
    data = path.read_bytes()
    records, end = read_frames(data)
    if not records or end < len(_framed(records[0])) + records[0].get("snapshot", 0):
        raise StorageError(f"{path}: damaged at byte {end}, in its snapshot")
    behind = end + _FRAME.size
    while (behind := data.find(_BEGINNING, behind + 1)) >= 0:
        if read_frames(data[behind - _FRAME.size :])[0]:
            raise StorageError(f"{path}: damaged at byte {end}, with sound records behind")
    if end < len(data):
        log.warning("%s: %d bytes at the end are no whole record", path, len(data) - end)
    return records[1:]


def read_frames(data: bytes) -> tuple[list[MetadataRecord], int]:
    """All whole, sound records from the beginning on, and where they end."""
    records: list[MetadataRecord] = []
    position = 0
    while position + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + length]
        if not length or len(payload) < length or zlib.crc32(payload) != crc:
            break
        records.append(json.loads(payload))
        position += _FRAME.size + length
    return records, position
