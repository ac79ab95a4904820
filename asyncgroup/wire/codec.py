"""Encoding and decoding of typed messages, compiled on first use for each (message, version).

The compilers write one Python function for a message in one version: runs of fixed-size fields become a single
`struct` call, everything else straight-line code. Sources: Kafka's protocol guide and the semantics of
`MessageDataGenerator.java` (what is written for absent, nullable and tagged fields).

A field that the version lacks is dropped if Kafka marks it ignorable or if it holds its default; otherwise encoding
raises UnsupportedVersionError, as Kafka's own client does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages
from asyncgroup.wire.compiling import MAX_STRING
from asyncgroup.wire.decoder import decoder_source
from asyncgroup.wire.encoder import encoder_source
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import Buffer, packer, read_uuid, read_uvarint, skip_tags, unpacker, uvarint
from asyncgroup.wire.schema import MessageSpec, message_spec

__all__ = ["decode", "decode_from", "decoder", "encode", "encoder", "write_pieces"]

M = TypeVar("M", bound=Message)
Encoder: TypeAlias = Callable[[Any, Callable[[bytes], None]], None]
Decoder: TypeAlias = Callable[[bytes, int], tuple[Any, int]]


def _missing(message: str, field: str, version: int) -> None:
    raise UnsupportedVersionError(
        f"{message}.{field} is set, but version {version} of {message} has no such field; leave its default"
    )


def _null(field: str, version: int) -> None:
    raise UnsupportedVersionError(f"{field} is None, which version {version} cannot say")


def _unexpected_null(field: str) -> None:
    raise DecodeError(f"{field} is null, which its version does not allow")


def _too_long(field: str, size: int) -> None:
    raise DecodeError(f"{field} has {size} bytes, {MAX_STRING} are allowed")


def _too_long_a_string(field: str, size: int) -> None:
    raise UnsupportedVersionError(f"{field} has {size} bytes, {MAX_STRING} are allowed")


def _too_many(field: str, count: int) -> None:
    raise DecodeError(f"{count} {field} are more than the bytes can hold, or than a message may have")


def _wrong_size(field: str) -> None:
    raise DecodeError(f"{field} does not take as many bytes as its tag says")


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
"""What compiled functions call."""


def _compiled(function: str, source: Callable[[MessageSpec, int], str], name: str, version: int) -> Any:
    spec = message_spec(name)
    if version not in spec.versions:
        raise UnsupportedVersionError(f"{name}: version {version} is not in {spec.versions}")
    cls = getattr(messages, name)
    namespace = {**_NAMES, "NO_UUID": messages.NO_UUID, name: cls, f"C_{name}": cls}
    namespace.update((f"C_{inner}", getattr(cls, inner)) for inner in spec.structs)
    exec(compile(source(spec, version), f"<{function} {name} v{version}>", "exec"), namespace)  # noqa: S102  our own text
    return namespace[function]


@cache
def encoder(name: str, version: int) -> Encoder:
    """The function `(message, append) -> None` that hands the message's bytes to `append` in pieces."""
    write: Encoder = _compiled("write", encoder_source, name, version)
    return write


@cache
def decoder(name: str, version: int) -> Decoder:
    """The function `(bytes, position) -> (message, position behind it)`, without the checks of `decode_from`."""
    read: Decoder = _compiled("read", decoder_source, name, version)
    return read


def encode(message: Message, version: int) -> bytes:
    """The message's bytes in `version`, without header or size.

    Raises UnsupportedVersionError for a version out of range or a value that it cannot say.
    """
    pieces: list[bytes] = []
    write_pieces(message, version, pieces)
    return b"".join(pieces)


def write_pieces(message: Message, version: int, pieces: list[bytes]) -> None:
    """Append the message's bytes to `pieces`; byte fields go in as they are (bytes-like), without a copy."""
    write = encoder(message.NAME, version)
    try:
        write(message, pieces.append)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise UnsupportedVersionError(
            f"{message.NAME} v{version} cannot hold {message!r:.300}: {error}"
        ) from error


def _is_read_in_place(buffer: Buffer, name: str) -> bool:
    """Whether the decoder can slice the buffer itself; a fetch of megabytes comes in a bytearray (`framing.py`)."""
    return isinstance(buffer, bytes) or (isinstance(buffer, bytearray) and not _has_bytes(name))


@cache
def _has_bytes(name: str) -> bool:
    """Whether a message has fields of bytes, which would come out as slices of the buffer's own type."""
    spec = message_spec(name)
    return any(
        field.element == "bytes" for struct_ in (spec.top, *spec.structs.values()) for field in struct_.fields
    )


def decode_from(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> tuple[M, int]:
    """Read one message; returns it and the position behind it.

    Fields of records are views into `buffer`: into itself if it is `bytes`, or a `bytearray` with a message that has
    no fields of bytes beside them (it must not be changed any more), else into a copy. Raises DecodeError for bytes
    that are cut short or don't fit, UnsupportedVersionError for a version out of range.
    """
    read = decoder(cls.NAME, version)
    data: Any = buffer if _is_read_in_place(buffer, cls.NAME) else bytes(buffer)
    try:
        message, end = read(data, position)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"{cls.NAME} v{version}: cut short") from error
    except (ValueError, DecodeError) as error:
        raise DecodeError(f"{cls.NAME} v{version}: {error}") from error
    if end > len(data):
        raise DecodeError(f"{cls.NAME} v{version}: cut short, {end - len(data)} bytes are missing")
    return message, end


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Read one message that fills the buffer to its end; also raises DecodeError for bytes left over."""
    message, end = decode_from(cls, version, buffer, position)
    if end != len(buffer):
        raise DecodeError(f"{cls.NAME} v{version}: {len(buffer) - end} bytes are left over")
    return message
