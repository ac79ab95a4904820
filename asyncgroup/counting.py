"""Numbers in sentences for people: `1 record`, `1,200 records`, `61.2 MB`, `108,637 records/s`."""

from __future__ import annotations

__all__ = ["counted", "rate", "size"]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things: `1 partition`, `1,200 partitions`.

    `plural` is for nouns whose plural is not with -s, and for what follows them: `record is`, `records are`.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def size(count: float) -> str:
    """Return a number of bytes: `61.2 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def rate(count: int, duration: float) -> str:
    """Return a rate: `108,637 records/s`, or `- records/s` if `duration` (seconds) is 0."""
    return f"{count / duration:,.0f} records/s" if duration > 0 else "- records/s"
