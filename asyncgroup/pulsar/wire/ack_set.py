"""Which messages of a batch are acknowledged: a set of indexes, as 64-bit words on the wire.

Bit i, counted from the lowest of the first word, is 1 while message i is **not** acknowledged. High words that are zero
are left out, so a missing word means acknowledged (Pulsar's `BitSetRecyclable`, `CommandMessage.ack_set`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

__all__ = ["MAX_SIZE", "bits_of", "full_set", "indexes_of", "set_of", "words_of"]

MAX_SIZE: Final = 1 << 20
"""Messages of the largest batch of which a set is made by an id alone: one that was stored may claim any size."""

_WORD = (1 << 64) - 1
_SIGN = 1 << 63


def full_set(size: int) -> int:
    """Return the set in which none of `size` messages is acknowledged."""
    return (1 << size) - 1


def set_of(indexes: Iterable[int], size: int) -> int:
    """Return the set of these indexes; those that are not below `size` are ignored."""
    bits = bytearray(size + 7 >> 3)
    for index in indexes:
        if 0 <= index < size:
            bits[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(bits, "little")


def indexes_of(bits: int) -> Iterator[int]:
    """Yield the indexes in a set, in order."""
    for number, byte in enumerate(bits.to_bytes(bits.bit_length() + 7 >> 3, "little")):
        if byte == 0xFF:
            yield from range(number << 3, (number << 3) + 8)
        elif byte:
            for index in range(number << 3, (number << 3) + 8):
                if byte >> (index & 7) & 1:
                    yield index


def bits_of(words: Sequence[int]) -> int:
    """Return the set as one integer."""
    if len(words) == 1:
        return words[0] & _WORD
    return int.from_bytes(b"".join((word & _WORD).to_bytes(8, "little") for word in words), "little")


def words_of(bits: int) -> list[int]:
    """Return the set as signed words."""
    data = bits.to_bytes(bits.bit_length() + 63 >> 6 << 3, "little")
    words = (int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))
    return [word - (1 << 64) if word & _SIGN else word for word in words]
