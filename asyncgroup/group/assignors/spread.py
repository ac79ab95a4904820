"""Compute how many partitions each member gets: as balanced as possible, then in its rack, then with the fewest moves.

Members may subscribe to different topics, so this is a minimum cost flow of partitions to members with two costs. The
first is the sum of the squares of the members' loads, which is least when the loads are as even as the subscriptions
allow; the second is the number of partitions taken from members that owned them, and before that, if the group balances
by rack, the number of partitions assigned to members in whose rack there is no replica. A flow has minimum cost when its
residual graph has no cycle of negative cost (Ahuja, Magnanti, Orlin: Network Flows, chapter 9). `_balance_loads`
removes those of the first cost, `_find_cycle` and `_apply_cycle` those of the second. Java's general algorithm stops
when no single partition can move to a less loaded member; this one also finds chains of moves.

Partitions of topics with the same subscribers are interchangeable. They form a pool, of which only the size matters: a
group with equal subscriptions has one pool for all topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

__all__ = ["Pool", "spread"]

_SWAP_LOADS: Final = -1
"""Pool number of a `_Step` without a cost: a member of load n and one of load n + 1 swap their loads."""


class Pool:
    """Partitions of topics that have the same subscribers."""

    __slots__ = ("assigned", "free", "mismatch_cost", "mismatched", "owned_before", "subscribers")

    def __init__(
        self, subscribers: Sequence[int], mismatched: frozenset[int] = frozenset(), mismatch_cost: int = 0
    ) -> None:
        self.subscribers = subscribers
        """The numbers of these members, ascending."""
        self.mismatched = mismatched
        """The members whose rack has no replica of these partitions."""
        self.mismatch_cost = mismatch_cost
        """The cost of assigning one to such a member, in moves: above the number of members, it outweighs any cycle's."""
        self.owned_before: dict[int, int] = {}
        """By member: how many of the partitions it owned before."""
        self.assigned: dict[int, int] = {}
        """By member: how many of them it gets."""
        self.free = 0
        """How many of them no member owned before."""

    def move(self, giver: int, taker: int) -> None:
        """Move one partition from a member to another."""
        self.assigned[giver] -= 1
        self.assigned[taker] = self.assigned.get(taker, 0) + 1

    def cost_of_giving(self, member: int) -> int:
        """Return 1 if the member would give up one that it owned before, else 0; less if they are not in its rack."""
        cost = int(self.assigned[member] <= self.owned_before.get(member, 0))
        return cost - self.mismatch_cost if member in self.mismatched else cost

    def gain_of_taking(self, member: int) -> int:
        """Return 1 if the member would get back one that it owned before, else 0; less if they are not in its rack."""
        gain = int(self.assigned.get(member, 0) < self.owned_before.get(member, 0))
        return gain - self.mismatch_cost if member in self.mismatched else gain

    @property
    def size(self) -> int:
        """The number of partitions."""
        return self.free + sum(self.owned_before.values())

    @property
    def has_cost(self) -> bool:
        """Whether partitions were taken from members that owned them before, or have no replica in their member's rack."""
        return any(
            owned_before > self.assigned.get(member, 0) for member, owned_before in self.owned_before.items()
        ) or any(self.assigned.get(member) for member in self.mismatched)


class _Step(NamedTuple):
    """How a search reached a member: through which pool (or _SWAP_LOADS) and from which member."""

    pool: int
    giver: int


def spread(pools: Sequence[Pool], members: int) -> None:
    """Fill in every pool's `assigned`: all partitions, balanced, and with the fewest moves for that.

    Deterministic: among equal members the one with the lowest number is chosen.
    """
    loads = [0] * members
    for pool in pools:
        # those with no replica in their member's rack are assigned again: others may have one
        pool.assigned = {
            member: 0 if member in pool.mismatched else count for member, count in pool.owned_before.items()
        }
        for member, count in pool.assigned.items():
            loads[member] += count
    _assign_free(pools, loads)
    pools_of: list[list[int]] = [[] for _ in range(members)]
    for index, pool in enumerate(pools):
        for member in pool.subscribers:
            pools_of[member].append(index)
    _balance_loads(pools, pools_of, loads)
    while any(pool.has_cost for pool in pools) and (cycle := _find_cycle(pools, loads)):
        _apply_cycle(pools, loads, cycle)


