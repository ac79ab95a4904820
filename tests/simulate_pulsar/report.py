"""Descriptions of plans and failing runs."""

from __future__ import annotations

from tests.simulate_pulsar.plan import SimPlan
from tests.simulation.report import describe_run
from tests.simulation.run import Outcome

__all__ = ["describe_failed_run", "describe_script"]


def describe_script(plan: SimPlan) -> list[str]:
    """Describe brokers, topics, subscriptions and programs, a line each."""
    return [
        f"seed {plan.seed}: {plan.setting}",
        *(f"  {spec}" for spec in (*plan.producers.values(), *plan.consumers.values())),
    ]


def describe_failed_run(outcome: Outcome, plan: SimPlan) -> str:
    """Describe a failed run."""
    return describe_run(outcome, plan, describe_script(plan))
