"""PositionListener: the object that keeps a partition's marks, or its range, and is called when the position changes."""

from __future__ import annotations

from uuid import UUID

__all__ = ["PositionListener"]


class PositionListener:
    """Its methods are called when a partition's position changes, so that marks follow it. This one has no marks."""

    def on_topic_id(self, topic_id: UUID) -> None:
        """The id of the topic that is read has become known."""

    def on_reset(self, offset: int, log_end: int) -> None:
        """The position was not in the log; reading continues at `offset`."""

    def on_restart(self, offset: int, topic_id: UUID) -> None:
        """From `offset` on the log has other records than those read: truncated, or a recreated topic (`topic_id`, else nil)."""

    def on_skipped_range(self, start: int, end: int, epoch: int) -> None:
        """From `start` to `end` there are no records to deliver; `epoch` is the leader epoch of the record before `end`."""

    def on_unreadable_batch(self, offset: int) -> int:
        """A batch delivered from `offset` on cannot be decoded; returns where reading continues, not before the mark."""
        return offset

    def on_value_begun(self, first_offset: int, leader_epoch: int) -> None:
        """The first chunk of a value was read; `leader_epoch` is that of its batch."""

    def on_value_completed(self, first_offset: int, last_offset: int) -> None:
        """A value was put together from the chunks at these offsets."""

    def on_value_dropped(self, first_offset: int) -> None:
        """An incomplete value was given up."""
