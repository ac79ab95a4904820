"""The metadata log: the cluster's metadata as a log of changes with CRCs and snapshots (a small `__cluster_metadata`).

A record is a JSON object with a key. The last record of a key is the valid one; a record with `deleted` removes the
key. The state is therefore one record per key, and a snapshot consists of these records.

A file is named `<number>.metadata` and consists of frames: length and CRC-32 of the payload (4 bytes each),
payload. A new file begins with a snapshot, whose length is in its first record, and is renamed into place
atomically; then the previous file is deleted. A torn record can therefore only be at the very end, after the
snapshot. Anything else is damage: such a file is refused, because topics missing from it would be deleted.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.log.open_files import OpenFiles

__all__ = ["MetadataLog", "MetadataRecord", "read_frames"]

log = logging.getLogger(__name__)

MetadataRecord: TypeAlias = dict[str, Any]
"""A change: `key`, a list of strings and numbers, and the new values."""

_FRAME = struct.Struct(">II")
_BEGINNING: Final = b'{"key":'
"""The first bytes of every record except the first of a file."""

_SUFFIX: Final = ".metadata"
_NEW: Final = ".new"

SNAPSHOT_AFTER: Final = 1 << 20
"""A new snapshot is written when the changes since the last take more bytes than this and than the snapshot itself."""


class MetadataLog:
    """The metadata by key in `state`, and the file that stores it."""

    def __init__(self, files: OpenFiles, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.state: dict[tuple[str | int, ...], MetadataRecord] = {}
        self._number = 0  # of the current file
        self._size = 0  # of the current file, in bytes
        self._snapshot_size = 0  # of its snapshot, in bytes
        self._needs_snapshot = (
            False  # the file lacks changes that are in `state`, or may not be the one found
        )

    def __repr__(self) -> str:
        return f"<MetadataLog {self._path.name}, {len(self.state)} keys, {self._size} bytes>"

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._number:010}{_SUFFIX}"

    def open(self) -> None:
        """Read the newest file and begin a new one with its state. Raise KafkaStorageError if it is damaged."""
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

    def put(self, record: MetadataRecord, *, already_applied: bool = False) -> None:
        """Apply and write a change; nothing is written if the state is the same already.

        After an OSError the state is unchanged, unless the change is `already_applied`: then it stays in the state
        and is written with the next change.
        """
        key = tuple(record["key"])
        before = self.state.get(key)
        if not self._needs_snapshot and before == record:
            return
        self._apply(record)
        try:
            self._write(record)
        except OSError:
            if already_applied:
                self._needs_snapshot = True
            elif before is None:
                del self.state[key]
            else:
                self.state[key] = before
            raise

    def _write(self, *records: MetadataRecord) -> None:
        if self._needs_snapshot:
            self.snapshot()
            return
        frames = b"".join(map(_framed, records))
        self._files.write(self._path, self._size, [frames])
        self._size += len(frames)
        if self._size - self._snapshot_size > max(SNAPSHOT_AFTER, self._snapshot_size):
            try:
                self.snapshot()
            except OSError as error:
                log.warning("a snapshot of the metadata could not be written and will be retried: %s", error)

    def delete(self, *key: str | int, already_applied: bool = False) -> None:
        """Remove a key; see `put` for errors."""
        if key in self.state:
            self.put(_deleted(key), already_applied=already_applied)

    def delete_many(self, keys: Iterable[tuple[str | int, ...]]) -> None:
        """Remove many keys in one write; after an OSError they stay removed, which is written with the next change."""
        gone = [_deleted(key) for key in keys if key in self.state]
        for record in gone:
            self._apply(record)
        try:
            if gone:
                self._write(*gone)
        except OSError:
            self._needs_snapshot = True
            raise

    def of(self, kind: str) -> list[MetadataRecord]:
        """Return the records whose keys begin with `kind`."""
        return [record for key, record in self.state.items() if key[0] == kind]

    def snapshot(self) -> None:
        """Begin a new file with the present state."""
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
        self._needs_snapshot = True  # until the new file's name is sure to survive a power loss
        self._files.sync_directory(self._directory)
        self._needs_snapshot = False
        try:
            self._files.remove(old)
        except OSError as error:  # harmless: the newest file is read
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
    """Return the records of a file, without a torn one at its end. Raise KafkaStorageError if it is damaged."""
    data = path.read_bytes()
    records, end = read_frames(data)
    if not records or end < len(_framed(records[0])) + records[0].get("snapshot", 0):
        raise KafkaStorageError(f"{path}: damaged at byte {end}, in its snapshot")
    # a valid record after the first invalid one shows that it is not just a torn write at the end
    position = end + _FRAME.size
    while (position := data.find(_BEGINNING, position + 1)) >= 0:
        if read_frames(data[position - _FRAME.size :])[0]:
            raise KafkaStorageError(f"{path}: damaged at byte {end}, with valid records after it")
    if end < len(data):
        log.warning("%s: ignoring an incomplete record of %d bytes at the end", path, len(data) - end)
    return records[1:]


def read_frames(data: bytes) -> tuple[list[MetadataRecord], int]:
    """Return the valid records from the beginning of `data`, and the position after the last of them."""
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
