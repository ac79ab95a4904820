"""Plans for groups with members of both group protocols, which change theirs while they run (KIP-848). Pure.

The group becomes a consumer group with the first member of the consumer protocol, and a classic one without the last, as far
as the migration policy of the brokers allows it. Members change their protocol one by one, or in a rolling upgrade and a
rolling downgrade. In some plans all members have the consumer protocol, and a pattern that the coordinator matches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.simulate.plan import SPARE, MemberSpec, Plan
from tests.simulate.protocols import COOPERATIVE_ASSIGNORS, consumer, of_consumers, with_consumers
from tests.simulation.action import Action

__all__ = ["mixed_plan"]

PATTERNS: Final = 0.1
"""Share of the plans in which all members have the consumer protocol, most of them with a SubscriptionPattern."""

RACKS: Final = 0.3
"""Share of the plans in which nodes and members have racks."""

POLICIES: Final = (*["bidirectional"] * 7, "upgrade", "downgrade", "disabled")


def mixed_plan(plan: Plan) -> Plan:
    """Return a plan of classic members as one of a mixed group."""
    rng = random.Random(f"mixed {plan.seed}")
    plan = _with_racks(rng, plan) if rng.random() < RACKS else plan
    if rng.random() < PATTERNS:
        return _with_patterns(rng, with_consumers(plan))
    kind = rng.choice(["any", "any", "rolling"])
    classic = _classic_members(rng, plan)
    consumers = {name: consumer(spec) for name, spec in plan.members.items()}
    first = {name for name in classic if kind == "any" and rng.random() < 0.5}
    changes = _rolling(rng, plan) if kind == "rolling" else _changes(rng, plan)
    actions = [of_consumers(action) if rng.random() < 0.5 else action for action in plan.actions]
    return replace(
        plan,
        setting=replace(
            plan.setting, migration_policy=rng.choice(POLICIES), has_strict_epochs=rng.random() < 0.3
        ),
        members={name: (consumers if name in first else classic)[name] for name in classic},
        others={name: (classic if name in first else consumers)[name] for name in classic},
        actions=tuple(sorted([*actions, *changes], key=lambda action: action.at)),
    )


def _with_racks(rng: random.Random, plan: Plan) -> Plan:
    racks = tuple(f"rack-{number % 2}" for number in range(plan.setting.nodes))
    members = {
        name: replace(spec, rack_id=rng.choice(["rack-0", "rack-1", ""]), balance_by_rack=rng.random() < 0.7)
        for name, spec in plan.members.items()
    }
    return replace(plan, setting=replace(plan.setting, racks=racks), members=members)


def _with_patterns(rng: random.Random, plan: Plan) -> Plan:
    members = {
        name: replace(spec, topics="orders|others", matches_at_broker=True) if rng.random() < 0.7 else spec
        for name, spec in plan.members.items()
    }
    return replace(plan, members=members)


def _classic_members(rng: random.Random, plan: Plan) -> dict[str, MemberSpec]:
    """Return the members with the classic protocol: eager ones, cooperative ones, or those that are eager until all can be
    cooperative."""
    how = rng.choice(["cooperative", "cooperative", "eager", "eager", "both"])
    if how == "eager":
        return dict(plan.members)
    return {
        name: replace(spec, assignors=COOPERATIVE_ASSIGNORS + (spec.assignors if how == "both" else ()))
        for name, spec in plan.members.items()
    }


def _changes(rng: random.Random, plan: Plan) -> Iterator[Action]:
    """Yield changes of the protocol of single members."""
    names = [name for name in plan.members if name != SPARE]
    for _ in range(rng.choice([0, 1, 2, 4, 8])):
        at = rng.uniform(0.5, plan.faults_end_at)
        yield Action(round(at, 3), "change_protocol", (rng.choice(names),))


def _rolling(rng: random.Random, plan: Plan) -> Iterator[Action]:
    """Yield the changes of a rolling upgrade, and of a rolling downgrade after it if there is time."""
    names = [name for name in plan.members if name != SPARE]
    at, pause = rng.uniform(1.0, 3.0), rng.choice([0.0, 0.3, 1.0, 2.5])
    for name in (*names, *rng.sample(names, len(names))):
        at += pause * rng.uniform(0.5, 1.5)
        if at < plan.faults_end_at:
            yield Action(round(at, 3), "change_protocol", (name,))
