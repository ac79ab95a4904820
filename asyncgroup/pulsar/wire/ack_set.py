"""Which messages of a batch are acknowledged: a set of indexes, as 64-bit words on the wire.

Bit i, counted from the lowest of the first word, is 1 while message i is **not** acknowledged. High words that are zero
are left out, so a missing word means acknowledged (Pulsar's `BitSetRecyclable`, `CommandMessage.ack_set`).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bits_of", "full_set", "words_of"]

_WORD = (1 << 64) - 1
_SIGN = 1 << 63


def full_set(size: int) -> int:
    """Return the set in which none of `size` messages is acknowledged."""
    return (1 << size) - 1


def bits_of(words: Sequence[int]) -> int:
    """Return the set as one integer."""
    bits = 0
    for number, word in enumerate(words):
        bits |= (word & _WORD) << 64 * number
    return bits


def words_of(bits: int) -> list[int]:
    """Return the set as signed words."""
    words = []
    while bits:
        word = bits & _WORD
        words.append(word - (1 << 64) if word & _SIGN else word)
        bits >>= 64
    return words
