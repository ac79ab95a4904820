"""The envelope in the metadata string of a commit: topic id and window of acknowledged offsets next to the user's text.

    asyncgroup/1:<crc>:id=<topic id>;o=1;e=<epoch>;w=<window>;t=<text>

`1` is the version of the format, `crc` a CRC-32 in 8 hexadecimal digits over topic, partition, committed offset and the
body that follows; so a user's text, or an envelope copied to another offset, is not mistaken for one. Fields end with a
semicolon and unknown ones are skipped; the text is last and not escaped. CommitMetadata describes the fields. Other
strings, such as the bridge's `foreachBatch/1:…`, are text without an envelope.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["MAX_METADATA", "CommitMetadata", "decode_metadata", "encode_metadata", "window_room"]

MAX_METADATA: Final = 4096
"""The broker's default limit for the metadata of a commit (`offset.metadata.max.bytes`)."""

_ENVELOPE: Final = re.compile(r"asyncgroup/1:([0-9a-f]{8}):(.*)", re.DOTALL)
_FIELD: Final = re.compile(r"([a-z]+)=([^;]*);")
_TEXT: Final = "t="
_PREFIX: Final = "asyncgroup/1:"


class CommitMetadata(NamedTuple):
    """The decoded metadata of a commit."""

    text: str = ""
    """The user's text."""
    topic_id: UUID = m.NO_UUID
    """The topic that the offset belongs to (KIP-516); nil if unknown."""
    window: str = ""
    """The acknowledged offsets above the committed one (`window_encoding`); empty if there are none."""
    is_open: bool = False
    """Whether the member had not ended its claim at this commit; it stays True if the member crashes."""
    end_epoch: int = -1
    """The leader epoch of the last acknowledged record in `window`; -1 if unknown."""


def encode_metadata(
    tp: TopicPartition, offset: int, metadata: CommitMetadata, limit: int = MAX_METADATA
) -> str:
    """Return the metadata string of a commit of `offset`.

    That is the text alone if there is nothing else to store, or if the envelope would exceed `limit` bytes.
    """
    if metadata.topic_id == m.NO_UUID and not metadata.window and not metadata.is_open:
        return metadata.text
    body = _fields(metadata)
    sealed = f"{_PREFIX}{_crc(tp, offset, body):08x}:{body}"
    return sealed if len(sealed.encode()) <= limit else metadata.text


def window_room(others: CommitMetadata, limit: int = MAX_METADATA) -> int:
    """Return how many characters of a window fit beside the other content in `limit` bytes."""
    return max(0, limit - len(_PREFIX) - 9 - len(_fields(others._replace(window="w")).encode()) + 1)


def _fields(metadata: CommitMetadata) -> str:
    """Return the body of the envelope."""
    body = ""
    if metadata.topic_id != m.NO_UUID:
        body = _id_field(metadata.topic_id)
    if metadata.is_open:
        body += "o=1;"
    if metadata.window:
        if metadata.end_epoch >= 0:
            body += f"e={metadata.end_epoch};"
        body += f"w={metadata.window};"
    return body + _TEXT + metadata.text if metadata.text else body


@lru_cache
def _id_field(topic_id: UUID) -> str:
    return f"id={urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')};"


def decode_metadata(tp: TopicPartition, offset: int, raw: str) -> CommitMetadata:
    """Decode a metadata string; one that is not an envelope for this offset is text."""
    match = _ENVELOPE.fullmatch(raw)
    if match is None or int(match[1], 16) != _crc(tp, offset, match[2]):
        return CommitMetadata(raw)
    body, found = match[2], CommitMetadata()
    while (field := _FIELD.match(body)) is not None and not body.startswith(_TEXT):
        body = body[field.end() :]
        value = field[2]
        if field[1] == "id":
            found = found._replace(topic_id=_topic_id(value))
        elif field[1] == "o":
            found = found._replace(is_open=value == "1")
        elif field[1] == "e":
            found = found._replace(end_epoch=int(value) if value.isascii() and value.isdecimal() else -1)
        elif field[1] == "w":
            found = found._replace(window=value)
    return found._replace(text=body.removeprefix(_TEXT)) if body.startswith(_TEXT) else found


def _crc(tp: TopicPartition, offset: int, body: str) -> int:
    return zlib.crc32(f"{tp.topic}/{tp.partition}@{offset}:{body}".encode(errors="surrogatepass"))


def _topic_id(text: str) -> UUID:
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError):
        return m.NO_UUID
