"""Shorten a failing plan: remove the actions that are not needed to violate the same invariant."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.simulation.action import Action
from tests.simulation.run import Outcome
from tests.simulation.world import AnyPlan

__all__ = ["shrink"]


_Plan = TypeVar("_Plan", bound=AnyPlan)


def shrink(
    plan: _Plan, failed: Outcome, run: Callable[[_Plan], Outcome], seconds: float = 60.0
) -> tuple[_Plan, Outcome]:
    """Return the shortest plan found within `seconds` of real time that violates the same invariant, and its run.

    Delta debugging over the actions (Zeller's ddmin): removes halves first, then quarters, … then single actions.
    """
    assert failed.violation is not None
    until = time.perf_counter() + seconds
    best, outcome, size = plan, failed, max(1, len(plan.actions) // 2)
    while True:
        smaller = None
        for part in _parts(best.actions, size):
            if time.perf_counter() > until:
                return best, outcome
            tried = run(candidate := best.without(part))
            if tried.violation is not None and tried.violation.name == failed.violation.name:
                smaller, outcome = candidate, tried
                break
        if smaller is not None:
            best = smaller
            size = max(1, min(size, len(best.actions) // 2))
        elif size > 1:
            size //= 2
        else:
            return best, outcome


def _parts(actions: tuple[Action, ...], size: int) -> list[tuple[Action, ...]]:
    """Return groups of `size` consecutive actions, the last ones first: late actions are the least likely to matter."""
    return [actions[max(0, end - size) : end] for end in range(len(actions), 0, -size)]
