"""Assignors: distribute partitions over the members of a group, deterministically and in numeric order.

`range` and `roundrobin` make the same assignments as Java's; `sticky` is at least as balanced as Java's, without more
moves for the same balance; `cooperative-sticky` reaches the same in two rebalances without stopping what stays. All but
`roundrobin` can prefer members in the racks of replicas. Custom ones implement the protocol `Assignor`.

- `protocol` is what an assignor has, and the checks of its plans; `racks` says who is near a replica.
- `range_roundrobin`, with `range_by_rack`; `sticky`, with `spread` (how many partitions each gets) and `sticky_user_data`;
  `cooperative`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.group.assignors.cooperative import CooperativeStickyAssignor
from asyncgroup.group.assignors.protocol import (
    Assignment,
    Assignor,
    Cooperates,
    GroupAssignment,
    MemberSubscription,
    PerGroup,
    ProvidesUserData,
    RackAware,
    SeesAssignment,
)
from asyncgroup.group.assignors.range_roundrobin import RangeAssignor, RoundRobinAssignor
from asyncgroup.group.assignors.sticky import StickyAssignor

__all__ = [
    "Assignment",
    "Assignor",
    "Cooperates",
    "CooperativeStickyAssignor",
    "GroupAssignment",
    "MemberSubscription",
    "PerGroup",
    "ProvidesUserData",
    "RackAware",
    "RangeAssignor",
    "RoundRobinAssignor",
    "SeesAssignment",
    "StickyAssignor",
    "are_cooperative",
    "resolve_assignors",
]

_BY_NAME: Final[Mapping[str, Callable[[], Assignor]]] = MappingProxyType(
    {
        "range": RangeAssignor,
        "roundrobin": RoundRobinAssignor,
        "sticky": StickyAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
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


def are_cooperative(assignors: Iterable[Assignor]) -> bool:
    """Whether a member with these assignors keeps its claims while it joins again (KIP-429).

    Only if all of them are cooperative, as in Java: the group may choose any of them.
    """
    return all(isinstance(assignor, Cooperates) and assignor.is_cooperative for assignor in assignors)
