"""ClaimSet: the claims that a member owns, and how an assignment changes them. Pure state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from asyncgroup.group.claim import Claim
from asyncgroup.model import TopicPartition

__all__ = ["ClaimChanges", "ClaimSet"]


class ClaimChanges(NamedTuple):
    """The difference that an assignment makes, each sorted."""

    revoked: list[TopicPartition]
    """Owned partitions that are no longer assigned: their claims end."""
    added: list[TopicPartition]
    """Assigned partitions that were not owned: they need a claim."""


class ClaimSet:
    """The claims of a session by partition; claims in neither part of a change go on untouched.

    An assigned partition is *starting* until its start offset is known and its claim is added. A revoked claim stays in
    the set until `remove`: its marks can be committed while its handler drains.
    """

    def __init__(self) -> None:
        self._claims: dict[tuple[str, int], Claim] = {}
        self._starting: dict[TopicPartition, int] = {}  # with the `version` that added them
        self.version = 0
        """The number of assignments so far."""

    def __repr__(self) -> str:
        return f"<ClaimSet: {len(self._claims)} claims, {len(self._starting)} starting>"

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._claims.values()))

    def __len__(self) -> int:
        return len(self._claims)

    def get(self, tp: tuple[str, int]) -> Claim | None:
        """Return the claim of a partition, or None."""
        return self._claims.get(tp)

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that are claimed or starting, sorted: those that the member owns in the group."""
        return sorted({*(claim.tp for claim in self), *self._starting})

    def apply(self, assignment: Mapping[str, Sequence[int]]) -> ClaimChanges:
        """Make this the assignment; return what it revokes and what it adds. An empty one revokes all (eager)."""
        self.version += 1
        wanted = {
            TopicPartition(topic, number) for topic, numbers in assignment.items() for number in numbers
        }
        changes = ClaimChanges(
            sorted(claim.tp for claim in self if claim.tp not in wanted),
            sorted(tp for tp in wanted if tp not in self._claims and tp not in self._starting),
        )
        starting = {tp: version for tp, version in self._starting.items() if tp in wanted}
        self._starting = starting | dict.fromkeys(changes.added, self.version)
        return changes

    def is_starting(self, tp: TopicPartition, version: int) -> bool:
        """Whether a claim may be added whose start offset was requested under this `version`.

        The partition has no claim, and was assigned all the time since then: else another member may have owned it and
        committed a later offset.
        """
        return tp in self._starting and self._starting[tp] <= version

    def add(self, claim: Claim) -> None:
        """Add the claim of a partition that is starting."""
        self._starting.pop(claim.tp, None)
        self._claims[claim.tp] = claim

    def remove(self, tp: TopicPartition) -> None:
        """Remove a claim that has ended."""
        self._claims.pop(tp, None)
