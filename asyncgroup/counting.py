"""Numbers in sentences for people: `1 record`, `1,200 records`."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things: `1 partition`, `1,200 partitions`.

    `plural` is for nouns whose plural is not with -s, and for what follows them: `record is`, `records are`.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
