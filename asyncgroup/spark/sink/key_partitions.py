"""The partitions of a whole column of keys, as the producer's default partitioner chooses them.

Python computes murmur2 for one key in the time in which a record is written; numpy computes it for all keys of an Arrow batch
at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncgroup.hashing.murmur2 import MULTIPLIER, SEED

if TYPE_CHECKING:
    import pyarrow

__all__ = ["LONGEST_KEY", "key_partitions"]

LONGEST_KEY: Final = 256
"""Bytes of a key up to which it is hashed here: each four bytes of the longest one are a step over the whole column."""


def key_partitions(keys: pyarrow.Array, partitions: int) -> list[int | None]:
    """Return the partition of each key among `partitions` (as `murmur2.partition_for_key`).

    `keys` is a column of type binary or large_binary. None stands for null, and for a key above `LONGEST_KEY`: the producer
    chooses its partition.
    """
    import numpy as np
    import pyarrow.compute as pc

    if not len(keys):
        return []
    starts, lengths, data = _layout(keys)
    is_here = np.asarray(pc.is_valid(keys)) & (lengths <= LONGEST_KEY)
    rows = np.flatnonzero(is_here)
    chosen = (_murmur2(data, starts[rows], lengths[rows]) & 0x7FFFFFFF) % np.uint32(partitions)
    if len(rows) == len(keys):
        return list(chosen.tolist())
    found: list[int | None] = [None] * len(keys)
    for row, partition in zip(rows.tolist(), chosen.tolist(), strict=True):
        found[row] = partition
    return found


def _layout(keys: pyarrow.Array) -> tuple[Any, Any, Any]:
    """Return the start and length of each key, and the bytes of all of them."""
    import numpy as np
    import pyarrow as pa

    width = np.int64 if pa.types.is_large_binary(keys.type) else np.int32
    _, offsets, content = keys.buffers()
    bounds = np.frombuffer(offsets, width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return bounds[:-1], np.diff(bounds), data


def _murmur2(data: Any, starts: Any, lengths: Any) -> Any:
    """Return the hash of each key as `murmur2.murmur2`; arrays of uint32 are multiplied modulo 2**32."""
    import numpy as np

    m = np.uint32(MULTIPLIER)
    result = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for number in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > number)
        word = _number(data, starts[rows] + 4 * number, 4) * m
        word ^= word >> np.uint32(24)
        result[rows] = result[rows] * m ^ word * m
    for rest in (1, 2, 3):
        rows = np.flatnonzero((lengths & 3) == rest)
        result[rows] = (result[rows] ^ _number(data, starts[rows] + 4 * words[rows], rest)) * m
    result ^= result >> np.uint32(13)
    result *= m
    return result ^ result >> np.uint32(15)


def _number(data: Any, at: Any, count: int) -> Any:
    """Return the little-endian numbers of `count` bytes at these places."""
    import numpy as np

    number = data[at].astype(np.uint32)
    for place in range(1, count):
        number |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return number
