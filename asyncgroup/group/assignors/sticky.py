"""The sticky assignor: balanced, and members keep their partitions as far as the balance allows (KIP-54)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy

from asyncgroup.group.assignors.protocol import Assignment, MemberSubscription
from asyncgroup.group.assignors.racks import PartitionRacks, RackMatches
from asyncgroup.group.assignors.spread import Pool, spread
from asyncgroup.group.assignors.sticky_user_data import MemberData, decode_member_data, encode_member_data
from asyncgroup.model import TopicPartition

__all__ = ["StickyAssignor", "assign_sticky", "find_owners"]


class StickyAssignor:
    """Assigns partitions evenly with the fewest moves, compatible with Java's `StickyAssignor` in name and user data.

    An assignment is as balanced as the subscriptions allow (none has a lower sum of squared loads), and of those moves
    the fewest partitions away from members that own them. It is never less balanced than Java's, and never has more
    moves for the same loads; where Java's is less balanced, a better balance may need more moves.

    Each member sends the leader its owned partitions and their generation. If several members claim a partition, the
    one with the newest generation owns it; if two claim it in the same generation, neither does. A member without
    valid user data owns none. The protocol is eager: all claims end at a rebalance, and retained partitions get new
    claims.

    The object keeps the member's last assignment. If it is passed to several groups, each uses a copy with its own
    state.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._last: MemberData | None = None  # the last assignment

    def __repr__(self) -> str:
        last = f"owned {len(self._last.partitions)}" if self._last is not None else "no assignment yet"
        return f"<{type(self).__name__}: {last}>"

    def for_group(self) -> StickyAssignor:
        """Return a copy without state."""
        fresh = copy(self)
        fresh._last = None
        return fresh

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002  the data covers all topics
        """Return the member's last assignment for the leader; None before the first."""
        return encode_member_data(self._last) if self._last is not None else None

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Keep the assignment for the next join."""
        self._last = MemberData(tuple(assignment.partitions), generation_id)

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Return sorted partitions by member id."""
        return self.assign_by_rack(members, counts, {})

    def assign_by_rack(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int], racks: PartitionRacks
    ) -> dict[str, list[TopicPartition]]:
        """Return sorted partitions by member id; see `RackAware`."""
        ordered = sorted(members, key=lambda member: member.order)
        member_data = [decode_member_data(member.user_data) for member in ordered]
        return assign_sticky(ordered, counts, member_data, racks)


def assign_sticky(
    members: Sequence[MemberSubscription],
    counts: Mapping[str, int],
    member_data: Sequence[MemberData],
    racks: PartitionRacks | None = None,
) -> dict[str, list[TopicPartition]]:
    """Assign partitions to members, sorted by `MemberSubscription.order`; `member_data` is in the same order.

    With `racks`, of the balanced assignments those with the most partitions in the racks of their members come first, and
    of those the one with the fewest moves.
    """
    owners = find_owners(members, counts, member_data)
    everything = [
        TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])
    ]
    matches = RackMatches(members, everything, racks or {})
    subscribers: dict[str, list[int]] = {topic: [] for topic in sorted(counts)}
    for index, member in enumerate(members):
        for topic in set(member.topics).intersection(counts):
            subscribers[topic].append(index)
    pools: dict[tuple[tuple[int, ...], frozenset[int]], _PoolPartitions] = {}
    for tp in everything:
        if those := tuple(subscribers[tp.topic]):
            key = those, matches.mismatched(tp)
            if key not in pools:
                pools[key] = _PoolPartitions(Pool(*key, mismatch_cost=len(members) + 1))
            pools[key].add(tp, owners)
    shares = list(pools.values())
    for share in shares:
        share.count()
    spread([share.pool for share in shares], len(members))
    assignment: list[list[TopicPartition]] = [[] for _ in members]
    for share in shares:
        share.hand_out(assignment)
    return {member.member_id: sorted(got) for member, got in zip(members, assignment, strict=True)}


def find_owners(
    members: Sequence[MemberSubscription], counts: Mapping[str, int], member_data: Sequence[MemberData]
) -> dict[TopicPartition, int]:
    """Return the current owner of each partition, as its index in `members`.

    Of several claims the newest generation counts; a partition that two members claim in that generation has no owner
    (`AbstractStickyAssignor`). Claims to partitions that do not exist, or to topics that the member is not subscribed
    to, are ignored.
    """
    newest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, int] = {}
    for index, (member, data) in enumerate(zip(members, member_data, strict=True)):
        topics = set(member.topics)
        for tp in set(data.partitions):
            if tp.topic not in topics or not 0 <= tp.partition < counts.get(tp.topic, 0):
                continue
            if tp not in newest or data.generation > newest[tp]:
                newest[tp], owners[tp] = data.generation, index
            elif data.generation == newest[tp]:
                owners.pop(tp, None)
    return owners


class _PoolPartitions:
    """The partitions of a pool: `spread` computes how many of them each member gets, this class which ones."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._kept: dict[int, list[TopicPartition]] = {}
        self._free: list[TopicPartition] = []

    def add(self, tp: TopicPartition, owners: Mapping[TopicPartition, int]) -> None:
        """Add a partition."""
        owner = owners.get(tp)
        (self._free if owner is None else self._kept.setdefault(owner, [])).append(tp)

    def count(self) -> None:
        """Set the counts of the pool."""
        self.pool.owned_before = {member: len(kept) for member, kept in sorted(self._kept.items())}
        self.pool.free = len(self._free)

    def hand_out(self, assignment: Sequence[list[TopicPartition]]) -> None:
        """Let each member keep owned partitions up to its number, and assign the rest in turn, mixing topics.

        A member gives up the partitions with the highest numbers, so that it keeps some of each topic.
        """
        wanting: dict[int, int] = {}
        left = list(self._free)
        for member, number in self.pool.assigned.items():
            had = sorted(self._kept.get(member, ()), key=lambda tp: (tp.partition, tp.topic))
            assignment[member] += had[:number]
            left += had[number:]
            wanting[member] = number - len(had[:number])
        _hand_out(sorted(left), wanting, assignment)


def _hand_out(
    partitions: Iterable[TopicPartition], wanting: dict[int, int], assignment: Sequence[list[TopicPartition]]
) -> None:
    """Assign the partitions one by one, in turn to the members that still need some."""
    queue = deque(sorted(member for member, number in wanting.items() if number))
    for tp in partitions:
        member = queue.popleft()
        assignment[member].append(tp)
        wanting[member] -= 1
        if wanting[member]:
            queue.append(member)
