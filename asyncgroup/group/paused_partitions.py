"""Partitions that the user paused: kept by the group object, applied to the claims of each session."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.group.claim import Claim
from asyncgroup.model import TopicPartition

__all__ = ["PausedPartitions"]


class PausedPartitions:
    """Paused partitions, assigned or not. A claim of one of them starts paused."""

    def __init__(self) -> None:
        self._paused: set[TopicPartition] = set()

    def __contains__(self, tp: object) -> bool:
        return tp in self._paused

    def add(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Pause these partitions."""
        self._paused.update(TopicPartition(*tp) for tp in partitions)

    def discard(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Resume these partitions."""
        self._paused.difference_update(TopicPartition(*tp) for tp in partitions)

    def clear(self) -> None:
        """Resume all partitions."""
        self._paused.clear()

    def apply(self, claims: Iterable[Claim]) -> None:
        """Pause or resume each claim accordingly."""
        for claim in claims:
            if claim.paused != (claim.tp in self._paused):
                (claim.consumer.pause if claim.tp in self._paused else claim.consumer.resume)()
