"""The plan of a seed. Ranges of seeds belong to group protocols: their plans are those of the eager one, with other members."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulate.mixed import mixed_plan
from tests.simulate.plan import Plan
from tests.simulate.planner import classic_plan
from tests.simulate.protocols import with_consumers, with_cooperative
from tests.simulate.queues_planner import queue_plan

__all__ = ["CONSUMERS", "COOPERATIVE", "MIXED", "QUEUES", "plan_of"]

COOPERATIVE: Final = 1_000_000
"""The first seed of plans with cooperative members."""

CONSUMERS: Final = 2_000_000
"""The first seed of plans with members of the consumer protocol (KIP-848)."""

MIXED: Final = 3_000_000
"""The first seed of plans with members of both group protocols; some have all members with a SubscriptionPattern."""

QUEUES: Final = 4_000_000
"""The first seed of plans whose members are work queues, with any group protocol."""


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed; it is the same on every machine."""
    plan = replace(classic_plan(seed % COOPERATIVE), seed=seed)
    if seed >= QUEUES:
        return queue_plan(plan)
    if seed >= MIXED:
        return mixed_plan(plan)
    if seed >= CONSUMERS:
        return with_consumers(plan)
    return with_cooperative(plan) if seed >= COOPERATIVE else plan
