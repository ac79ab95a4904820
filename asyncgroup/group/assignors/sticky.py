"""The sticky assignor: even, and whoever has a partition keeps it where that does not make it uneven (KIP-54)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy

from asyncgroup.group.assignors.protocol import Assignment, MemberSubscription
from asyncgroup.group.assignors.spread import Pool, spread
from asyncgroup.group.assignors.sticky_user_data import MemberData, decode_member_data, encode_member_data
from asyncgroup.model import TopicPartition

__all__ = ["StickyAssignor", "assign_sticky", "find_owners"]


class StickyAssignor:
    """Evenly, with as few moves as possible; Java's `StickyAssignor` by its name and user data, so groups may be mixed.

    A plan is as even as the subscriptions allow (no other has a lower sum of squared loads), and among such plans it
    moves the fewest partitions away from members that have them. That is never less even than Java's plan, and never
    more moves for the same loads; where Java's is less even, evening it out may take more moves than Java makes.

    Each member tells the leader what it had and in which generation. Of several that claim a partition the one with
    the newest generation has it; if two claim it in the same generation neither has. A member without valid user data
    has nothing. The protocol is eager: all claims end at a rebalance, and those that stay begin anew.

    The state, a member's last assignment, is the object's. Given to several groups, each takes one of its own.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._last: MemberData | None = None

    def __repr__(self) -> str:
        last = f"had {len(self._last.partitions)}" if self._last is not None else "had nothing yet"
        return f"<{type(self).__name__}: {last}>"

    def for_group(self) -> StickyAssignor:
        """One more assignor of this kind, without a memory."""
        fresh = copy(self)
        fresh._last = None
        return fresh

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002  all claims go
        """What this member had last, for the leader; None before its first assignment."""
        return encode_member_data(self._last) if self._last is not None else None

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Remember it for the next join."""
        self._last = MemberData(assignment.partitions, generation_id)

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        """Sorted partitions by member id."""
        ordered = sorted(members, key=lambda member: member.order)
        return assign_sticky(ordered, counts, [decode_member_data(member.user_data) for member in ordered])


def assign_sticky(
    members: Sequence[MemberSubscription], counts: Mapping[str, int], member_data: Sequence[MemberData]
) -> dict[str, list[TopicPartition]]:
    """The plan for members in their order, of which each makes the claim at its place."""
    owners = find_owners(members, counts, member_data)
    subscribers: dict[str, list[int]] = {topic: [] for topic in sorted(counts)}
    for index, member in enumerate(members):
        for topic in set(member.topics).intersection(counts):
            subscribers[topic].append(index)
    pools: dict[tuple[int, ...], _PoolPartitions] = {}
    for topic, those in subscribers.items():
        if those:
            pools.setdefault(tuple(those), _PoolPartitions(those)).add(topic, counts[topic], owners)
    shares = list(pools.values())
    for share in shares:
        share.count()
    spread([share.pool for share in shares], len(members))
    plan: list[list[TopicPartition]] = [[] for _ in members]
    for share in shares:
        share.hand_out(plan)
    return {member.member_id: sorted(got) for member, got in zip(members, plan, strict=True)}


def find_owners(
    members: Sequence[MemberSubscription], counts: Mapping[str, int], member_data: Sequence[MemberData]
) -> dict[TopicPartition, int]:
    """Who has which partition, by the place in `members`.

    The newest generation decides, and nobody has what two claim in that generation (`AbstractStickyAssignor`). Claims
    to partitions that don't exist, and to topics that the member does not want any more, don't count.
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
    """The partitions of a pool by name: `spread` decides how many of them each member gets, this says which."""

    def __init__(self, subscribers: Sequence[int]) -> None:
        self.pool = Pool(subscribers)
        self._kept: dict[int, list[TopicPartition]] = {}
        self._free: list[TopicPartition] = []

    def add(self, topic: str, partitions: int, owners: Mapping[TopicPartition, int]) -> None:
        """Take the partitions of a topic in."""
        for number in range(partitions):
            tp = TopicPartition(topic, number)
            owner = owners.get(tp)
            (self._free if owner is None else self._kept.setdefault(owner, [])).append(tp)

    def count(self) -> None:
        """Tell the pool."""
        self.pool.owned_before = {member: len(kept) for member, kept in sorted(self._kept.items())}
        self.pool.free = len(self._free)

    def hand_out(self, plan: Sequence[list[TopicPartition]]) -> None:
        """Every member keeps what it had up to its number; the rest is dealt out in turn, so that topics spread.

        What a member gives away are its highest partitions: of each topic some stay.
        """
        wanting: dict[int, int] = {}
        left = list(self._free)
        for member, number in self.pool.assigned.items():
            had = sorted(self._kept.get(member, ()), key=lambda tp: (tp.partition, tp.topic))
            plan[member] += had[:number]
            left += had[number:]
            wanting[member] = number - len(had[:number])
        _hand_out(sorted(left), wanting, plan)


def _hand_out(
    partitions: Iterable[TopicPartition], wanting: dict[int, int], plan: Sequence[list[TopicPartition]]
) -> None:
    """One partition after another to the next member that wants more."""
    queue = deque(sorted(member for member, number in wanting.items() if number))
    for tp in partitions:
        member = queue.popleft()
        plan[member].append(tp)
        wanting[member] -= 1
        if wanting[member]:
            queue.append(member)