def _assign_free(pools: Sequence[Pool], loads: list[int]) -> None:
    """Assign each partition that is left to the least loaded member; pools with the fewest subscribers first, as in Java.

    Members whose rack has no replica of it come after those that have not got their share of all partitions yet.
    """
    share = -(-sum(pool.size for pool in pools) // max(1, len(loads)))
    for pool in sorted(pools, key=lambda pool: len(pool.subscribers)):

        def rank(member: int, mismatched: frozenset[int] = pool.mismatched) -> tuple[bool, bool, int, int]:
            return loads[member] >= share, member in mismatched, loads[member], member

        heap = [rank(member) for member in pool.subscribers]
        heapify(heap)
        for _ in range(pool.size - sum(pool.assigned.values())):
            member = heap[0][-1]
            loads[member] += 1
            heapreplace(heap, rank(member))
            pool.assigned[member] = pool.assigned.get(member, 0) + 1


def _balance_loads(pools: Sequence[Pool], pools_of: Sequence[Sequence[int]], loads: list[int]) -> None:
    """Move partitions, if necessary along chains of members, from the most loaded to members with two or more less.

    If there is no such chain, the member is balanced, and so are all members that its partitions can reach: none of
    them has a load lower by two.
    """
    balanced: set[int] = set()
    heap = [(-load, member) for member, load in enumerate(loads)]
    heapify(heap)
    while heap:
        load, heavy = heappop(heap)
        # entries with a former load are stale: each change of a load pushed a new one
        if -load != loads[heavy] or heavy in balanced:
            continue
        steps: dict[int, _Step] = {}
        light = _reach_lighter(pools, pools_of, loads, heavy, balanced, steps)
        if light is None:
            balanced.update(steps, (heavy,))
            continue
        # a member between the ends gives one and takes one
        loads[heavy] -= 1
        loads[light] += 1
        heappush(heap, (-loads[heavy], heavy))
        heappush(heap, (-loads[light], light))
        taker = light
        while taker != heavy:
            step = steps[taker]
            pools[step.pool].move(step.giver, taker)
            taker = step.giver


def _reach_lighter(
    pools: Sequence[Pool],
    pools_of: Sequence[Sequence[int]],
    loads: Sequence[int],
    heavy: int,
    balanced: set[int],
    steps: dict[int, _Step],
) -> int | None:
    """Search breadth-first for a member with a load lower by two or more; record in `steps` how each was reached."""
    queue, seen = [heavy], set[int]()
    for giver in queue:  # grows in the loop
        for index in pools_of[giver]:
            pool = pools[index]
            if index in seen or not pool.assigned.get(giver):
                continue
            # a pool reaches the same members from each of its givers
            seen.add(index)
            reached = [m for m in pool.subscribers if m not in steps and m != heavy and m not in balanced]
            steps.update(dict.fromkeys(reached, _Step(index, giver)))
            queue += reached
            lightest = min(reached, key=loads.__getitem__, default=heavy)
            if loads[lightest] <= loads[heavy] - 2:
                return lightest
    return None


def _find_cycle(pools: Sequence[Pool], loads: Sequence[int]) -> dict[int, _Step] | None:
    """Return a cycle of moves that returns more partitions to previous owners than it takes, or None.

    It leaves the loads unchanged, apart from which member has which. A Bellman-Ford search: distances start at 0 and
    fall; if they stop falling, there is no such cycle.
    """
    distance = [0] * len(loads)
    steps: dict[int, _Step] = {}
    levels: dict[int, list[int]] = {}
    for member, load in enumerate(loads):
        levels.setdefault(load, []).append(member)
    done: dict[int, int] = {}  # by pool: the cost at which it was last relaxed; only a lower one is worth it
    while True:
        changed: list[int] = []
        for index, pool in enumerate(pools):
            giver, cost = _cheapest_giver(pool, distance)
            if cost < done.get(index, 1):  # at 1 nothing can be gained, as no distance is above 0
                done[index] = cost
                changed += _relax(
                    distance, steps, _Step(index, giver), _subscribers_within(pool, distance, cost), cost
                )
        for load, lighter in levels.items():
            giver = min(lighter, key=distance.__getitem__)
            heavier = [m for m in levels.get(load + 1, ()) if distance[giver] < distance[m]]
            changed += _relax(
                distance, steps, _Step(_SWAP_LOADS, giver), dict.fromkeys(heavier, 0), distance[giver]
            )
        if not changed:
            return None
        for member in changed:
            cycle = _cycle_through(steps, member)
            if cycle is not None:
                return cycle


def _cheapest_giver(pool: Pool, distance: Sequence[int]) -> tuple[int, int]:
    costs = ((distance[m] + pool.cost_of_giving(m), m) for m, assigned in pool.assigned.items() if assigned)
    cost, giver = min(costs, default=(1, -1))
    return giver, cost


def _subscribers_within(pool: Pool, distance: Sequence[int], cost: int) -> dict[int, int]:
    """Return the gain of each member whose distance would fall by taking a partition at this cost."""
    wanting = pool.subscribers if cost < 0 else pool.owned_before  # without a gain no member gets below 0
    gains = {member: pool.gain_of_taking(member) for member in wanting}
    return {member: gain for member, gain in gains.items() if cost - gain < distance[member]}


def _relax(
    distance: list[int], steps: dict[int, _Step], step: _Step, subscribers: dict[int, int], cost: int
) -> Iterable[int]:
    """Lower the distances of these members; return them."""
    for member, gain in subscribers.items():
        distance[member] = cost - gain
        steps[member] = step
    return subscribers


def _cycle_through(steps: dict[int, _Step], member: int) -> dict[int, _Step] | None:
    """Return the cycle that the steps back from a member lead to, or None."""
    seen = {member}
    while member in steps:
        member = steps[member].giver
        if member in seen:
            break
        seen.add(member)
    else:
        return None
    cycle = {}
    while member not in cycle:
        cycle[member] = steps[member]
        member = steps[member].giver
    return cycle


def _apply_cycle(pools: Sequence[Pool], loads: list[int], cycle: dict[int, _Step]) -> None:
    """Apply the moves of a cycle."""
    for taker, (index, giver) in cycle.items():
        if index == _SWAP_LOADS:
            loads[giver] += 1
            loads[taker] -= 1
        else:
            pools[index].move(giver, taker)
