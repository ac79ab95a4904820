"""The case without a broker: the size of the metadata with which libraries commit acknowledgements out of order.

The patterns are those of a partition in which a share of the records in a span of offsets is not acknowledged yet, at
random places (fixed seeds). The broker's default limit for the metadata of a commit is 4,096 bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup import TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window
from benchmarks.common import started_process
from benchmarks.queue.installation import PeerUnavailable
from benchmarks.queue.offset_maps import offset_map_size

__all__ = ["LIMIT", "PATTERNS", "Pattern", "Sizes", "incomplete_offsets", "measure_metadata", "own_size"]

LIMIT: Final = 4096
"""The broker's default of `offset.metadata.max.bytes`."""
_TOPIC: Final = TopicPartition("orders", 0)
_TOPIC_ID: Final = UUID(int=1 << 127)


class Pattern(NamedTuple):
    """A span of offsets above the committed one, of which a share is not acknowledged."""

    span: int
    share: float


PATTERNS: Final = (
    Pattern(5_000, 0.5), Pattern(5_000, 0.05), Pattern(5_000, 0.01),
    Pattern(24_000, 0.5), Pattern(24_000, 0.2), Pattern(24_000, 0.05), Pattern(24_000, 0.01), Pattern(24_000, 0.002),
    Pattern(100_000, 0.2), Pattern(100_000, 0.05), Pattern(100_000, 0.01), Pattern(100_000, 0.002),
)  # fmt: skip


class Sizes(NamedTuple):
    """Bytes of metadata for one pattern; None for a library that was not measured.

    `own` is the window in asyncgroup's envelope (prefix, checksum, topic id), `window` the window alone.
    """

    span: int
    share: float
    incomplete: int
    own: int
    window: int
    others: Mapping[str, int | None]


def incomplete_offsets(pattern: Pattern) -> list[int]:
    """Return the offsets that are not acknowledged: 0, which is the base, and others at random."""
    rng = random.Random(pattern.span)
    return [0, *(offset for offset in range(1, pattern.span - 1) if rng.random() < pattern.share)]


def own_size(pattern: Pattern, incomplete: Sequence[int]) -> tuple[int, int]:
    """Return the bytes of asyncgroup's whole metadata, and of the window in it. Nothing is left out to fit the limit."""
    ends = [*incomplete[1:], pattern.span]
    runs = [(start + 1, end) for start, end in zip(incomplete, ends, strict=True) if end > start + 1]
    window = encode_window(AckWindow(0, runs), 0, pattern.span).text
    # `encode_metadata` leaves the envelope out where the whole exceeds the limit
    envelope = len(encode_metadata(_TOPIC, 0, CommitMetadata("", _TOPIC_ID, "w"))) - 1
    return envelope + len(window), len(window)


async def measure_metadata(
    patterns: Sequence[Pattern], java: Sequence[str] | None, pyrallel: Sequence[str] | None
) -> list[Sizes]:
    """Return the sizes for each pattern.

    `java` is the command of `OffsetMapSizes`; without it parallel-consumer's sizes are computed (`offset_maps`). `pyrallel` is
    the Python with that library; without it there are no sizes of it.
    """
    offsets = [incomplete_offsets(pattern) for pattern in patterns]
    found = {
        "parallel-consumer": await _java_sizes(java, patterns, offsets)
        if java
        else _computed(patterns, offsets),
        "pyrallel-consumer": await _pyrallel_sizes(pyrallel, patterns, offsets) if pyrallel else None,
    }
    sizes = []
    for index, (pattern, incomplete) in enumerate(zip(patterns, offsets, strict=True)):
        own, window = own_size(pattern, incomplete)
        others = {name: of[index] if of is not None else None for name, of in found.items()}
        sizes.append(Sizes(pattern.span, pattern.share, len(incomplete), own, window, others))
    return sizes


def _computed(patterns: Sequence[Pattern], offsets: Sequence[Sequence[int]]) -> list[int]:
    return [offset_map_size(pattern.span, of) for pattern, of in zip(patterns, offsets, strict=True)]


async def _java_sizes(
    command: Sequence[str], patterns: Sequence[Pattern], offsets: Sequence[Sequence[int]]
) -> list[int]:
    lines = [
        f"{pattern.span} {' '.join(map(str, of))}" for pattern, of in zip(patterns, offsets, strict=True)
    ]
    async with started_process(*command) as process:
        out, err = await process.communicate("\n".join(lines).encode())
    if process.returncode:
        raise PeerUnavailable(f"its encoder failed: {err.decode(errors='replace')[-200:]}")
    return [int(line) for line in out.split()]


async def _pyrallel_sizes(
    python: Sequence[str], patterns: Sequence[Pattern], offsets: Sequence[Sequence[int]]
) -> list[int]:
    given = {"patterns": [(pattern.span, of) for pattern, of in zip(patterns, offsets, strict=True)]}
    function = "benchmarks.queue.pyrallel_client:metadata_sizes"
    # the patterns are too long for an argument of a command
    program = f"import json, sys; from {function.replace(':', ' import ')} as f; print(json.dumps(f(json.load(sys.stdin))))"
    async with started_process(*python, "-c", program) as process:
        out, err = await process.communicate(json.dumps(given).encode())
    if process.returncode:
        raise PeerUnavailable(f"its encoder failed: {err.decode(errors='replace')[-200:]}")
    sizes: list[int] = json.loads(out)["sizes"]
    return sizes
