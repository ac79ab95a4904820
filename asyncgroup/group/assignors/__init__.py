"""Assignors: who gets which partitions. Deterministic, partitions in numeric order.

`range` and `roundrobin` make Java's plans; `sticky` is at least as balanced as Java's, and moves no more for it. Own
ones follow the protocol `Assignor`.
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
    """The assignors of one member of a group, for names and objects, in order.

    Raises ConfigError for anything else or a name given twice.
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
