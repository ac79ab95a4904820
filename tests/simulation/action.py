"""Action: what happens at a time of a plan. Plain values.

Every action is complete when the plan is made (object, time, duration), so an action can be removed without changing the
others: that is how failing plans are shortened (`shrink`). An action whose object does not exist has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Action", "Args", "without_actions"]

Args: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """An action at `at` seconds; `args` are the arguments of the function named `_<kind>` in `actions`."""

    at: float
    kind: str
    args: Args = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.args))})"


def without_actions(actions: Sequence[Action], dropped: Sequence[Action]) -> tuple[Action, ...]:
    """Return the actions without some of them, which are compared by identity."""
    ids = set(map(id, dropped))
    return tuple(one for one in actions if id(one) not in ids)
