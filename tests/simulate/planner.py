"""Draw the plan of a seed. Pure: no clock, no I/O.

The strings and the order in which this module draws random values are part of a seed's meaning: after a change the seeds that
reproduce earlier bugs (`tests/scenario/random/test_simulation.py`) produce other runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.simulate.plan import OFFSETS_TOPIC, ORDERLY, SPARE, MemberSpec, Plan, Setting
from tests.simulation.action import Action, Args

__all__ = ["ACTIONS", "classic_plan"]


def classic_plan(seed: int) -> Plan:
    """Return a plan of a seed with members of the eager protocol; it is the same on every machine."""
    return _Planner(seed).plan()


@dataclass(slots=True)
class _Planner:
    """Draws a plan. `alive` are the members that will be active, so that most actions have an object."""

    seed: int
    rng: random.Random = field(init=False)
    setting: Setting = field(init=False)
    base: str = field(init=False)
    is_mixed: bool = field(init=False)
    """Whether members support different assignors. A coordinator that has loaded the group knows only the chosen assignor of
    each member, and refuses new members without it (INCONSISTENT_GROUP_PROTOCOL); so coordinators are not moved then."""
    faults_end_at: float = field(init=False)
    specs: dict[str, MemberSpec] = field(default_factory=dict)
    alive: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)

    def plan(self) -> Plan:
        self.rng = rng = random.Random(f"asyncgroup {self.seed}")
        self.base = rng.choice(["range", "roundrobin", "sticky"])
        self.is_mixed = rng.random() < 0.3
        self.setting = _setting(rng)
        self.sizes = dict(self.setting.topics)
        self.faults_end_at = rng.uniform(5.0, 20.0)
        for _ in range(rng.randint(1, 3)):
            self._join(rng.choice([0.0, rng.uniform(0, 1.5)]))
        self._produce()
        kinds = self._draw_kinds()
        moments = sorted(rng.uniform(0.5, self.faults_end_at) for _ in range(rng.choice([3, 8, 14, 20])))
        for at in moments:
            self._act(rng.choice(kinds), at)
        self.specs[SPARE] = replace(
            _member(rng, SPARE, self.setting, self.base, self.is_mixed), instance_id=None
        )
        actions = tuple(sorted(self.actions, key=lambda action: action.at))
        return Plan(
            seed=self.seed,
            setting=self.setting,
            members=self.specs,
            actions=actions,
            faults_end_at=self.faults_end_at,
        )

    def _draw_kinds(self) -> list[str]:
        """Draw a few kinds of actions for the whole run: that finds more than using all kinds in each run (swarm
        testing, Groce et al. 2012). Every sixth seed is orderly."""
        rng = self.rng
        orderly = [kind for kind in ACTIONS if kind in ORDERLY]
        if rng.random() < 1 / 6:
            return orderly
        known = [kind for kind in ACTIONS if not (self.is_mixed and kind in MOVES_COORDINATORS)]
        kinds = rng.sample(known, rng.randint(2, 8))
        return [*kinds, *kinds, "join", "leave", rng.choice(orderly)]

    def _add(self, at: float, kind: str, *args: Any) -> None:
        self.actions.append(Action(round(at, 3), kind, tuple(_rounded(arg) for arg in args)))

    def _produce(self) -> None:
        """Produce bursts of records during the whole run."""
        rng, at = self.rng, 0.1
        pause = rng.choice([0.3, 0.8, 2.0])
        while at < self.faults_end_at:
            self._add(at, "produce", rng.choice(sorted(self.sizes)), rng.choice([1, 2, 5, 20]))
            at += rng.uniform(0.2, 2.0) * pause

    def _act(self, kind: str, at: float) -> None:
        if kind == "join":
            self._join(at)
        elif kind != "produce":
            args = ACTIONS[kind](self)
            if args is not None:
                self._add(at, kind, *args)

    def _join(self, at: float) -> None:
        if len(self.alive) >= 5:
            return
        name = f"m{len(self.specs) + 1}"
        self.specs[name] = _member(self.rng, name, self.setting, self.base, self.is_mixed)
        self.alive.append(name)
        self._add(at, "join", name)

    # --- arguments of actions; None if there is no object ---------------------------------------------------------

    def a_member(self) -> Args | None:
        return (self.rng.choice(self.alive),) if self.alive else None

    def a_leaving_member(self) -> Args | None:
        """A member that is not active after the action."""
        return (self.alive.pop(self.rng.randrange(len(self.alive))),) if self.alive else None

    def a_client(self) -> Args:
        """A member, the producer or the standalone reader."""
        standalone = ["reader"] if self.setting.has_standalone else []
        return (self.rng.choice([*self.alive, "producer", *standalone]),)

    def client_for_a_time(self) -> Args:
        return (*self.a_client(), self.rng.choice([0.3, 1.5, 4.0, 7.0]))

    def member_for_a_time(self) -> Args | None:
        who = self.a_member()
        return who and (*who, self.rng.choice([0.3, 1.5, 4.0, 7.0]))

    def member_with_delay(self) -> Args | None:
        who = self.a_member()
        return who and (*who, self.rng.choice([0.02, 0.2, 0.6]), self.rng.uniform(1, 6))

    def client_with_latency(self) -> Args:
        return (*self.a_client(), self.rng.choice([0.1, 0.5, 2.0]), self.rng.uniform(1, 6))

    def client_and_node(self) -> Args:
        return (*self.a_client(), self.node(), self.rng.choice([0.5, 2.0, 6.0]))

    def node(self) -> int:
        return self.rng.randint(1, self.setting.nodes)

    def a_node(self) -> Args:
        return (self.node(),)

    def node_for_a_time(self) -> Args:
        return (self.node(), self.rng.choice([0.2, 1.0, 3.0, 6.0]))

    def node_with_delay(self) -> Args:
        return (self.node(), self.rng.choice([0.1, 0.5, 2.0]), self.rng.uniform(1, 6))

    def an_outage(self) -> Args | None:
        return (self.rng.choice([0.2, 1.0, 4.0]),) if self.setting.is_on_disk else None

    def a_partition(self) -> Args:
        topic = self.rng.choice(sorted(self.sizes))
        return (topic, self.rng.randrange(self.sizes[topic]))

    def a_leader(self) -> Args:
        return (*self.a_partition(), self.node())

    def held_followers(self) -> Args | None:
        """None if there is only one node. Partition -1 of `__consumer_offsets` stands for the group's partition."""
        topic, partition = self.a_partition()
        if self.rng.random() < 0.4:
            topic, partition = OFFSETS_TOPIC, -1
        seconds = self.rng.choice([0.3, 1.5, 7.0])
        return (topic, partition, seconds) if self.setting.nodes > 1 else None

    def more_partitions(self) -> Args | None:
        topic = self.rng.choice(sorted(self.sizes))
        if self.sizes[topic] >= 6:
            return None
        self.sizes[topic] += self.rng.randint(1, 2)
        return (topic, self.sizes[topic])

    def fault(self) -> Args:
        rng = self.rng
        what = rng.choice(["drop", "before", "after", "mid-frame", "delay", "error", "throttle"])
        return (rng.choice(FAULTY_APIS), what, rng.randint(1, 3))


