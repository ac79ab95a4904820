"""Frames of the client: requests, headers and responses to bytes and back; and the table of APIs.

The broker's half is in `broker/net/frames.py`.

A frame is a size of four bytes, a header and a message (Kafka's protocol guide). Two exceptions to the rules of header
versions: the ApiVersions response always has header version 0, so that clients of any version can read it (KIP-511), and
the client id in a request header is never a compact string.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Final, TypeVar

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages
from asyncgroup.wire.codec import decode, decode_from, write_pieces
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import Buffer, skip_tags
from asyncgroup.wire.schema import NO_VERSIONS, VersionRange, parse_head
from asyncgroup.wire.tables import TABLES

__all__ = [
    "APIS",
    "API_BY_NAME",
    "API_VERSIONS_KEY",
    "INT16",
    "INT32",
    "REQUEST_HEADER",
    "Api",
    "decode_response",
    "encode_request",
    "read_correlation_id",
    "with_size",
]

API_VERSIONS_KEY: Final = 18
REQUEST_HEADER = struct.Struct(">hhi")
"""The fixed part of a request header: API key, version, correlation id."""

INT32 = struct.Struct(">i")
INT16 = struct.Struct(">h")
_INT16_MAX = 0x7FFF
_UNSUPPORTED_VERSION = INT16.pack(35)
_NO_KEYS: Final = INT32.pack(0)  # the empty array of an ApiVersions response in version 0
_NEVER: Final = _INT16_MAX + 1  # above every version
R = TypeVar("R", bound=Message)


class Api:
    """One API: its key, Kafka's name, and its stable versions; `request` and `response` are its message classes.

    Versions from `flexible_from` on are flexible (KIP-482); if none is, `flexible_from` is above all versions.
    """

    def __init__(self, key: int, name: str, versions: VersionRange, flexible_from: int) -> None:
        self.key = key
        self.name = name
        self.versions = versions
        self.flexible_from = flexible_from

    def __repr__(self) -> str:
        return f"<Api {self.name} ({self.key}), versions {self.versions}>"

    @cached_property
    def request(self) -> type[Message]:
        """The class of its requests; its module is imported on first use."""
        found: type[Message] = getattr(messages, f"{self.name}Request")
        return found

    @cached_property
    def response(self) -> type[Message]:
        """The class of its responses."""
        found: type[Message] = getattr(messages, f"{self.name}Response")
        return found


def _apis() -> dict[int, Api]:
    found = {}
    for name, table in TABLES.items():
        if name.endswith("Request"):
            head = parse_head(table)
            flexible_from = _NEVER if head.flexible == NO_VERSIONS else head.flexible.low
            api = Api(head.api_key, name.removesuffix("Request"), head.stable_versions, flexible_from)
            found[head.api_key] = api
    return found


APIS: Final[dict[int, Api]] = _apis()
"""All known APIs by key."""

API_BY_NAME: Final[dict[str, Api]] = {api.name: api for api in APIS.values()}
"""All known APIs by Kafka's name, e.g. `Fetch`."""


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> list[bytes]:
    """Return a request frame, as pieces to write in order, because large payloads are not copied.

    Raises UnsupportedVersionError, see `codec.encode`.
    """
    name = b"" if client_id is None else client_id.encode()
    if len(name) > _INT16_MAX:
        raise UnsupportedVersionError(
            f"the client id has {len(name)} bytes, at most {_INT16_MAX} are allowed"
        )
    name = INT16.pack(-1 if client_id is None else len(name)) + name
    tags = b"\x00" if version >= APIS[message.API_KEY].flexible_from else b""
    pieces: list[bytes] = [b"", REQUEST_HEADER.pack(message.API_KEY, version, correlation_id) + name + tags]
    return with_size(message, version, pieces)


def with_size(message: Message, version: int, pieces: list[bytes]) -> list[bytes]:
    """Append the message to `pieces`, put the size of all into the first, and return those that are not empty.

    From Python 3.12 on, asyncio's `writelines` never finishes an empty last piece: the transport polls without end, and does not
    report that the other side has closed the connection (`_adjust_leftover_buffer` in `selector_events.py`).
    """
    write_pieces(message, version, pieces)
    pieces[0] = INT32.pack(sum(map(len, pieces)))
    return list(filter(None, pieces))


def read_correlation_id(frame: Buffer) -> int:
    """Return the correlation id of a response frame (without its size); raises DecodeError if it is too short."""
    if len(frame) < 4:
        raise DecodeError(f"a response of {len(frame)} bytes is too short for its header")
    correlation_id: int = INT32.unpack_from(frame, 0)[0]
    return correlation_id


def decode_response(cls: type[R], version: int, frame: Buffer) -> R:
    """Decode the message of a response frame (without its size).

    A broker that does not support the version of an ApiVersions request answers in version 0 with error 35 (KIP-511). The
    error code is the first field in every version, so this is detected from the bytes. Some brokers answer in another
    format, such as librdkafka's mock cluster (`rdkafka_mock_handlers.c`): then only the error code is read. That one also ends
    flexible responses with one more empty section of tagged fields, one zero byte. Raises DecodeError for other bytes left over.
    """
    position = 4
    if cls.API_KEY == API_VERSIONS_KEY and frame[4:6] == _UNSUPPORTED_VERSION:
        try:
            return decode(cls, 0, frame, position)
        except DecodeError:
            return decode(cls, 0, _UNSUPPORTED_VERSION + _NO_KEYS)
    is_flexible = version >= APIS[cls.API_KEY].flexible_from
    if cls.API_KEY != API_VERSIONS_KEY and is_flexible:
        try:
            position = skip_tags(frame, position)
        except IndexError as error:
            raise DecodeError(f"response header of {cls.NAME} v{version}: truncated") from error
    message, end = decode_from(cls, version, frame, position)
    rest = len(frame) - end
    if rest == 0 or (rest == 1 and is_flexible and frame[end] == 0):
        return message
    raise DecodeError(f"{cls.NAME} v{version}: {rest} bytes are left over")
