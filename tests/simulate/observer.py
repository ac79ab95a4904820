"""Observe the brokers: every change of the group's state, and every commit that a coordinator accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from asyncgroup import Session, TopicPartition
from asyncgroup.broker import EmbeddedCluster, Exchange, GroupView
from asyncgroup.broker.control.recorder import ExchangeRecorder
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup
from asyncgroup.broker.groups.consumer.consumer_group_member import TopicIdPartition
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.offsets import OffsetMetadataManager
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.error_codes import ErrorCode
from tests.broker.internals import log_of, node_of, nodes_of
from tests.simulate import groups
from tests.simulate.lost_rebalances import LostRebalances
from tests.simulate.oracle import ClaimLog, CommitRules, Oracle
from tests.simulate.plan import GROUP
from tests.simulation.story import Story, Violation

__all__ = ["BrokerObserver", "ObservedRecorder"]

LIMIT = 1_000_000


class ObservedRecorder(ExchangeRecorder):
    """Calls `on_event` at each request and each response; between them only timers change the brokers' state.

    Unless it `keeps` the exchanges they are not measured, either, which takes longer than to answer large ones.
    """

    def __init__(self, on_event: Callable[[], None], *, keeps: bool) -> None:
        super().__init__(LIMIT)
        self._on_event = on_event
        self._keeps = keeps

    def record_request(self, context: RequestContext, request: Any, size: int) -> Exchange:
        self._on_event()
        if not self._keeps:
            return Exchange(context, request, size)
        return super().record_request(context, request, size)

    def record_response(self, exchange: Exchange, response: Any, size: int, now: float) -> None:
        if self._keeps:
            super().record_response(exchange, response, size, now)
        self._on_event()


class BrokerObserver:
    """Checks the cluster at every event; `fail` is called with violations.

    With a `check_interval` in seconds it is checked at every change of the group, and else only after so long.
    """

    def __init__(
        self,
        oracles: dict[str, Oracle],
        story: Story,
        name_of: Callable[[str], str],
        fail: Callable[[Violation], None],
        check_interval: float = 0.0,
        *,
        is_mixed: bool = False,
    ) -> None:
        self._is_mixed = is_mixed  # whether members use both protocols
        self._story = story
        self._name_of = name_of
        self._fail = fail
        self.oracles = oracles
        """By group."""
        self.on_commit: Callable[[str, TopicPartition, Any, str | None], None] | None = None
        """Called with the commits of GROUP in place of its oracle."""
        self.recorder = ObservedRecorder(self.observe, keeps=not check_interval)
        """Of all observed clusters."""
        self.may_be_unanswered = False
        """Whether followers of `__consumer_offsets` were held: an unanswered commit may take effect."""
        self._check_interval = check_interval
        self._next_check = 0.0
        self._cluster: EmbeddedCluster | None = None
        self._last: tuple[int, str, int] = (-1, "Dead", -1)
        self._removed: set[str] = set()  # members of the consumer protocol
        self._previous_epochs: dict[
            str, int
        ] = {}  # of theirs the highest, also while a new coordinator is loading
        self._checked: ModernGroup | None = None
        self._known: ModernGroup | None = None
        """The consumer group as `_note_protocol` saw it last."""
        self._lost = LostRebalances()
        self._names: dict[str, str] = {}  # of members of the consumer protocol, whose ids do not have them

    def attach(self, cluster: EmbeddedCluster) -> None:
        """Observe a cluster that is not started yet, instead of the previous one."""
        self._cluster = cluster
        cluster._runtime.recorder = self.recorder

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe commits during the block."""
        original = OffsetMetadataManager.commit
        observer = self

        def commit(self: OffsetMetadataManager, request: Any, reply: Any, *rest: Any, **more: Any) -> Any:
            owners = observer._commit_requested(self, request)

            def answered(result: Any, *rest: Any, **more: Any) -> Any:
                observer._committed(request, result, owners)
                return reply(result, *rest, **more)

            return original(self, request, answered, *rest, **more)

        OffsetMetadataManager.commit = commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            OffsetMetadataManager.commit = original  # type: ignore[method-assign]
            self._cluster = None

    # --- the group ------------------------------------------------------------------------------------------------

    def view(self) -> GroupView:
        """Return the coordinator's state of the group."""
        assert self._cluster is not None
        return self._cluster.group(GROUP)

    def _coordinators(self, group_id: str) -> list[GroupCoordinator]:
        """Return the coordinators that would serve a group; there should be at most one."""
        assert self._cluster is not None
        nodes = [node for node in nodes_of(self._cluster) if node.running]
        return [node.coordinator for node in nodes if not node.coordinator.error_for(group_id)]

    def observe(self) -> None:
        """Note a change of the group's state, and check the invariants."""
        assert self._cluster is not None
        node_id = self._cluster.coordinator(GROUP)
        state, generation = ("Dead", -1)
        if node_id >= 0:
            state, generation = groups.state_of(node_of(self._cluster, node_id).coordinator, GROUP)
        now = (node_id, state, generation)
        try:
            if now == self._last:
                self._check_if_due(node_id)
            else:
                if generation > self._last[2]:
                    self._story.count("rebalances")
                self._last = now
                self._group_changed(*now)
                self.check()
        except Violation as violation:
            self._fail(violation)

    def _check_if_due(self, node_id: int) -> None:
        """Check everything if it is time, else only what a change of the group's members may have broken."""
        if not self._check_interval:
            self.check()
            return
        time = asyncio.get_running_loop().time()
        if time >= self._next_check:
            self._next_check = time + self._check_interval
            self.check()
            return
        assert self._cluster is not None
        coordinator = None if node_id < 0 else node_of(self._cluster, node_id).coordinator
        changed = () if coordinator is None else self._check_consumers(coordinator)
        if changed:
            oracle = self.oracles[GROUP]
            oracle.check_one_owner({claim.tp for claim in oracle.running if claim.member_id in changed})

    def _group_changed(self, node_id: int, state: str, generation: int) -> None:
        view = self.view()
        names = ", ".join(f"{self._name_of(m.client_id)}" for m in view.members.values())
        self._story.write(
            "coordinator", f"node {node_id}: {state}, generation {generation}: {names or 'no members'}"
        )
        if state == "Stable":
            self._story.count("generations")
            self._check_plan(view)

    def _check_plan(self, view: GroupView) -> None:
        """Check that the assignment gives each partition to at most one member."""
        owners: dict[TopicPartition, str] = {}
        for member in view.members.values():
            for topic, partitions in member.assignment.items():
                for tp in (TopicPartition(topic, partition) for partition in partitions):
                    if tp in owners:
                        text = f"generation {view.generation}: {tp} belongs to {owners[tp]} and {member.member_id}"
                        self._fail(Violation("one owner", text))
                    owners[tp] = member.member_id

    # --- invariants that always hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check: one coordinator, one owner per partition, no commit and no record lost. Raises Violation."""
        assert self._cluster is not None
        for group_id, oracle in self.oracles.items():
            coordinators = self._coordinators(group_id)
            if len(coordinators) > 1:
                raise Violation(
                    "one coordinator", f"{len(coordinators)} nodes answer for the group {group_id}"
                )
            for coordinator in coordinators:
                if group_id == GROUP:
                    self._check_consumers(coordinator)
                kept = coordinator.offsets.committed(group_id)
                for tp in oracle.partitions:
                    oracle.check_remembered_commit(
                        tp, kept[tp].offset if tp in kept else -1, may_be_unanswered=self.may_be_unanswered
                    )
        oracle = self.oracles[GROUP]
        oracle.check_one_owner()
        for tp in oracle.partitions:
            oracle.check_log_end(tp, log_of(self._cluster, *tp).end_offset)

    def _check_consumers(self, coordinator: GroupCoordinator) -> set[str]:
        """Check that no two members of a consumer group have a partition, or shall have it. Raises Violation.

        Return the ids of the members that have changed since the last call.
        """
        group, before = coordinator.consumer_groups.get(GROUP), self._checked
        if self._is_mixed:
            self._note_protocol(group, coordinator.groups.get(GROUP))
        if group is None or group is before:
            return set()
        known = {} if before is None else before.members
        self._removed |= known.keys() - group.members.keys()
        self._checked = group
        changed = {key for key, member in group.members.items() if known.get(key) is not member}
        for member_id in changed:
            member = group.members[member_id]
            self._names[member_id] = self._name_of(member.client_id)
            seen = self._previous_epochs.get(member_id, -1)
            self._previous_epochs[member_id] = max(seen, member.previous_epoch)
        if sum(len(one.assigned) + len(one.revoking) for one in group.members.values()) != len(group.owners):
            self._check_pairs(group, "belongs to", group._owners())
        if before is None or group.targets is not before.targets:
            self._check_pairs(group, "is meant for", groups.targets_of(group))
        return changed

    def _check_pairs(
        self, group: ModernGroup, what: str, pairs: Iterable[tuple[TopicIdPartition, str]]
    ) -> None:
        found: dict[TopicIdPartition, str] = {}
        for partition, member_id in pairs:
            if found.setdefault(partition, member_id) != member_id:
                text = f"epoch {group.epoch}: {partition} {what} {found[partition]} and {member_id}"
                raise Violation("one owner", text)

    def _note_protocol(self, group: ModernGroup | None, classic: ClassicGroup | None) -> None:
        """Note what a group with both protocols forgets when it changes its own."""
        if (present := group or classic) is not None:
            self.oracles[GROUP].members_seen(present.members)
        if group is None and classic is not None:
            self._lost.saw_classic(classic)
        if group is self._known:
            return
        before, self._known = self._known, group
        if before is not None and group is None:
            self._checked = None
            self._removed |= before.members.keys()
            if classic is not None:
                self._lost.downgraded(before, classic)
        if before is None and group is not None:
            self._upgraded(group)

    def _upgraded(self, group: ModernGroup) -> None:
        self._lost.upgraded(group)
        assignments = self._lost.assignments
        assigned = {(one, tp) for one in assignments for tp in groups.partitions_of(assignments[one])}
        forgotten = self.oracles[GROUP].group_upgraded(assigned)
        if forgotten:
            self._story.write("coordinator", f"has forgotten {forgotten} claims at the upgrade")
            self._story.count("claims forgotten at an upgrade", forgotten)

    def rules(self) -> list[CommitRules]:
        """Return what the coordinators of the group would decide now about its commits."""
        found = (groups.rules_of(one, GROUP) for one in self._coordinators(GROUP))
        return [one for one in found if one is not None]

    def _classic_group(self) -> ClassicGroup | None:
        assert self._cluster is not None
        node_id = self._cluster.coordinator(GROUP)
        return None if node_id < 0 else node_of(self._cluster, node_id).coordinator.groups.get(GROUP)

    def has_ended(self, session: Session) -> bool:
        """Return whether the coordinator of a consumer group has ended the membership of a session.

        It has removed the member, or the responses to two heartbeats with new epochs were lost: Kafka knows only one
        previous epoch, and fences a member with an older one.
        """
        if session.member_id in self._removed:
            return True
        if self._previous_epochs.get(session.member_id, -1) > session.generation_id:
            return True
        known = (one.consumer_groups.get(GROUP) for one in self._coordinators(GROUP))
        members = [one.members.get(session.member_id) for one in known if one is not None]
        return None in members

    def lacks_rebalance(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether the coordinator has forgotten a rebalance; `partitions` are those that the group should have."""
        view = self.view()
        are_all_owned = view.assignment.keys() >= set(partitions)
        return any(
            self._lost.is_lost(one, view, are_all_owned=are_all_owned) for one in self._coordinators(GROUP)
        )

    def remove_absent_members(self) -> int:
        """Remove the static members that the first rebalance waits for, as an operator does; return their number."""
        absent = self._lost.absent_members(self._classic_group())
        for one in self._coordinators(GROUP) if absent else ():
            one.leave(GROUP, absent)
        return len(absent)

    def is_up_to_date(self, session: Session, tp: TopicPartition) -> bool:
        """Return whether a partition belongs to a session's member, by the present state of the coordinator."""
        for one in self._coordinators(GROUP):
            if one.consumer_groups.get(GROUP) is not None:
                return groups.owner_of(one.consumer_groups, GROUP, tp) == session.member_id
        group = self._classic_group()
        return (
            group is not None
            and group.generation_id == session.generation_id
            and session.member_id in group.members
        )

    def other_owner(self, claim: ClaimLog) -> str | None:
        """Return who else has a claim's partition in a consumer group, in words; None if its member has it.

        A member has a partition until it has reported it as revoked. In a classic group there is no other owner: commits of
        its present generation are accepted.
        """
        for one in self._coordinators(GROUP):
            if one.consumer_groups.get(GROUP) is not None:
                owner = groups.owner_of(one.consumer_groups, GROUP, claim.tp)
                return None if owner == claim.member_id else owner or "no member"
        return None

    # --- commits --------------------------------------------------------------------------------------------------

    def _commit_requested(self, offsets: OffsetMetadataManager, request: Any) -> Mapping[TopicPartition, str]:
        """Record a commit request, which may take effect without a response; return the partitions' current owners.

        The request is judged by the owners at this moment.
        """
        oracle = self.oracles.get(request.group_id)
        if oracle is not None:
            for tp, commit in request.offsets.items():
                oracle.at(tp).unanswered.add(commit.offset)
        if request.group_id != GROUP:
            return dict.fromkeys(request.offsets, "")
        if (known := offsets._consumer_groups).get(GROUP) is not None:
            found = ((tp, groups.owner_of(known, GROUP, tp)) for tp in request.offsets)
            return {tp: owner for tp, owner in found if owner is not None}
        classic = None if offsets._groups.get(GROUP) is None else self._classic_group()
        return {} if classic is None else groups.owners_of(classic)

    def _committed(self, request: Any, result: Any, owners: Mapping[TopicPartition, str]) -> None:
        oracle = self.oracles.get(request.group_id)
        if oracle is None:
            return
        codes = result if isinstance(result, dict) else dict.fromkeys(request.offsets, result)
        name = "reader"
        if request.group_id == GROUP:
            name = self._names.get(request.member.id) or self._name_of(request.member.id)
        taken = {tp: request.offsets[tp].offset for tp, code in codes.items() if not code}
        refused = sorted({ErrorCode(code).name for code in codes.values() if code})
        if refused:
            self._story.write(name, f"commit refused: {', '.join(refused)}")
        if not taken:
            return
        places = ", ".join(f"{tp}@{offset}" for tp, offset in sorted(taken.items()))
        self._story.write(name, f"committed {places}")
        self._story.count("commits")
        for tp, offset in taken.items():
            try:
                if self.on_commit is not None and request.group_id == GROUP:
                    self.on_commit(request.member.id, tp, request.offsets[tp], owners.get(tp))
                    continue
                oracle.committed(request.member.id, request.member.generation_id, tp, offset, owners.get(tp))
            except Violation as violation:
                self._fail(violation)
