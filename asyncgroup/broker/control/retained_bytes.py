"""Estimate of the memory that a recorded request or response takes."""

from __future__ import annotations

import sys
from typing import Final

from asyncgroup.wire.message import Message

__all__ = ["retained_bytes"]

_SMALL_FRAME: Final = 512
_BYTES_OF_A_SMALL_FRAME: Final = 1024
_BYTES_PER_BYTE: Final = 16
"""Upper bound of the memory per byte of the frame; small messages are not measured, as that would take too long."""

_SMALL_NUMBER: Final = 1 << 8  # CPython shares the objects of smaller numbers


def retained_bytes(message: Message, frame_bytes: int, *, payloads: bool) -> int:
    """Return the estimated memory of a decoded message in bytes, including records if `payloads`.

    `frame_bytes` is the message's size on the wire.
    """
    if frame_bytes <= _SMALL_FRAME:
        return _BYTES_OF_A_SMALL_FRAME + _BYTES_PER_BYTE * frame_bytes
    return _measured(message, payloads)


def _measured(value: object, payloads: bool) -> int:
    if isinstance(value, Message):
        names = [name for name in value.__slots__ if payloads or name != "records"]
        return sys.getsizeof(value) + sum([_measured(getattr(value, name), payloads) for name in names])
    if isinstance(value, list):
        return sys.getsizeof(value) + sum([_measured(one, payloads) for one in value])
    if isinstance(value, memoryview):
        return sys.getsizeof(value) + value.nbytes
    if value is None or (isinstance(value, int) and 0 <= value < _SMALL_NUMBER):
        return 0
    return sys.getsizeof(value)
