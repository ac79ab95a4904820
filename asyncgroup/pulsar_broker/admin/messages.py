"""A single entry as the admin API shows it (`PersistentTopicsBase.generateResponseWithEntry`)."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Final

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.pulsar.wire.compression import decompress_body
from asyncgroup.pulsar.wire.frames import payload_bounds
from asyncgroup.pulsar_broker.admin.http import RawAnswer
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry

__all__ = ["entry_answer"]

_LIMIT: Final = 1 << 30


def entry_answer(entry: StoredEntry) -> RawAnswer:
    """Return its uncompressed body, with its metadata as headers; an encrypted body stays as it is."""
    metadata, (ledger, number) = entry.metadata, entry.position
    body = b""
    if entry.payload:  # a marker of a transaction has none
        body = entry.payload[payload_bounds(entry.payload, 0, check=False).payload :]
    with contextlib.suppress(CorruptRecordsError, UnsupportedVersionError):  # of an encrypted one
        body = decompress_body(metadata.compression, body, metadata.uncompressed_size, _LIMIT)
    headers = {
        "Content-Type": "application/octet-stream",
        "X-Pulsar-Message-ID": f"{ledger}:{number}",
        "X-Pulsar-publish-time": _time(metadata.publish_time),
    }
    if metadata.event_time:
        headers["X-Pulsar-event-time"] = _time(metadata.event_time)
    if metadata.num_messages_in_batch is not None:
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.properties:
        headers["X-Pulsar-PROPERTY"] = json.dumps(dict(metadata.properties))
    return RawAnswer(body, headers)


def _time(milliseconds: int) -> str:
    """Return a time as text: that of a client is any number, also one that is no date."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
