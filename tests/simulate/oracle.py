"""The oracle: the actual state of a run, and the invariants that are checked at every event. Pure state.

Each method handles one event and raises `Violation` if the event violates an invariant. Offsets are those of the log, which
contains all acknowledged records and possibly others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from asyncgroup import TopicPartition
from tests.simulation.story import Violation

__all__ = ["ANY", "ClaimLog", "CommitRules", "Oracle", "PartitionOracle"]

ANY: Final = -1
"""Stands for every offset in `Oracle.doubtful`."""


@dataclass(slots=True, eq=False)
class ClaimLog:
    """One claim as seen by its handler: `next` is the offset of the next record, `mark` the next offset to commit.

    `epoch` returns the member's present epoch in a consumer group, where it increases without a rejoin.
    """

    member: str
    member_id: str
    joined: int
    """The generation in which the member joined last."""
    tp: TopicPartition
    initial: int
    instance_id: str | None = None
    epoch: Callable[[], int] | None = None
    next: int = field(init=False)
    mark: int = field(init=False)
    has_ended: bool = False
    """Whether the handler has returned."""
    is_left_behind: bool = False
    """Whether its member has dropped its marks while the handler was running."""
    is_forgotten: bool = False
    """Whether its consumer group does not know of it (`Oracle.group_upgraded`, `Oracle.members_seen`)."""
    dirty_since: float | None = None
    """Time of the first mark since the last commit."""

    def __post_init__(self) -> None:
        self.next = self.mark = self.initial

    @property
    def generation(self) -> int:
        """The generation or epoch under which the member now commits."""
        return self.joined if self.epoch is None else self.epoch()

    def __str__(self) -> str:
        return f"claim {self.tp} of {self.member} ({self.member_id}, generation {self.generation})"


@dataclass(slots=True)
class PartitionOracle:
    """The actual state of one partition."""

    times: list[int] = field(default_factory=list)
    """By offset: how often the record was handled."""
    handled_end: int = 0
    """All records before this offset were handled at least once."""
    committed: int = -1
    """The committed offset of the coordinator; -1 before the first commit."""
    is_set_back: bool = False
    """Whether the last commit was a late one that the member had given up: it believes that a newer one is in effect."""
    had_two_owners: bool = False
    """Whether a claim of it was forgotten while another member could get it: commits of both are in no order."""
    unanswered: set[int] = field(default_factory=set)
    """Offsets of commit requests: they may be in the coordinator's log and take effect later, without a response."""
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    acknowledged_end: int = 0
    """The offset after the last acknowledged record."""
    seen: dict[int, bytes] = field(default_factory=dict)
    """The records that were delivered."""

    def handled(self, offset: int) -> bool:
        """Count a handled record; return whether it is the first time."""
        self.times.extend([0] * (offset + 1 - len(self.times)))
        self.times[offset] += 1
        while self.handled_end < len(self.times) and self.times[self.handled_end]:
            self.handled_end += 1
        return self.times[offset] == 1


class CommitRules(Protocol):
    """What a coordinator would decide about commits at one moment."""

    def accepts(self, claim: ClaimLog) -> bool:
        """Return whether it would accept a commit of a claim's member and generation."""

    def is_owner(self, claim: ClaimLog) -> bool:
        """Return whether a claim's partition belongs to its member; also true if the coordinator does not know."""


