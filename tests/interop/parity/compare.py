"""Compare the responses of two brokers to one story: find the differences that are not explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from tests.interop.parity.plain import paths
from tests.interop.parity.scene import Scene

__all__ = ["ANY", "NOTHING", "Difference", "Explained", "differences", "unexplained"]

ANY: Final = object()
"""Matches any value."""

NOTHING: Final = "nothing"
"""The value of a field that one side does not have."""


@dataclass(frozen=True)
class Difference:
    """A field whose values differ: `where` is "story/label", `path` the field's path in the response."""

    where: str
    path: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.where}: {self.path}: ours {self.ours!r}, Kafka's {self.theirs!r}"


@dataclass(frozen=True)
class Explained:
    """An intended difference; `where` and `path` are patterns, in which `[[]` stands for a bracket."""

    where: str
    path: str
    why: str
    ours: object = ANY
    theirs: object = ANY

    def holds_for(self, difference: Difference) -> bool:
        """Whether it explains the difference."""
        return (
            fnmatchcase(difference.where, self.where)
            and fnmatchcase(difference.path, self.path)
            and self.ours in (ANY, difference.ours)
            and self.theirs in (ANY, difference.theirs)
        )


def differences(story: str, ours: Scene, theirs: Scene) -> Iterator[Difference]:
    """Yield the differences, in the order in which the requests were sent."""
    for label in [*ours.answers, *(label for label in theirs.answers if label not in ours.answers)]:
        mine, other = _fields(ours.answers.get(label)), _fields(theirs.answers.get(label))
        for path in [*mine, *(path for path in other if path not in mine)]:
            if mine.get(path, NOTHING) != other.get(path, NOTHING):
                place, _, field = path.partition("\n")
                yield Difference(f"{story}/{place}", field, mine.get(path, NOTHING), other.get(path, NOTHING))


def _fields(answer: dict[str, Any] | None) -> dict[str, object]:
    return {f"{told}\n{path}": each for told, value in (answer or {}).items() for path, each in paths(value)}


def unexplained(found: Iterable[Difference], explained: Iterable[Explained]) -> list[Difference]:
    """Return the differences that no line of the table explains."""
    table = list(explained)
    return [difference for difference in found if not any(line.holds_for(difference) for line in table)]
