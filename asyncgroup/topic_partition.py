"""TopicPartition, apart from the other values: errors name partitions, and records need errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from asyncgroup.escaping import printable

__all__ = ["Partitions", "TopicPartition", "by_topic"]


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{printable(self.topic)}-{self.partition}"


Partitions: TypeAlias = TopicPartition | tuple[str, int] | Iterable[TopicPartition | tuple[str, int]]
"""One partition, as a TopicPartition or as (topic, partition), or several of them."""


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions: topic → partition numbers, in the given order."""
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return found
