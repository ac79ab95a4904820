"""Fold repeated blocks of lines, so that a story of many exchanges can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["fold_repeats"]

MAX_BLOCK_LINES: Final = 4
"""Length in lines of the longest block whose repetition is detected."""


def fold_repeats(lines: Sequence[str], keys: Sequence[str], times: Sequence[str]) -> list[str]:
    """Return the lines with repeated blocks of 1 to MAX_BLOCK_LINES lines folded; lines with equal `keys` are equal.

    The first block is shown, followed by a line with the number of repetitions and the time of the last (`times`).
    """
    shown: list[str] = []
    at = 0
    while at < len(lines):
        length, times_seen = _repetition(keys, at)
        shown += lines[at : at + length]
        end = at + length * times_seen
        if times_seen > 1:
            what = "this line" if length == 1 else f"these {length} lines"
            shown.append(f"            … {what} {times_seen} times in all, until {times[end - 1]}")
        at = end
    return shown


def _repetition(keys: Sequence[str], at: int) -> tuple[int, int]:
    """Return (length, count) of the repeated block at `at`, chosen so that the fewest lines remain."""
    best = (1, 1)
    for length in range(1, MAX_BLOCK_LINES + 1):
        block, count = keys[at : at + length], 1
        while keys[at + count * length : at + (count + 1) * length] == block:
            count += 1
        # folding adds one line, so a single line that occurs twice is not folded
        saved = (count - 1) * length - 1
        if saved > max(0, (best[1] - 1) * best[0] - 1):
            best = (length, count)
    return best
