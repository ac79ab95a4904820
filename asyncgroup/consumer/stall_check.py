"""StallCheck: notices a reader that takes no records. Pure state, and nothing is counted per record."""

from __future__ import annotations

__all__ = ["StallCheck"]


class StallCheck:
    """Compares a buffer's progress once in every `max_processing_time`."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None  # the progress at the last check, if records waited then

    def __repr__(self) -> str:
        return f"<StallCheck: {self._seen}>"

    def is_overdue(self, progress: tuple[int, int], *, waits: bool) -> bool:
        """Return whether records have waited since the last call and none was handed out; `waits`: whether some wait now.

        Records that arrived since the last call have not waited for a whole period yet.
        """
        overdue = waits and self._seen == progress
        self._seen = progress if waits else None
        return overdue

    def has_moved(self, progress: tuple[int, int]) -> bool:
        """Return whether the reader has taken a record since it was found overdue."""
        return progress != self._seen
