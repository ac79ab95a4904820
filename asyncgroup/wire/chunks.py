"""Chunks: the headers of records that together hold one large value.

The fields are those of a chunked message in Pulsar (PIP-37: `uuid`, `chunk_id`, `num_chunks_from_msg`, `total_chunk_msg_size`),
as text, so that any Kafka client can read them. They precede all other headers of the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from asyncgroup.model import Header

__all__ = [
    "CHUNK_COUNT",
    "CHUNK_HEADERS",
    "CHUNK_ID",
    "CHUNK_UUID",
    "TOTAL_SIZE",
    "ChunkInfo",
    "is_chunk",
    "read_chunk_info",
    "split_value",
]

CHUNK_UUID: Final = "ag-chunk-uuid"
"""Header with the id of the value, the same in all of its chunks."""
CHUNK_ID: Final = "ag-chunk-id"
"""Header with the number of the chunk, from 0 on."""
CHUNK_COUNT: Final = "ag-chunk-count"
"""Header with the number of chunks of the value."""
TOTAL_SIZE: Final = "ag-chunk-size"
"""Header with the size of the whole value in bytes."""

CHUNK_HEADERS: Final = (CHUNK_UUID, CHUNK_ID, CHUNK_COUNT, TOTAL_SIZE)
"""The headers of a chunk, in this order."""

_MAX_NUMBER_LENGTH: Final = 19
_MAX_UUID_LENGTH: Final = 1024
"""Ids are kept in memory and logged."""


class ChunkInfo(NamedTuple):
    """The values in the headers of a chunk."""

    uuid: str
    chunk_id: int
    chunk_count: int
    total_size: int
    """Bytes of the whole value."""

    def headers(self) -> list[Header]:
        """Return the headers of the chunk."""
        return [(name, str(field).encode()) for name, field in zip(CHUNK_HEADERS, self, strict=True)]


def split_value(uuid: str, value: bytes, room: int) -> Iterator[tuple[ChunkInfo, bytes]]:
    """Yield the chunks of a value, each with up to `room` of its bytes."""
    size = len(value)
    count = -(-size // room)
    for index in range(count):
        yield ChunkInfo(uuid, index, count, size), value[index * room : (index + 1) * room]


def is_chunk(headers: Sequence[Header]) -> bool:
    """Return whether the record with these headers may be a chunk."""
    return len(headers) >= len(CHUNK_HEADERS) and headers[0][0] == CHUNK_UUID


def read_chunk_info(headers: Sequence[Header]) -> ChunkInfo | None:
    """Return what the headers say; None if they are not those of a chunk, or impossible."""
    first = headers[: len(CHUNK_HEADERS)]
    if tuple(name for name, _ in first) != CHUNK_HEADERS:
        return None
    uuid, *texts = [content or b"" for _, content in first]
    if not 0 < len(uuid) <= _MAX_UUID_LENGTH or not all(
        text.isdigit() and len(text) <= _MAX_NUMBER_LENGTH for text in texts
    ):
        return None
    index, count, size = map(int, texts)
    return ChunkInfo(uuid.decode(errors="replace"), index, count, size) if index < count <= size else None
