"""Assignors: distribute partitions over the members of a group, deterministically and in numeric order.

`range` and `roundrobin` make the same assignments as Java's; `sticky` is at least as balanced as Java's, without more
moves for the same balance. Custom ones implement the protocol `Assignor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.group.assignors.protocol import (
    Assignment,
    Assignor,
    GroupAssignment,
    MemberSubscription,
    PerGroup,
    ProvidesUserData,
    SeesAssignment,
)
from asyncgroup.group.assignors.range_roundrobin import RangeAssignor, RoundRobinAssignor
from asyncgroup.group.assignors.sticky import StickyAssignor

__all__ = [
    "Assignment",
    "Assignor",
    "GroupAssignment",
    "MemberSubscription",
    "PerGroup",
    "ProvidesUserData",
    "RangeAssignor",
    "RoundRobinAssignor",
    "SeesAssignment",
    "StickyAssignor",
    "resolve_assignors",
]

_BY_NAME: Final[Mapping[str, Callable[[], Assignor]]] = MappingProxyType(
    {"range": RangeAssignor, "roundrobin": RoundRobinAssignor, "sticky": StickyAssignor}
)


def resolve_assignors(wanted: Iterable[object]) -> list[Assignor]:
    """Return the assignors of one group member for names and objects, in the same order.

    Raises ConfigError for anything else, and if two have the same name.
    """
    found: list[Assignor] = []
    for item in wanted:
        if isinstance(item, str) and item in _BY_NAME:
            assignor = _BY_NAME[item]()
        elif not isinstance(item, (str, type)) and isinstance(item, Assignor):
            assignor = item.for_group() if isinstance(item, PerGroup) else item
        else:
            allowed = f"{', '.join(_BY_NAME)}, or an object with `name` and `assign(members, counts)`"
            raise ConfigError("assignors", item, allowed)
        if assignor.name in [other.name for other in found]:
            raise ConfigError("assignors", assignor.name, "each name once")
        found.append(assignor)
    return found
