"""Whether the members of a group share its partitions, by their own sight and by the coordinator's."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.stories.admin import DescribedGroup

__all__ = ["are_described", "are_shared_evenly"]


def are_shared_evenly(partitions: Iterable[int], parts: Collection[Collection[int]]) -> bool:
    """Return whether each partition has one owner, and no member has two partitions more than another."""
    sizes = [len(part) for part in parts]
    owned = sorted(number for part in parts for number in part)
    return owned == sorted(partitions) and max(sizes) - min(sizes) <= 1


def are_described(parts: Collection[Collection[int]], described: DescribedGroup | None, topic: str) -> bool:
    """Return whether the coordinator describes a stable group whose members have these partitions of the topic."""
    if described is None or described.state != "Stable":
        return False
    held = [sorted(assignment.get(topic, [])) for assignment in described.members.values()]
    return sorted(held) == sorted(sorted(part) for part in parts)