class Oracle:
    """The state of all partitions, and the claims whose handlers are running."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionOracle] = {}
        self.claims: dict[tuple[str, TopicPartition], list[ClaimLog]] = {}
        self.running: dict[ClaimLog, None] = {}
        """In the order in which they started."""
        self._running_at: dict[TopicPartition, list[ClaimLog]] = {}
        self.doubtful: set[tuple[str, TopicPartition, int]] = set()
        """Commits that were given up without a response: the coordinator may process them later, out of order."""
        self.replicated: Callable[[TopicPartition], int] = lambda _tp: 1 << 62
        """Returns the current high watermark of a partition."""
        self.is_cooperative = False
        """Whether members commit after they have joined for partitions that they revoke."""
        self.rules: Callable[[], Sequence[CommitRules]] = lambda: ()
        """Returns those of the coordinators that would now serve the group; there should be at most one."""
        self.other_owner: Callable[[ClaimLog], str | None] = lambda _claim: None
        """Returns who else has a claim's partition at the coordinator of a consumer group, in words."""

    def at(self, tp: TopicPartition) -> PartitionOracle:
        """Return the state of a partition."""
        state = self.partitions.get(tp)
        if state is None:
            state = self.partitions[tp] = PartitionOracle()
        return state

    # --- producers ------------------------------------------------------------------------------------------------

    def acknowledged(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """A record was acknowledged to its producer."""
        oracle = self.at(tp)
        oracle.acknowledged_end = max(oracle.acknowledged_end, offset + 1)
        kept = oracle.acknowledged.setdefault(offset, value)
        if kept != value:
            text = f"{tp} at {offset}: {value!r} was acknowledged, and {kept!r} before"
            raise Violation("one record an offset", text)

    def check_log(self, tp: TopicPartition, log: Mapping[int, bytes]) -> None:
        """Check the records in a partition's log, by offset."""
        oracle = self.at(tp)
        for what, known in (("acknowledged", oracle.acknowledged), ("handed out", oracle.seen)):
            for offset, value in known.items():
                if log.get(offset) != value:
                    text = f"{tp} at {offset}: {value!r} was {what}, the log has {log.get(offset)!r}"
                    raise Violation("nothing acknowledged is lost", text)
        times = Counter(log.values())
        for offset, value in oracle.acknowledged.items():
            if times[value] != 1:
                text = f"{tp}: {value!r}, acknowledged at {offset}, is there {times[value]} times"
                raise Violation("what is acknowledged is written once", text)

    def check_log_end(self, tp: TopicPartition, end: int) -> None:
        """Check the end of a partition's log: acknowledged records must be before it."""
        acknowledged = self.at(tp).acknowledged_end
        if end < acknowledged:
            text = f"{tp} ends at {end}, records up to {acknowledged} were acknowledged"
            raise Violation("nothing acknowledged is lost", text)

    # --- claims ---------------------------------------------------------------------------------------------------

    def claim_started(self, claim: ClaimLog, *, is_up_to_date: bool) -> None:
        """A handler begins; `is_up_to_date` if its claim is of the group's current generation."""
        oracle = self.at(claim.tp)
        if claim.initial > oracle.handled_end:
            text = f"{claim} starts at {claim.initial}, but {oracle.handled_end} was not handled"
            raise Violation("at least once", text)
        if is_up_to_date and claim.initial != max(oracle.committed, 0) and not oracle.had_two_owners:
            text = f"{claim} starts at {claim.initial}, committed is {oracle.committed}"
            raise Violation("a claim starts where the group has committed", text)
        self.claims.setdefault((claim.member_id, claim.tp), []).append(claim)
        self.running[claim] = None
        self._running_at.setdefault(claim.tp, []).append(claim)
        self.check_one_owner([claim.tp])

    def handed_out(self, claim: ClaimLog, offset: int, value: bytes) -> None:
        """The handler got a record."""
        if offset != claim.next:
            raise Violation("in order", f"{claim} got {offset}, {claim.next} comes next")
        claim.next = offset + 1
        if offset >= (end := self.replicated(claim.tp)):
            raise Violation(
                "only replicated records are read", f"{claim} got {offset}, the high watermark is {end}"
            )
        oracle = self.at(claim.tp)
        for known in (oracle.seen, oracle.acknowledged):
            if known.get(offset, value) != value:
                text = f"{claim} got {value!r} at {offset}, the log has {known[offset]!r}"
                raise Violation("one record an offset", text)
        oracle.seen[offset] = value

    def handled(self, claim: ClaimLog, offset: int) -> bool:
        """A record was handled; return whether for the first time."""
        return self.at(claim.tp).handled(offset)

    def marked(self, claim: ClaimLog, offset: int, now: float) -> None:
        """The handler is about to mark everything before `offset`."""
        claim.mark = max(claim.mark, offset)
        if claim.dirty_since is None:
            claim.dirty_since = now

    def claim_ended(self, claim: ClaimLog) -> None:
        """The handler has returned."""
        claim.has_ended = True
        del self.running[claim]
        self._running_at[claim.tp].remove(claim)

    def group_upgraded(self, assigned: Collection[tuple[str, TopicPartition]]) -> int:
        """A classic group became a consumer group: note the claims that it has forgotten; return their number.

        `assigned` are the members of the classic group, each with the partitions of its last SyncGroup: as a consumer group
        it knows only these (`ConsumerGroup.fromClassicGroup`), and gives the others to any member at once. A cooperative
        member may have more, until it has joined again: if one joins while others wait for their SyncGroup, Kafka clears
        all assignments (`prepareRebalance`); and what a member was told to revoke may still be at work.
        """
        kept = [
            claim
            for (member_id, tp), claims in self.claims.items()
            for claim in claims
            if claim.epoch is None
            and (member_id, tp) not in assigned
            and (not claim.has_ended or claim.dirty_since is not None)
            and self.other_owner(claim) is not None
        ]
        for claim in kept:
            claim.is_forgotten = self.at(claim.tp).had_two_owners = True
        return len(kept)

    def members_seen(self, members: Collection[str]) -> None:
        """Note the claims of classic members that are not in the group (any more).

        A consumer group accepts a JoinGroup with an id that it does not know, as Kafka does, where a classic group answers
        UNKNOWN_MEMBER_ID. So a cooperative member that was removed keeps its claims until it has synced.
        """
        for claim in self.running:
            if claim.epoch is None and claim.member_id not in members:
                claim.is_forgotten = True

    # --- commits --------------------------------------------------------------------------------------------------

    def committed(
        self, member_id: str, generation: int, tp: TopicPartition, offset: int, owner: str | None
    ) -> None:
        """The coordinator has accepted a commit; `owner` had the partition in its assignment when the request arrived."""
        oracle = self.at(tp)
        who = f"commit of {tp} at {offset} by {member_id}, generation {generation}"
        claims = self.claims.get((member_id, tp), [])
        was_just_revoked = self.is_cooperative and owner is None
        is_forgotten = any(claim.is_forgotten for claim in claims)
        if owner != member_id and not was_just_revoked and not is_forgotten:
            raise Violation("one owner", f"{who} was accepted, but the partition belongs to {owner}")
        if offset > oracle.handled_end:
            text = f"{who} passes record {oracle.handled_end}, which was not handled"
            raise Violation("commits never pass unhandled records", text)
        marks = [claim.mark for claim in claims]
        if offset > max(marks, default=-1):
            text = f"{who} passes the marks of its member: {marks}"
            raise Violation("commits never pass unmarked records", text)
        doubts = {(member_id, tp, offset), (member_id, tp, ANY)} & self.doubtful
        if offset < oracle.committed and not doubts and not oracle.had_two_owners:
            text = f"{who} goes back, {oracle.committed} was committed before"
            raise Violation("commits never go back", text)
        for claim in claims:
            claim.dirty_since = None
        oracle.is_set_back = offset < oracle.committed
        oracle.committed = offset

    def check_remembered_commit(self, tp: TopicPartition, offset: int, *, may_be_unanswered: bool) -> None:
        """Check the coordinator's current committed offset (-1: none); it may be that of an unanswered commit."""
        oracle = self.at(tp)
        if offset == oracle.committed:
            return
        if not may_be_unanswered or offset not in oracle.unanswered or offset < oracle.committed:
            text = f"{tp}: the coordinator has {offset}, but it has acknowledged {oracle.committed}"
            raise Violation("no commit is lost", text)
        oracle.committed = offset  # a former coordinator has written it to the log but could not answer

    def check_one_owner(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Check that each partition has at most one running handler whose commits would be accepted.

        `partitions`: those of which that may have changed, None for all.
        """
        rules = self.rules()
        for tp in self._running_at if partitions is None else partitions:
            accepted = [
                claim
                for claim in self._running_at.get(tp, ())
                if any(one.accepts(claim) for one in rules) and not self._is_forgotten(claim)
            ]
            if len(accepted) > 1:
                text = f"{tp}: the coordinator would accept commits of {accepted[0]} and of {accepted[1]}"
                raise Violation("one owner", text)
            for claim in accepted:
                if not any(one.is_owner(claim) for one in rules):
                    text = f"the coordinator would accept commits of {claim}, but {tp} is not its member's"
                    raise Violation("one owner", text)

    def _is_forgotten(self, claim: ClaimLog) -> bool:
        """Return whether the group has forgotten an accepted claim, until its member has joined again."""
        if claim.is_forgotten:
            claim.is_forgotten = self.other_owner(claim) is not None
        if claim.is_forgotten:
            self.at(claim.tp).had_two_owners = True
        return claim.is_forgotten

    def check_orderly_end(self, claim: ClaimLog) -> None:
        """Check that all marks of a claim are committed after an orderly end without failed commits."""
        oracle = self.at(claim.tp)
        if max(oracle.committed, 0) < claim.mark and not oracle.had_two_owners:
            text = (
                f"{claim} has marked up to {claim.mark} and ended in order, committed is {oracle.committed}"
            )
            raise Violation("an orderly end commits all marks", text)