MOVES_COORDINATORS: Final = frozenset({"stop_node", "power_cut", "move_coordinator"})

FAULTY_APIS: Final = (
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "OffsetCommit",
    "OffsetFetch",
    "ListOffsets",
    "LeaveGroup",
    "Metadata",
    "Fetch",
    "Produce",
)

ACTIONS: Final[dict[str, Callable[[_Planner], Args | None]]] = {
    "join": lambda _: None,
    "produce": lambda _: None,
    # members
    "leave": _Planner.a_leaving_member,
    "leave_at_heartbeat": _Planner.a_leaving_member,
    "cancel": _Planner.a_member,
    "restart": _Planner.a_member,
    "restart_standalone": lambda planner: () if planner.setting.has_standalone else None,
    "crash": _Planner.a_leaving_member,
    "lose_host": _Planner.a_leaving_member,
    "raise_in_handler": _Planner.a_member,
    "return_early": _Planner.a_member,
    "slow_handler": _Planner.member_with_delay,
    "block_handler": _Planner.member_for_a_time,
    "ignore_cancellation": _Planner.member_for_a_time,
    "pause": _Planner.member_for_a_time,
    # network
    "block_client": _Planner.client_for_a_time,
    "reset_client": _Planner.a_client,
    "close_client": _Planner.a_client,
    "half_open_client": _Planner.a_client,
    "slow_client": _Planner.client_with_latency,
    "partition_client": _Planner.client_and_node,
    "freeze_node": _Planner.node_for_a_time,
    "refuse_node": _Planner.node_for_a_time,
    "reset_node": _Planner.a_node,
    "close_node": _Planner.a_node,
    "half_open_node": _Planner.a_node,
    "slow_node": _Planner.node_with_delay,
    # brokers
    "stop_node": _Planner.node_for_a_time,
    "power_cut": _Planner.an_outage,
    "slow_requests": _Planner.node_with_delay,
    "hold_followers": _Planner.held_followers,
    "move_coordinator": _Planner.a_node,
    "move_leader": _Planner.a_leader,
    "add_partitions": _Planner.more_partitions,
    "fault": _Planner.fault,
}
"""Every kind of action, and the method that draws its arguments. Their effects are in `actions`."""


