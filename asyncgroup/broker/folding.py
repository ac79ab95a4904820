"""Repeated lines of a history, shown once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["folded"]

LONGEST: Final = 4
"""Lines of the longest group of lines whose repetition is noticed."""


def folded(lines: Sequence[str], keys: Sequence[str], times: Sequence[str]) -> list[str]:
    """Return the lines with repetitions folded: a line, or up to four that take turns, whose `keys` are equal.

    The first of them are shown, and a line that says how often they came and until when (`times`).
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
    """How many lines from `at` on repeat themselves, and how often; the choice that leaves the fewest lines."""
    best = (1, 1)
    for length in range(1, LONGEST + 1):
        block, count = keys[at : at + length], 1
        while keys[at + count * length : at + (count + 1) * length] == block:
            count += 1
        # a line is added that says so: one repetition of one line is shorter as it is
        saved = (count - 1) * length - 1
        if saved > max(0, (best[1] - 1) * best[0] - 1):
            best = (length, count)
    return best
