"""The cluster's metadata as a log of changes: framed, checked by CRC, rewritten as a snapshot now and then.

A record is a JSON object with a key; the newest record of a key counts, and one that says `deleted` ends it. So the
state at any moment is one record a key, and a snapshot is just these (KRaft's `__cluster_metadata`, made small).

A file is `<number>.metadata`; a frame in it: length and CRC-32 of the payload, four bytes each, and the payload.
A new file begins with a snapshot and is put into its place in one step, then the one before it is deleted.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from pathlib import Path
from typing import Any, Final, TypeAlias

from asyncgroup.broker.storage.open_files import OpenFiles

__all__ = ["MetadataLog", "MetadataRecord", "read_frames"]

log = logging.getLogger(__name__)

MetadataRecord: TypeAlias = dict[str, Any]
"""A change: `key`, a list of texts and numbers, and what is so now."""

_FRAME = struct.Struct(">II")
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
        """Read what is there, and begin a new file with it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._directory.glob(f"*{_NEW}"):
            leftover.unlink()
        numbers = sorted(int(path.stem) for path in self._directory.glob(f"*{_SUFFIX}"))
        if numbers:
            self._number = numbers[-1]
            data = self._path.read_bytes()
            records, end = read_frames(data)
            for record in records:
                self._apply(record)
            if end < len(data):
                log.warning("%s: %d bytes at the end are no whole record", self._path, len(data) - end)
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

    def _write(self, record: MetadataRecord) -> None:
        if self._behind:
            self.snapshot()
            return
        frame = _framed(record)
        self._files.write(self._path, self._size, [frame])
        self._size += len(frame)
        if self._size - self._snapshot_size > max(SNAPSHOT_AFTER, self._snapshot_size):
            try:
                self.snapshot()
            except OSError as error:
                log.warning("no snapshot of the metadata could be written: %s", error)

    def delete(self, *key: str | int, happened: bool = False) -> None:
        """Forget a key."""
        if key in self.state:
            self.put({"key": list(key), "deleted": True}, happened=happened)

    def of(self, kind: str) -> list[MetadataRecord]:
        """The records whose keys begin like this."""
        return [record for key, record in self.state.items() if key[0] == kind]

    def snapshot(self) -> None:
        """Begin a new file with the state of now."""
        old = self._path
        target = self._directory / f"{self._number + 1:010}{_SUFFIX}"
        data = b"".join(map(_framed, self.state.values()))
        new = target.with_suffix(_SUFFIX + _NEW)
        self._files.create(new)
        self._files.write(new, 0, [data])
        self._files.replace(new, target)
        self._number += 1
        self._size = self._snapshot_size = len(data)
        self._behind = False
        self._files.remove(old)  # the newest counts, should this one stay

    def _apply(self, record: MetadataRecord) -> None:
        key = tuple(record["key"])
        if record.get("deleted"):
            self.state.pop(key, None)
        else:
            self.state[key] = record


def _framed(record: MetadataRecord) -> bytes:
    payload = json.dumps(record, separators=(",", ":")).encode()
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


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
