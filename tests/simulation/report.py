"""Sums of many runs, and the description of a failed one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from tests.simulation.run import Outcome
from tests.simulation.world import AnyPlan

__all__ = ["Summary", "describe_run"]


class Summary:
    """Sums of outcomes, without their stories. `actions` are the kinds that there are; "ms to settle" is the time `until` something."""

    def __init__(self, actions: Collection[str], until: str) -> None:
        self.counts: Counter[str] = Counter()
        self.runs_with: Counter[str] = Counter()
        self.broken: dict[str, list[int]] = {}
        self.runs = 0
        self.virtual_seconds = self.real_seconds = 0.0
        self.slowest_to_settle = (0, -1)
        self._actions = actions
        self._until = until

    def __repr__(self) -> str:
        return f"<Summary {self.runs} runs, {len(self.broken)} invariants violated>"

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.counts += outcome.counts
        self.runs_with.update(outcome.counts.keys())
        self.virtual_seconds += outcome.virtual_seconds
        self.real_seconds += outcome.real_seconds
        settled = (outcome.counts["ms to settle"], outcome.seed)
        self.slowest_to_settle = max(self.slowest_to_settle, settled)
        if outcome.violation is not None:
            self.broken.setdefault(outcome.violation.name, []).append(outcome.seed)

    @property
    def unused(self) -> list[str]:
        """Kinds of actions that no run had."""
        return [kind for kind in self._actions if not self.counts[f"action {kind}"]]

    def lines(self) -> list[str]:
        """Return the lines of the summary table."""
        rows = [("", "times", "in runs")]
        names = sorted(name for name in self.counts if name != "ms to settle")
        rows.extend((name, f"{self.counts[name]:,}", f"{self.runs_with[name]:,}") for name in names)
        width = max(len(row[0]) for row in rows)
        table = [f"{name:<{width}}  {times:>10}  {runs:>8}" for name, times, runs in rows]
        milliseconds, seed = self.slowest_to_settle
        pace = self.real_seconds / max(1, self.runs)
        return [
            *table,
            "",
            f"{self.runs:,} runs, {self.virtual_seconds / 3600:.1f} hours of virtual time, {pace:.3f} s a run",
            f"longest time until {self._until} after the faults: {milliseconds / 1000:.2f} s (seed {seed})",
            f"unused kinds of actions: {', '.join(self.unused) or 'none'}",
            *(f"VIOLATED {name}: seeds {_some(seeds)}" for name, seeds in sorted(self.broken.items())),
        ]


def _some(seeds: Sequence[int]) -> str:
    more = f" and {len(seeds) - 12} more" if len(seeds) > 12 else ""
    return ", ".join(map(str, seeds[:12])) + more


def describe_run(outcome: Outcome, plan: AnyPlan, described: Iterable[str]) -> str:
    """Describe a failed run: the seed, the invariant, the shortened plan, which is `described` but for its actions, and the story."""
    assert outcome.violation is not None
    return "\n".join(
        [
            f"seed {outcome.seed} violates: {outcome.violation.name}",
            f"  {outcome.violation.text}",
            *described,
            "plan:",
            *(f"  {action.at:8.3f} {action}" for action in plan.actions),
            "story:",
            *(f"  {line}" for line in outcome.story),
        ]
    )
