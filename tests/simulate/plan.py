"""The plan of a run: cluster, members, and all actions. Plain values; `planner` draws them from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.simulate.queues_setting import QueueSetting
from tests.simulation.action import Action, without_actions

__all__ = [
    "GROUP",
    "OFFSETS_TOPIC",
    "ORDERLY",
    "SPARE",
    "STANDALONE_GROUP",
    "MemberSpec",
    "Plan",
    "Setting",
]

GROUP: Final = "g"
STANDALONE_GROUP: Final = "hermits"  # an old name, kept as seeds depend on it
OFFSETS_TOPIC: Final = "__consumer_offsets"
SPARE: Final = "spare"
"""The member that joins at the end if no other is active."""


LONGEST_GUSTS: Final = 1.2
"""Seconds that a request and its response may need with the latency profile `gusty`, if each is one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A program with a group member: its configuration, and how its handler behaves.

    - `topics`: names, or one string as a pattern;
    - `assignors`: its own ones, or the coordinator's one that a member of the consumer protocol names, if any;
    - `style`: how it reads (`records`, `batches`, `breaks`, `timeouts`);
    - `mark_every`: records per mark;
    - `work_seconds`: time that some of the records take.
    """

    name: str
    instance_id: str | None
    topics: tuple[str, ...] | str
    assignors: tuple[str, ...]
    auto_commit: bool
    auto_commit_interval: float
    rebalance_timeout: float
    fetch_max_wait: float
    buffer_bytes: int
    style: str
    mark_every: int
    work_seconds: float
    is_consumer: bool = False
    """Whether it uses the consumer protocol (KIP-848)."""
    matches_at_broker: bool = False
    """Whether the coordinator matches its pattern (`SubscriptionPattern`)."""
    rack_id: str = ""
    balance_by_rack: bool = False

    @property
    def is_cooperative(self) -> bool:
        """Whether it uses the cooperative classic protocol."""
        return self.assignors == ("cooperative-sticky",)

    @property
    def sessions_last(self) -> bool:
        """Whether its sessions last over rebalances."""
        return self.is_cooperative or self.is_consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The cluster and network of a run.

    - `latency_profile`: the name of a distribution of latencies (`conditions`);
    - `has_standalone`: whether there is a standalone reader;
    - `is_on_disk`: whether records and metadata are kept in files, so that all brokers may be killed at once;
    - `has_strict_epochs`: whether commits must have the member's present epoch, as before Kafka 4.3 (KIP-1251);
    - `check_interval`: 0 if the invariants are checked at every event, else the longest time without a check; then requests
      are not kept, either;
    - `metadata_refresh_interval`, `request_timeout`: those of the members;
    - `migration_policy`: whether a live group may change its protocol (`group.consumer.migration.policy`);
    - `racks`: of the nodes, none if empty.
    """

    nodes: int
    topics: dict[str, int]
    latency_profile: str
    chunk_size: int
    initial_rebalance_delay: float
    session_timeout: float
    heartbeat_interval: float
    has_standalone: bool
    offsets_append_delay: float
    offsets_load_delay: float
    is_on_disk: bool
    has_strict_epochs: bool = False
    check_interval: float = 0.0
    metadata_refresh_interval: float = 3.0
    request_timeout: float = 4.0
    migration_policy: str = "bidirectional"
    racks: tuple[str, ...] = ()

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds that a member of a classic group waits for the response to a heartbeat."""
        return max(self.heartbeat_interval, self.session_timeout / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run; all faults end at `faults_end_at` seconds.

    `others` has each member as it is with the other group protocol, in plans in which members have both or change theirs.
    With `queues` the members are work queues.
    """

    seed: int
    setting: Setting
    members: dict[str, MemberSpec]
    actions: tuple[Action, ...]
    faults_end_at: float
    others: dict[str, MemberSpec] = field(default_factory=dict)
    queues: QueueSetting | None = None

    @property
    def is_orderly(self) -> bool:
        """Whether no action may cost a member its session or a commit: then no record may be handled twice.

        A group with both protocols is never orderly: if two members leave between two heartbeats of a third one, the classic
        group has a generation in which the third one has never been, and the third one loses what it has. Nor is one whose
        network may need longer than a heartbeat has: that closes its connection, and a commit on it fails.
        """
        can_answer = self.setting.latency_profile != "gusty" or self.setting.heartbeat_timeout > LONGEST_GUSTS
        return not self.others and can_answer and all(action.kind in ORDERLY for action in self.actions)

    def without(self, actions: Sequence[Action]) -> Plan:
        """Return the plan without some actions."""
        return replace(self, actions=without_actions(self.actions, actions))


ORDERLY: Final = frozenset(
    {
        "join",
        "leave",
        "leave_at_heartbeat",
        "cancel",
        "restart",
        "restart_standalone",
        "produce",
        "add_partitions",
        "slow_handler",
    }
)
"""Actions under which, as the README promises, no session is lost and no record repeated."""
