"""Plans of classic members with those of another group protocol in their place. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulate.plan import MemberSpec, Plan
from tests.simulation.action import Action

__all__ = [
    "COOPERATIVE_ASSIGNORS",
    "REQUESTS_OF_CONSUMERS",
    "consumer",
    "of_consumers",
    "with_consumers",
    "with_cooperative",
]

COOPERATIVE_ASSIGNORS: Final = ("cooperative-sticky",)

REQUESTS_OF_CONSUMERS: Final = {
    "JoinGroup": "ConsumerGroupHeartbeat",
    "SyncGroup": "DescribeConfigs",
    "Heartbeat": "ConsumerGroupHeartbeat",
    "LeaveGroup": "ConsumerGroupHeartbeat",
}
"""What the members of the consumer protocol send in place of the classic requests: DescribeConfigs after a join."""

REMOTE_ASSIGNORS: Final[dict[str, tuple[str, ...]]] = {
    "range": ("range",),
    "roundrobin": (),
    "sticky": ("uniform",),
}


def with_cooperative(plan: Plan) -> Plan:
    """Return the plan with members of the cooperative protocol."""
    members = {name: replace(spec, assignors=COOPERATIVE_ASSIGNORS) for name, spec in plan.members.items()}
    return replace(plan, members=members)


def with_consumers(plan: Plan) -> Plan:
    """Return the plan with members of the consumer protocol; odd seeds have coordinators before Kafka 4.3."""
    return replace(
        plan,
        setting=replace(plan.setting, has_strict_epochs=plan.seed % 2 == 1),
        members={name: consumer(spec) for name, spec in plan.members.items()},
        actions=tuple(map(of_consumers, plan.actions)),
    )


def consumer(spec: MemberSpec) -> MemberSpec:
    """Return the member with the consumer protocol; its first assignor decides which one of the coordinator it names."""
    return replace(spec, assignors=REMOTE_ASSIGNORS[spec.assignors[0]], is_consumer=True)


def of_consumers(action: Action) -> Action:
    """Return the action with the requests of the consumer protocol in place of the classic ones."""
    if action.kind != "fault":
        return action
    api, *more = action.args
    return replace(action, args=(REQUESTS_OF_CONSUMERS.get(api, api), *more))
