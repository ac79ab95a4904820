"""Encode and decode messages and frames, by functions compiled on first use for each (message, version).

`encoder` and `decoder` write one Python function per message and version: adjacent fixed-size fields become a single
`struct` call, everything else straight-line code. Sources: Kafka's protocol guide and the semantics of
`MessageDataGenerator.java` (absent, nullable and tagged fields).

A field that the version does not have is not written if Kafka marks it ignorable or if it has its default value;
otherwise encoding raises UnsupportedVersionError, as Kafka's own client does.

A frame is a size of four bytes, a header and a message. Two exceptions to the rules of header versions: the ApiVersions
response always has header version 0, so that clients of any version can read it (KIP-511), and the client id in a request
header is never a compact string.

The functions `*_versioned` read and write messages with a two-byte prefix. It is the version for a member's subscription
and assignment (`ConsumerProtocol.java`), and for the values of __consumer_offsets records. For the keys of those records,
which have only version 0, it is the record type, Kafka's `apiKey` of the message
(`MessageUtil.toCoordinatorTypePrefixedBytes`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages
from asyncgroup.wire.apis import API_VERSIONS_KEY, APIS
from asyncgroup.wire.compiling import MAX_STRING
from asyncgroup.wire.decoder import decoder_source
from asyncgroup.wire.encoder import encoder_source
from asyncgroup.wire.kafka_releases import needs_release
from asyncgroup.wire.message import NO_UUID, Message
from asyncgroup.wire.primitives import Buffer, packer, read_uuid, read_uvarint, skip_tags, unpacker, uvarint
from asyncgroup.wire.schema import MessageSpec, message_spec

__all__ = [
    "INT16",
    "INT32",
    "REQUEST_HEADER",
    "decode",
    "decode_from",
    "decode_response",
    "decode_versioned",
    "decoder",
    "encode",
    "encode_request",
    "encode_versioned",
    "encoder",
    "read_correlation_id",
    "read_prefix",
    "with_size",
    "write_pieces",
]

M = TypeVar("M", bound=Message)
REQUEST_HEADER = struct.Struct(">hhi")
"""The fixed part of a request header: API key, version, correlation id."""

INT32 = struct.Struct(">i")
INT16 = struct.Struct(">h")
_INT16_MAX = 0x7FFF
_UNSUPPORTED_VERSION = INT16.pack(35)
_NO_KEYS: Final = INT32.pack(0)  # the empty array of an ApiVersions response in version 0
Encoder: TypeAlias = Callable[[Any, Callable[[bytes], None]], None]
Decoder: TypeAlias = Callable[[bytes, int], tuple[Any, int]]


def _missing(message: str, field: str, version: int) -> None:
    if (needed := needs_release(message, field)) is not None:
        raise UnsupportedVersionError(f"{needed}: version {version} of {message} does not have {field}")
    raise UnsupportedVersionError(
        f"{message}.{field} is set, but version {version} of {message} does not have this field: leave it at its default"
    )


def _null(field: str, version: int) -> None:
    raise UnsupportedVersionError(f"{field} is None, but it is not nullable in version {version}")


def _unexpected_null(field: str) -> None:
    raise DecodeError(f"{field} is null, but it is not nullable in this version")


def _too_long(field: str, size: int) -> None:
    raise DecodeError(f"{field} has {size} bytes, at most {MAX_STRING} are allowed")


def _too_long_a_string(field: str, size: int) -> None:
    raise UnsupportedVersionError(f"{field} has {size} bytes, at most {MAX_STRING} are allowed")


def _too_many(field: str, count: int) -> None:
    raise DecodeError(
        f"{field} has {count} elements: more than the remaining bytes can hold or than a message may have in total"
    )


def _wrong_size(field: str) -> None:
    raise DecodeError(f"the tagged field {field} does not have the size given with its tag")


_NAMES: dict[str, Any] = {
    "Struct": struct.Struct,
    "missing": _missing,
    "new": object.__new__,
    "null": _null,
    "packer": packer,
    "read_uvarint": read_uvarint,
    "skip_tags": skip_tags,
    "too_long": _too_long,
    "too_long_a_string": _too_long_a_string,
    "too_many": _too_many,
    "unexpected_null": _unexpected_null,
    "unpacker": unpacker,
    "uuid": read_uuid,
    "uvarint": uvarint,
    "wrong_size": _wrong_size,
}
"""Names available to the compiled functions."""


def _compiled(function: str, source: Callable[[MessageSpec, int], str], name: str, version: int) -> Any:
    spec = message_spec(name)
    if version not in spec.versions:
        raise UnsupportedVersionError(f"{name}: version {version} is not in {spec.versions}")
    cls = getattr(messages, name)
    namespace = {**_NAMES, "NO_UUID": NO_UUID, name: cls, f"C_{name}": cls}
    namespace.update((f"C_{inner}", getattr(cls, inner)) for inner in spec.structs)
    exec(compile(source(spec, version), f"<{function} {name} v{version}>", "exec"), namespace)  # noqa: S102  our own text
    return namespace[function]


@cache
def encoder(name: str, version: int) -> Encoder:
    """Return the function `(message, append) -> None` that passes the message's bytes to `append` in pieces."""
    write: Encoder = _compiled("write", encoder_source, name, version)
    return write


@cache
def decoder(name: str, version: int) -> Decoder:
    """Return the function `(bytes, position) -> (message, end position)`, without the checks of `decode_from`."""
    read: Decoder = _compiled("read", decoder_source, name, version)
    return read


