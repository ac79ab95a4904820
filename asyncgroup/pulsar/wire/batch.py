"""Write the messages of a batch: what `entry` reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from asyncgroup.pulsar.wire.compiling import compile_writer
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata
from asyncgroup.pulsar.wire.varint import put_varint

__all__ = ["append_message"]

_U32: Final = struct.Struct(">I")
_NO_SIZE: Final = b"\x00\x00\x00\x00"
_PLAIN: Final = b"\x00\x00\x00\x00\x18"
"""Room for the size of the metadata, and the tag of `payload_size`."""
_SEQUENCE_ID_TAG: Final = 0x40
_NO_PROPERTIES: Final[Mapping[str, str]] = {}
_compiled: list[Callable[..., None]] = []


def append_message(
    body: bytearray,
    payload: bytes | bytearray | None,
    *,
    sequence_id: int | None = None,
    partition_key: str | None = None,
    partition_key_b64_encoded: bool = False,
    ordering_key: bytes | None = None,
    event_time: int = 0,
    properties: Mapping[str, str] = _NO_PROPERTIES,
) -> None:
    """Append a message with its metadata to the body of a batch; the payload None is a null value.

    Raises TypeError, ValueError for values that do not fit; the body is then as it was.
    """
    at = len(body)
    try:
        if (
            payload
            and sequence_id is not None
            and partition_key is None
            and ordering_key is None
            and not (event_time or properties or partition_key_b64_encoded)
        ):
            # the most frequent kind has two numbers, and metadata of less than 256 bytes
            body += _PLAIN
            put_varint(body, len(payload))
            body.append(_SEQUENCE_ID_TAG)
            put_varint(body, sequence_id)
            body[at + 3] = len(body) - at - 4
            body += payload
            return
        write = _compiled[0] if _compiled else _writer()
        body += _NO_SIZE
        write(
            body,
            properties=properties,
            partition_key=partition_key,
            payload_size=0 if payload is None else len(payload),
            event_time=event_time,
            partition_key_b64_encoded=partition_key_b64_encoded,
            ordering_key=ordering_key,
            sequence_id=sequence_id,
            null_value=payload is None,
        )
        _U32.pack_into(body, at, len(body) - at - 4)
        if payload is not None:
            body += payload
    except (AttributeError, TypeError, ValueError) as error:
        del body[at:]
        if isinstance(error, AttributeError):  # `encode` or `items` of a value of another type
            raise TypeError(f"SingleMessageMetadata: {error}") from error
        raise


def _writer() -> Callable[..., None]:
    _compiled.append(compile_writer(SingleMessageMetadata))
    return _compiled[0]
