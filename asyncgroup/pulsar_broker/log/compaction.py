"""Compaction: the last value of each key (Pulsar's `AbstractTwoPhaseCompactor`, `RawBatchConverter`). Pure functions.

A message without a value removes its key, and messages without a key are left out (`topicCompactionRetainNullKey`). An entry that
was encrypted, or cannot be read, is kept as one message. Of a batch the messages that are left out stay as empty ones, so that the
others keep their indexes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.checksum import crc32c
from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData
from asyncgroup.pulsar.wire.compression import compress_body
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar.wire.keys import decode_key
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata
from asyncgroup.pulsar_broker.log.topic_log import CompactedEntries, StoredEntry, TopicLog

__all__ = ["compact"]

_LIMIT: Final = 1 << 30
_U32: Final = struct.Struct(">I")
_CRC_MAGIC: Final = b"\x0e\x01"

_Latest = dict[bytes, tuple[int, int]]
"""By key, entry and index of its last value."""


def compact(log: TopicLog) -> CompactedEntries:
    """Return what is left of the entries of a log."""
    latest: _Latest = {}
    before = log.compacted
    kept = [] if before is None else list(before.entries)
    start, end = 0 if before is None else before.end, log.read_end
    added = (entry for entry in log if start <= entry.index < end and entry.index not in log.hidden)
    source = [*kept, *added]
    for entry in source:
        for index, key, has_value in _keys_of(entry):
            if has_value:
                latest[key] = (entry.index, index)
            else:
                latest.pop(key, None)
    left = (_without_others(entry, latest) for entry in source)
    return CompactedEntries(end, tuple(entry for entry in left if entry is not None))


def _opened(entry: StoredEntry) -> Entry | None:
    """Return an entry whose batch can be read; None for others."""
    metadata = entry.metadata
    if metadata.num_messages_in_batch is None or metadata.encryption_keys:
        return None
    pushed = CommandMessage(consumer_id=0, message_id=MessageIdData(ledger_id=0, entry_id=0))
    try:
        return decode_entry(pushed, entry.payload, 0, -1, _LIMIT, check=False)
    except DecodeError:
        return None


def _keys_of(entry: StoredEntry) -> list[tuple[int, bytes, bool]]:
    """Return the index of each message with a key, the key, and whether it has a value."""
    opened = _opened(entry)
    if opened is None:
        key = entry.metadata.partition_key
        if key is None:
            return []
        is_base64 = entry.metadata.partition_key_b64_encoded
        return [(0, decode_key(key, is_base64=is_base64), not _is_empty(entry))]
    found = []
    for message in opened.messages():
        message_key = message.key
        if message_key is not None:
            found.append((message.index, message_key, bool(message.value)))
    return found


def _is_empty(entry: StoredEntry) -> bool:
    return entry.metadata.null_value or (not entry.metadata.uncompressed_size and _body_size(entry) == 0)


def _body_size(entry: StoredEntry) -> int:
    at = 6 if entry.payload[:2] == _CRC_MAGIC else 0
    (size,) = _U32.unpack_from(entry.payload, at)
    return len(entry.payload) - at - 4 - int(size)


def _without_others(entry: StoredEntry, latest: Mapping[bytes, tuple[int, int]]) -> StoredEntry | None:
    """Return an entry with the messages that are the last ones of their keys; None if it has none of them."""
    keep = {index for index, key, _ in _keys_of(entry) if latest.get(key) == (entry.index, index)}
    if not keep:
        return None
    opened = _opened(entry)
    if opened is None or len(keep) == opened.count:
        return entry
    return _rewritten(entry, opened, keep)


def _rewritten(entry: StoredEntry, opened: Entry, keep: set[int]) -> StoredEntry:
    assert opened.bounds is not None
    gone = SingleMessageMetadata(payload_size=0, compacted_out=True).encode()
    body = bytearray()
    for index, (start, _, end) in enumerate(opened.bounds):
        if index in keep:
            body += opened.body[start - 4 : end]
        else:
            body += _U32.pack(len(gone)) + gone
    metadata = replace(
        entry.metadata, uncompressed_size=len(body), compacted_batch_indexes=tuple(sorted(keep))
    )
    encoded = metadata.encode()
    rest = b"".join((_U32.pack(len(encoded)), encoded, compress_body(metadata.compression, body)))
    payload = b"".join((_CRC_MAGIC, _U32.pack(crc32c(rest)), rest))
    return replace(entry, metadata=metadata, payload=payload)
