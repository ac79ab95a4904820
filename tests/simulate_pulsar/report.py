"""Summaries of many runs, and descriptions of plans and failing runs."""

from __future__ import annotations

from collections import Counter

from tests.simulate.run import Outcome
from tests.simulate_pulsar.plan import SimPlan
from tests.simulate_pulsar.planner import ACTIONS

__all__ = ["RunSummary", "describe_failed_run", "describe_script"]


class RunSummary:
    """Sums of outcomes."""

    def __init__(self) -> None:
        self.runs = 0
        self.counts: Counter[str] = Counter()
        self.broken: dict[str, list[int]] = {}
        self.virtual_seconds = 0.0
        self.slowest = (0, -1)

    def __repr__(self) -> str:
        return f"<RunSummary {self.runs} runs, {len(self.broken)} invariants violated>"

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.counts += outcome.counts
        self.virtual_seconds += outcome.virtual_seconds
        self.slowest = max(self.slowest, (outcome.counts["ms to settle"], outcome.seed))
        if outcome.violation is not None:
            self.broken.setdefault(outcome.violation.name, []).append(outcome.seed)

    @property
    def unused(self) -> list[str]:
        """Kinds of actions that no run had."""
        return [kind for kind in ACTIONS if not self.counts[f"action {kind}"]]

    def lines(self) -> list[str]:
        """Return the lines of the summary."""
        names = sorted(name for name in self.counts if name != "ms to settle")
        width = max(map(len, names), default=0)
        milliseconds, seed = self.slowest
        return [
            *(f"{name:<{width}}  {self.counts[name]:>10,}" for name in names),
            "",
            f"{self.runs:,} runs, {self.virtual_seconds / 3600:.1f} hours of virtual time",
            f"longest time until all is acknowledged after the faults: {milliseconds / 1000:.2f} s (seed {seed})",
            f"unused kinds of actions: {', '.join(self.unused) or 'none'}",
            *(f"VIOLATED {name}: seeds {seeds[:12]}" for name, seeds in sorted(self.broken.items())),
        ]


def describe_script(plan: SimPlan) -> list[str]:
    """Describe brokers, topics, subscriptions and programs, a line each."""
    return [
        f"seed {plan.seed}: {plan.setting}",
        *(f"  {spec}" for spec in (*plan.producers.values(), *plan.consumers.values())),
    ]


def describe_failed_run(outcome: Outcome, plan: SimPlan) -> str:
    """Describe a failed run: the seed, the invariant, the shortened plan, and the story."""
    assert outcome.violation is not None
    return "\n".join(
        [
            f"seed {outcome.seed} violates: {outcome.violation.name}",
            f"  {outcome.violation.text}",
            *describe_script(plan),
            "plan:",
            *(f"  {action.at:8.3f} {action}" for action in plan.actions),
            "story:",
            *(f"  {line}" for line in outcome.story),
        ]
    )