def encode(message: Message, version: int) -> bytes:
    """Return the message's bytes in `version`, without header and size.

    Raises UnsupportedVersionError for a version out of range, or a value that the version cannot represent.
    """
    pieces: list[bytes] = []
    write_pieces(message, version, pieces)
    return b"".join(pieces)


def write_pieces(message: Message, version: int, pieces: list[bytes]) -> None:
    """Append the message's bytes to `pieces`; bytes-like fields are appended themselves, without a copy."""
    write = encoder(message.NAME, version)
    try:
        write(message, pieces.append)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise UnsupportedVersionError(
            f"{message.NAME} v{version} cannot represent {message!r:.300}: {error}"
        ) from error


def _without_copy(buffer: Buffer, name: str) -> Any:
    """Return the buffer if the decoder can slice it without a copy: large Fetch responses are a bytearray (`asyncgroup.net.framing`)."""
    return buffer if isinstance(buffer, bytearray) and not _has_bytes(name) else bytes(buffer)


@cache
def _has_bytes(name: str) -> bool:
    """Whether a message has fields of type `bytes`: sliced from a bytearray they would be bytearrays."""
    spec = message_spec(name)
    return any(
        field.element == "bytes" for struct_ in (spec.top, *spec.structs.values()) for field in struct_.fields
    )


def decode_from(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> tuple[M, int]:
    """Decode one message that starts at `position`; return it and the position after it.

    Fields of type `records` are memoryviews: of `buffer` itself if it is `bytes`, or a `bytearray` and the message has no
    fields of type `bytes` (the bytearray must not be modified afterwards); otherwise of a copy. Raises DecodeError for
    truncated or malformed bytes, UnsupportedVersionError for a version out of range.
    """
    read = decoder(cls.NAME, version)
    data = buffer if isinstance(buffer, bytes) else _without_copy(buffer, cls.NAME)
    try:
        message, end = read(data, position)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"{cls.NAME} v{version}: truncated") from error
    except (ValueError, DecodeError) as error:  # also bytes that are not UTF-8
        raise DecodeError(f"{cls.NAME} v{version}: {error}") from error
    # a slice beyond the end is short without an error
    if end > len(data):
        raise DecodeError(f"{cls.NAME} v{version}: truncated, {end - len(data)} bytes are missing")
    return message, end


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Decode one message that extends to the end of the buffer; also raises DecodeError for bytes left over."""
    message, end = decode_from(cls, version, buffer, position)
    if end != len(buffer):
        raise DecodeError(f"{cls.NAME} v{version}: {len(buffer) - end} bytes are left over")
    return message


# --- frames of the client: the broker's half is in `broker/net/frames.py` -------------------------------------------


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
    # the size comes first, and is the sum of what was written after it
    pieces[0] = INT32.pack(sum(map(len, pieces)))
    return list(filter(None, pieces))


def read_correlation_id(frame: Buffer) -> int:
    """Return the correlation id of a response frame (without its size); raises DecodeError if it is too short."""
    if len(frame) < 4:
        raise DecodeError(f"a response of {len(frame)} bytes is too short for its header")
    correlation_id: int = INT32.unpack_from(frame, 0)[0]
    return correlation_id


def decode_response(cls: type[M], version: int, frame: Buffer) -> M:
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
            # most headers have no tags: a single zero
            position = skip_tags(frame, position) if frame[position] else position + 1
        except IndexError as error:
            raise DecodeError(f"response header of {cls.NAME} v{version}: truncated") from error
    message, end = decode_from(cls, version, frame, position)
    rest = len(frame) - end
    if rest == 0 or (rest == 1 and is_flexible and frame[end] == 0):
        return message
    raise DecodeError(f"{cls.NAME} v{version}: {rest} bytes are left over")


# --- messages with a prefix ------------------------------------------------------------------------------------------


def encode_versioned(message: Message, version: int) -> bytes:
    """Return the prefix and the message in `version` (0 for the key of a __consumer_offsets record).

    Raises UnsupportedVersionError as `encode` does.
    """
    is_key = message_spec(message.NAME).kind == "coordinator-key"
    return INT16.pack(message.API_KEY if is_key else version) + encode(message, version)


def read_prefix(data: Buffer) -> int:
    """Return the prefix: the version, or a key's record type. Raises DecodeError for less than two bytes."""
    if len(data) < INT16.size:
        raise DecodeError(f"{len(data)} bytes are too few for a version of {INT16.size} bytes")
    prefix: int = INT16.unpack_from(data, 0)[0]
    return prefix


def decode_versioned(cls: type[M], data: Buffer) -> M:
    """Decode a message with its prefix.

    A version newer than the known ones is decoded as the newest known one, and the rest of the bytes is ignored: newer
    versions of these formats only add fields at the end. Raises DecodeError for malformed bytes, and for a key of another
    record type.
    """
    prefix, spec = read_prefix(data), message_spec(cls.NAME)
    if spec.kind == "coordinator-key":
        if prefix != spec.api_key:
            raise DecodeError(f"{cls.NAME}: the key's type is {prefix}, not {spec.api_key}")
        return decode_from(cls, 0, data, INT16.size)[0]
    if prefix < spec.versions.low:
        raise DecodeError(f"{cls.NAME}: version {prefix} is not in {spec.versions}")
    return decode_from(cls, min(prefix, spec.versions.high), data, INT16.size)[0]
