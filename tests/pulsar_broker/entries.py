"""Metadata of entries, for tests that need no client."""

from __future__ import annotations

from asyncgroup.pulsar.wire.metadata import MessageMetadata


def metadata(**fields: object) -> MessageMetadata:
    """Return the metadata of an entry of a producer `p`."""
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 0} | fields)  # type: ignore[arg-type]
