"""Write the messages of a batch: what `entry` reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from asyncgroup.pulsar.wire.compiling import compile_writer
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata

__all__ = ["append_message"]

_U32: Final = struct.Struct(">I")
_NO_SIZE: Final = b"\x00\x00\x00\x00"
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
    write = _compiled[0] if _compiled else _writer()
    body += _NO_SIZE
    try:
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
    except (AttributeError, OverflowError, TypeError, ValueError, struct.error) as error:
        del body[at:]
        if isinstance(error, AttributeError):  # `encode` or `items` of a value of another type
            raise TypeError(f"SingleMessageMetadata: {error}") from error
        raise


def _writer() -> Callable[..., None]:
    _compiled.append(compile_writer(SingleMessageMetadata))
    return _compiled[0]
