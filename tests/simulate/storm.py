"""Storms: many members of one group join, leave and die for a long time, while their handlers work. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from tests.simulate.plan import SPARE, MemberSpec, Plan, Setting
from tests.simulation.action import Action

__all__ = ["DEFAULTS", "LONG", "SHORT", "Intervals", "Protocol", "storm_plan"]

Protocol: TypeAlias = Literal["eager", "cooperative", "consumer"]

ASSIGNORS: Final[dict[Protocol, tuple[str, ...]]] = {
    "eager": ("sticky",),
    "cooperative": ("cooperative-sticky",),
    "consumer": (),
}

ENDS: Final = ("leave", "leave", "crash", "lose_host")
"""How a member ends: half of them leave in an orderly way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """What the members and their coordinator wait for, in seconds."""

    session_timeout: float
    heartbeat_interval: float
    initial_rebalance_delay: float
    request_timeout: float
    fetch_max_wait: float
    auto_commit_interval: float
    metadata_refresh_interval: float


SHORT: Final = Intervals(
    session_timeout=6.0,
    heartbeat_interval=2.0,
    initial_rebalance_delay=0.0,
    request_timeout=4.0,
    fetch_max_wait=3.0,
    auto_commit_interval=1.0,
    metadata_refresh_interval=30.0,
)
"""Shorter than the defaults: more happens at the same time."""

DEFAULTS: Final = Intervals(
    session_timeout=45.0,
    heartbeat_interval=3.0,
    initial_rebalance_delay=1.0,
    request_timeout=30.0,
    fetch_max_wait=3.0,
    auto_commit_interval=5.0,
    metadata_refresh_interval=300.0,
)
"""Kafka's defaults, but fetches without records wait for 3 s instead of 0.5 s."""

LONG: Final = replace(DEFAULTS, fetch_max_wait=20.0)
"""Kafka's defaults, but fetches without records wait for 20 s."""

CONSUMERS_HEARTBEAT: Final = 5.0
"""Kafka's default for members of the consumer protocol, in seconds."""


def storm_plan(
    protocol: Protocol,
    *,
    members: int,
    partitions: int,
    seconds: float,
    pause: float,
    seed: int,
    intervals: Intervals = SHORT,
    records: int = 10,
    nodes: int = 3,
) -> Plan:
    """Return a storm of `seconds` with an action each `pause` seconds on average, and `records` each second.

    Between half of `members` and all of them are alive. Every action is a join, an end or a restart.
    """
    rng = random.Random(f"storm {protocol} {seed}")
    if protocol == "consumer" and intervals is not SHORT:
        intervals = replace(intervals, heartbeat_interval=CONSUMERS_HEARTBEAT)
    setting = _setting(nodes, partitions, intervals)
    specs: dict[str, MemberSpec] = {}
    alive: list[str] = []
    actions: list[Action] = []

    def join(at: float) -> None:
        name = f"m{len(specs) + 1}"
        specs[name] = _member(rng, name, protocol, intervals)
        alive.append(name)
        actions.append(Action(at, "join", (name,)))

    for number in range(3 * members // 4):
        join(round(0.01 * number, 3))
    at = 5.0
    while (at := at + rng.expovariate(1 / pause)) < seconds:
        moment = round(at, 3)
        may_join, may_end = len(alive) < members, len(alive) > members // 2
        kind = rng.choice(["join"] * may_join + ["end"] * may_end + ["restart"])
        if kind == "join":
            join(moment)
        elif kind == "end":
            name = alive.pop(rng.randrange(len(alive)))
            actions.append(Action(moment, rng.choice(ENDS), (name,)))
        else:
            actions.append(Action(moment, "restart", (rng.choice(alive),)))
    actions += [Action(float(second), "produce", ("orders", records)) for second in range(1, int(seconds))]
    specs[SPARE] = _member(rng, SPARE, protocol, intervals)
    return Plan(
        seed=seed,
        setting=setting,
        members=specs,
        actions=tuple(sorted(actions, key=lambda action: action.at)),
        faults_end_at=seconds,
    )


def _setting(nodes: int, partitions: int, intervals: Intervals) -> Setting:
    return Setting(
        nodes=nodes,
        topics={"orders": partitions},
        latency_profile="near",
        chunk_size=1 << 18,
        initial_rebalance_delay=intervals.initial_rebalance_delay,
        session_timeout=intervals.session_timeout,
        heartbeat_interval=intervals.heartbeat_interval,
        has_standalone=False,
        offsets_append_delay=0.003,
        offsets_load_delay=0.05,
        is_on_disk=False,
        check_interval=1.0,
        metadata_refresh_interval=intervals.metadata_refresh_interval,
        request_timeout=intervals.request_timeout,
    )


def _member(rng: random.Random, name: str, protocol: Protocol, intervals: Intervals) -> MemberSpec:
    member = MemberSpec(
        name=name,
        instance_id=None,
        topics=("orders",),
        assignors=ASSIGNORS[protocol],
        auto_commit=True,
        auto_commit_interval=intervals.auto_commit_interval,
        rebalance_timeout=5.0,
        fetch_max_wait=intervals.fetch_max_wait,
        buffer_bytes=1 << 20,
        style=rng.choice(["records", "records", "batches"]),
        mark_every=rng.choice([1, 1, 3]),
        work_seconds=rng.choice([0.0, 0.0, 0.05]),
    )
    return replace(member, is_consumer=protocol == "consumer")
