"""The envelope in the metadata string of a commit: stores the topic id next to the user's text.

    asyncgroup/1:<crc>:id=<topic id>;t=<text>

`1` is the version of the format, `crc` a CRC-32 in 8 hexadecimal digits over topic, partition, committed offset and the
body that follows; so a user's text, or an envelope copied to another offset, is not mistaken for one. Fields end with a
semicolon and unknown ones are skipped; the text is last and not escaped. Other strings, such as the bridge's
`foreachBatch/1:…`, are text without an envelope.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.model import TopicPartition
from asyncgroup.wire.messages import NO_UUID

__all__ = ["MAX_METADATA", "CommitMetadata", "decode_metadata", "encode_metadata"]

MAX_METADATA: Final = 4096
"""The broker's default limit for the metadata of a commit (`offset.metadata.max.bytes`)."""

_ENVELOPE: Final = re.compile(r"asyncgroup/1:([0-9a-f]{8}):(.*)", re.DOTALL)
_FIELD: Final = re.compile(r"([a-z]+)=([^;]*);")
_TEXT: Final = "t="


class CommitMetadata(NamedTuple):
    """The decoded metadata of a commit."""

    text: str = ""
    """The user's text."""
    topic_id: UUID = NO_UUID
    """The topic that the offset belongs to (KIP-516); nil if unknown."""


def encode_metadata(tp: TopicPartition, offset: int, metadata: CommitMetadata) -> str:
    """Return the metadata string of a commit of `offset`.

    That is the text alone without a topic id, or if the envelope would exceed `MAX_METADATA`.
    """
    if metadata.topic_id == NO_UUID:
        return metadata.text
    body = f"id={urlsafe_b64encode(metadata.topic_id.bytes).decode().rstrip('=')};"
    if metadata.text:
        body += _TEXT + metadata.text
    sealed = f"asyncgroup/1:{_crc(tp, offset, body):08x}:{body}"
    return sealed if len(sealed.encode()) <= MAX_METADATA else metadata.text


def decode_metadata(tp: TopicPartition, offset: int, raw: str) -> CommitMetadata:
    """Decode a metadata string; one that is not an envelope for this offset is text."""
    match = _ENVELOPE.fullmatch(raw)
    if match is None or int(match[1], 16) != _crc(tp, offset, match[2]):
        return CommitMetadata(raw)
    body, topic_id = match[2], NO_UUID
    while (field := _FIELD.match(body)) is not None and not body.startswith(_TEXT):
        body = body[field.end() :]
        if field[1] == "id":
            topic_id = _topic_id(field[2])
    return CommitMetadata(body.removeprefix(_TEXT) if body.startswith(_TEXT) else "", topic_id)


def _crc(tp: TopicPartition, offset: int, body: str) -> int:
    return zlib.crc32(f"{tp.topic}/{tp.partition}@{offset}:{body}".encode(errors="surrogatepass"))


def _topic_id(text: str) -> UUID:
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError):
        return NO_UUID
