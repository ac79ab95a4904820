"""Action: what happens at a time of a plan. Plain values.

Every action is complete when the plan is made (object, time, duration), so an action can be removed without changing the
others: that is how failing plans are shortened (`shrink`). An action whose object does not exist has no effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Action", "Acts", "Args", "without_actions"]

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


class Acts:
    """What each kind of action does to a world: the function named `_<kind>`."""

    def __init__(self) -> None:
        self._acts: dict[str, Callable[..., None]] = {}

    def act(self, function: Callable[..., None]) -> Callable[..., None]:
        """Decorate the function of a kind."""
        self._acts[function.__name__.removeprefix("_")] = function
        assert next(iter(inspect.signature(function).parameters)) == "world"
        return function

    def perform(self, world: object, kind: str, args: Args) -> None:
        """Carry out an action; nothing happens if its object does not exist (any more)."""
        self._acts[kind](world, *args)
