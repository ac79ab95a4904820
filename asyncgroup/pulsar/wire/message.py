"""ProtoMessage: the base of all messages of Pulsar's protocol, which encodes and decodes them."""

from __future__ import annotations

from typing import Any, Final, Self

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.compiling import compile_message

__all__ = ["ProtoMessage"]


class ProtoMessage:
    """Base of all messages."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the encoded fields. Raises TypeError, ValueError for values that do not fit their fields."""
        out = bytearray()
        _functions(type(self))[0](self, out)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | bytearray, start: int = 0, end: int | None = None) -> Self:
        """Return the message in these bytes. Raises DecodeError if they are malformed or a required field is missing."""
        try:
            message: Self = _functions(cls)[1](data, start, len(data) if end is None else end)
        except IndexError:
            raise DecodeError(f"{cls.__name__}: the data ends within a field") from None
        return message


_COMPILED: Final[dict[type[ProtoMessage], tuple[Any, Any]]] = {}


def _functions(cls: type[ProtoMessage]) -> tuple[Any, Any]:
    found = _COMPILED.get(cls)
    if found is None:
        found = _COMPILED[cls] = compile_message(cls)
    return found
