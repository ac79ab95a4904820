"""The broker's half of request and response frames; the client's half and the table of APIs are in `wire/protocol.py`."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire.codec import decode_from
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import Buffer, skip_tags
from asyncgroup.wire.protocol import API_VERSIONS_KEY, APIS, INT16, INT32, REQUEST_HEADER, with_size

__all__ = ["DecodedRequestHeader", "decode_request_body", "decode_request_header", "encode_response"]


class DecodedRequestHeader(NamedTuple):
    """The header of a received request; `body` is the position of the message, which follows the header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def encode_response(message: Message, version: int, correlation_id: int) -> list[bytes]:
    """Return a response frame, as pieces to write in order."""
    flexible = version >= APIS[message.API_KEY].flexible_from and message.API_KEY != API_VERSIONS_KEY
    pieces: list[bytes] = [b"", INT32.pack(correlation_id) + (b"\x00" if flexible else b"")]
    return with_size(message, version, pieces)


def decode_request_header(frame: Buffer) -> DecodedRequestHeader:
    """Decode the header of a request frame (without its size).

    For an unknown API only the first three fields are decoded: `client_id` is None and `body` the end of the frame. A
    version newer than the known ones is assumed to have the newest header version. Raises DecodeError for malformed bytes.
    """
    try:
        key, version, correlation_id = REQUEST_HEADER.unpack_from(frame, 0)
        api = APIS.get(key)
        if api is None:
            return DecodedRequestHeader(key, version, correlation_id, None, len(frame))
        (length,) = INT16.unpack_from(frame, 8)
        position = 10 + max(length, 0)
        client_id = None if length < 0 else str(frame[10:position], "utf-8")
        if version >= api.flexible_from:
            position = skip_tags(frame, position)
    except (IndexError, struct.error) as error:
        raise DecodeError("request header: truncated") from error
    except (ValueError, DecodeError) as error:
        raise DecodeError(f"request header: {error}") from error
    if position > len(frame):
        raise DecodeError("request header: truncated")
    return DecodedRequestHeader(key, version, correlation_id, client_id, position)


def decode_request_body(header: DecodedRequestHeader, frame: Buffer) -> Any:
    """Decode the message after a header; raises DecodeError, and UnsupportedVersionError for an unknown API or version.

    Bytes after the message are ignored, as Kafka does: librdkafka appends some to a Metadata request for all topics.
    """
    if header.api_key not in APIS:
        raise UnsupportedVersionError(f"API key {header.api_key} is unknown")
    return decode_from(APIS[header.api_key].request, header.api_version, frame, header.body)[0]
