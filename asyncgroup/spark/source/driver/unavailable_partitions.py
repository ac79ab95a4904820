"""`UnavailablePartitions`: since when, and why, offsets of partitions cannot be looked up. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition

__all__ = ["UnavailablePartitions"]

_MAX_NAMED: Final = 10
"""The largest number of partitions that a log line lists: there may be thousands."""


class _Problem(NamedTuple):
    since: float
    error: AsyncGroupError


class UnavailablePartitions:
    """The partitions without a leader, with a silent one, or with an error that may pass; by the offset that was asked for.

    A broker may know the end of a log and not its start, so the two have their own problems.
    """

    def __init__(self) -> None:
        self._problems: dict[tuple[TopicPartition, int], _Problem] = {}

    def __repr__(self) -> str:
        return f"<UnavailablePartitions: {len(self._problems)} offsets>"

    def update(
        self,
        wanted: Mapping[TopicPartition, int],
        problems: Mapping[TopicPartition, AsyncGroupError],
        now: float,
    ) -> None:
        """Record the result of a lookup of `wanted` that began at the time `now`."""
        if not problems and not self._problems:
            return
        for tp, spec in wanted.items():
            if tp not in problems:
                self._problems.pop((tp, spec), None)
                continue
            known = self._problems.get((tp, spec))
            self._problems[tp, spec] = _Problem(now if known is None else known.since, problems[tp])

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that are not read any more."""
        if self._problems:
            self._problems = {key: one for key, one in self._problems.items() if key[0] in partitions}

    def longer_than(self, seconds: float, wanted: Mapping[TopicPartition, int], now: float) -> bool:
        """Return whether all offsets of `wanted` that are not available have been so for at least `seconds`."""
        return all(now - one.since >= seconds for one in self._of(wanted).values())

    def describe(self, wanted: Mapping[TopicPartition, int], now: float) -> str:
        """Return the partitions of `wanted` that are not available, each with the time and the reason."""
        found = self._of(wanted)
        texts = [
            f"{tp} (for {now - found[tp].since:.0f} s: {found[tp].error})"
            for tp in sorted(found)[:_MAX_NAMED]
        ]
        if (more := len(found) - _MAX_NAMED) > 0:
            texts.append(f"and {more} more")
        return ", ".join(texts)

    def _of(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, _Problem]:
        keys: Iterable[tuple[TopicPartition, int]] = wanted.items()
        return {key[0]: self._problems[key] for key in keys if key in self._problems}