def _setting(rng: random.Random) -> Setting:
    topics = {"orders": rng.randint(1, 5)}
    if rng.random() < 0.3:
        topics["others"] = rng.randint(1, 3)
    session_timeout = rng.choice([3.0, 4.0, 6.0])
    return Setting(
        nodes=rng.choice([1, 2, 3, 3]),
        topics=topics,
        latency_profile=rng.choice(["still", "near", "near", "far", "gusty"]),
        chunk_size=rng.choice([1 << 18, 1 << 18, 1 << 18, 700, 97]),
        initial_rebalance_delay=rng.choice([0.0, 0.0, 0.4]),
        session_timeout=session_timeout,
        heartbeat_interval=session_timeout / rng.choice([3, 4]),
        has_standalone=rng.random() < 0.3,
        offsets_append_delay=rng.choice([0.0, 0.0, 0.003, 0.1]),
        offsets_load_delay=rng.choice([0.0, 0.0, 0.05, 1.5]),
        is_on_disk=rng.random() < 0.5,
    )


def _member(rng: random.Random, name: str, setting: Setting, base: str, is_mixed: bool) -> MemberSpec:
    others = [other for other in ("range", "roundrobin", "sticky") if other != base]
    assignors = [base, *rng.sample(others, rng.choice([0, 1, 2]) if is_mixed else 0)]
    rng.shuffle(assignors)
    by_pattern = rng.random() < 0.15
    return MemberSpec(
        name=name,
        instance_id=f"place-{name}" if rng.random() < 0.25 else None,
        topics="orders|others" if by_pattern else tuple(sorted(setting.topics)),
        assignors=tuple(assignors),
        auto_commit=rng.random() < 0.75,
        auto_commit_interval=rng.choice([0.2, 1.0, 1.0, 5.0]),
        rebalance_timeout=rng.choice([3.0, 5.0, 8.0]),
        fetch_max_wait=rng.choice([0.5, 1.0, 2.0]),
        buffer_bytes=rng.choice([1 << 20, 1 << 20, 2048]),
        style=rng.choice(["records", "records", "batches", "breaks", "timeouts"]),
        mark_every=rng.choice([1, 1, 1, 3, 10]),
        work_seconds=rng.choice([0.0, 0.0, 0.005, 0.05]),
    )


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
