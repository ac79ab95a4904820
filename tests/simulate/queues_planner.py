"""Plans whose members are work queues: those of classic members with queues in their place. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from asyncgroup.workqueue import Mode
from tests.simulate.plan import Plan
from tests.simulate.protocols import with_consumers, with_cooperative
from tests.simulate.queues_setting import QueueSetting, QueueSpec
from tests.simulation.action import Action

__all__ = ["queue_plan"]

MODES: Final = (
    *[Mode.KEY_SHARED] * 5,
    *[Mode.SHARED] * 4,
    *[Mode.FAILOVER] * 2,
    Mode.EXCLUSIVE,
)

PROTOCOLS: Final = ("cooperative", "cooperative", "eager", "consumer")

FAULTS_OF_COPIES: Final = ("Produce", "Fetch", "OffsetCommit")


def queue_plan(plan: Plan) -> Plan:
    """Return a plan of classic members as one of work queues."""
    rng = random.Random(f"queues {plan.seed}")
    mode = rng.choice(MODES)
    plan = _with_protocol(rng, plan, mode)
    members = {name: replace(spec, auto_commit=True, style="records") for name, spec in plan.members.items()}
    actions = tuple(
        sorted([*(_action(rng, one) for one in plan.actions), *_cancelled(plan)], key=lambda one: one.at)
    )
    return replace(plan, members=members, actions=actions, queues=_setting(rng, mode, plan))


def _with_protocol(rng: random.Random, plan: Plan, mode: Mode) -> Plan:
    protocol = rng.choice(PROTOCOLS)
    if mode.in_order:  # its assignor is the group's only one, and cooperative
        return with_cooperative(plan)
    if protocol == "consumer":
        return with_consumers(plan)
    return with_cooperative(plan) if protocol == "cooperative" else plan


def _cancelled(plan: Plan) -> Iterator[Action]:
    """Yield a cancellation of the calls of `run` whose handlers ignore theirs."""
    for action in plan.actions:
        if action.kind == "ignore_cancellation":
            yield Action(action.at + 0.2, "cancel", action.args[:1])


def _action(rng: random.Random, action: Action) -> Action:
    """Return the action; some faults concern copies and commits instead."""
    if action.kind == "fault" and rng.random() < 0.5:
        return replace(action, args=(rng.choice(FAULTS_OF_COPIES), *action.args[1:]))
    return action


def _setting(rng: random.Random, mode: Mode, plan: Plan) -> QueueSetting:
    max_redeliveries = rng.choice([None, 2, 3, 3, 5])
    initial = rng.choice([0.0, 0.05] if mode.in_order else [0.0, 0.05, 0.3, 1.0])
    ack_timeout = rng.choice([None, 1.0, 1.0, 2.0])
    return QueueSetting(
        mode=mode,
        keys=rng.choice([1, 3, 5, 20]),
        out_of_order=mode is Mode.KEY_SHARED and rng.random() < 0.15,
        max_redeliveries=max_redeliveries,
        has_retry=rng.random() < 0.3,
        ack_timeout=ack_timeout,
        cancels_expired=rng.random() < 0.8,
        backoff=(initial, rng.choice([1.0, 2.0]), initial * rng.choice([1, 3])),
        poison=rng.choice([0.0, 0.03, 0.1]) if max_redeliveries is not None else 0.0,
        rejected=rng.choice([0.0, 0.03, 0.2]),
        reconsumed=rng.choice([0.05, 0.2, 0.5]),
        failing=rng.choice([0.0, 0.05, 0.2]),
        hanging=rng.choice([0.0, 0.2]) if ack_timeout is not None else 0.0,
        work_seconds=rng.choice([0.0, 0.005, 0.05, 0.05]),
        metadata_limit=rng.choice([4096, 4096, 4096, 4096, 120]),
        creates_topics=rng.random() < 0.3,
        specs={name: _spec(rng, mode) for name in plan.members},
    )


def _spec(rng: random.Random, mode: Mode) -> QueueSpec:
    styles = ["run"] if mode.in_order else ["run", "run", "run", "loop", "batch"]
    return QueueSpec(
        style=rng.choice(styles),
        concurrency=rng.choice([1, 2, 5, 50]),
        ack_group_time=rng.choice([0.0, 0.1, 0.1, 0.5]),
        ack_group_size=rng.choice([3, 1000]),
        receiver_queue=rng.choice([0, 1, 20, 1000]),
        max_waiting=rng.choice([2, 10_000]),
        priority=rng.choice([0, 0, 1]) if mode is Mode.FAILOVER else 0,
    )
