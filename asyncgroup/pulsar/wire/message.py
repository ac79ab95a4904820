"""ProtoMessage: the base of all messages of Pulsar's protocol, which encodes and decodes them."""

from __future__ import annotations

from typing import Final, Self

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.compiling import CompiledMessage, compile_message

__all__ = ["ProtoMessage"]


class ProtoMessage:
    """Base of all messages."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the encoded fields. Raises TypeError, ValueError for values that do not fit their fields."""
        out = bytearray()
        cls = type(self)
        try:
            (_COMPILED.get(cls) or _compiled(cls)).encode(self, out)
        except AttributeError as error:  # `encode` or `items` of a value of another type
            raise TypeError(f"{cls.__name__}: {error}") from error
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | bytearray, start: int = 0, end: int | None = None) -> Self:
        """Return the message in these bytes. Raises DecodeError if they are malformed or a required field is missing."""
        try:
            message: Self = (_COMPILED.get(cls) or _compiled(cls)).decode(
                data, start, len(data) if end is None else end
            )
        except IndexError:
            raise DecodeError(f"{cls.__name__}: the data ends within a field") from None
        except RecursionError:  # an id in an id in an id …
            raise DecodeError(f"{cls.__name__}: messages are nested too deeply") from None
        return message


_COMPILED: Final[dict[type[ProtoMessage], CompiledMessage]] = {}


def _compiled(cls: type[ProtoMessage]) -> CompiledMessage:
    found = _COMPILED[cls] = compile_message(cls)
    return found
