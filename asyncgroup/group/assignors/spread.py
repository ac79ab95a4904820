"""How many partitions each member gets: as even as can be, and of all such ways one that moves the fewest.

Members may want different topics, so this is a flow: partitions to members. Its two costs are the sum of the squares
of the members' loads, which is least when the loads are as even as the subscriptions allow, and after it the number of
partitions taken from members that had them. A flow costs the least when its residual graph has no cycle of negative
cost; `_balance_loads` removes those that matter to the first cost, `_bring_back` those of the second (Ahuja, Magnanti,
Orlin: Network Flows, chapter 9). Java's general algorithm stops where no single partition can be moved to a less loaded
member; here whole chains of moves are found.

Partitions of topics with the same subscribers can stand in for each other. They make a pool, and only their number
counts: a group whose members all want the same has one pool, however many topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

__all__ = ["Pool", "spread"]

_SWAP_LOADS: Final = -1
"""Stands for a pool in a `_Step` by which a member of load n and one of load n + 1 change places: no cost at all."""


class Pool:
    """Partitions that the same members can get.

    `subscribers`: those members, by number, in ascending order. `owned_before`: how many of the partitions each of them owned before;
    `assigned`: how many it owns now. `free`: how many nobody owns.
    """

    __slots__ = ("assigned", "free", "owned_before", "subscribers")

    def __init__(self, subscribers: Sequence[int]) -> None:
        self.subscribers = subscribers
        self.owned_before: dict[int, int] = {}
        self.assigned: dict[int, int] = {}
        self.free = 0

    def move(self, giver: int, taker: int) -> None:
        """One partition goes from a member to another."""
        self.assigned[giver] -= 1
        self.assigned[taker] = self.assigned.get(taker, 0) + 1

    def cost_of_giving(self, member: int) -> int:
        """1 if the member has no partition here but such as it had before."""
        return int(self.assigned[member] <= self.owned_before.get(member, 0))

    def gain_of_taking(self, member: int) -> int:
        """1 if the member would get back one that it had before."""
        return int(self.assigned.get(member, 0) < self.owned_before.get(member, 0))

    @property
    def moved(self) -> int:
        """How many partitions were taken from members that had them."""
        return sum(
            max(0, owned_before - self.assigned.get(member, 0))
            for member, owned_before in self.owned_before.items()
        )


class _Step(NamedTuple):
    """How a member was reached: through which pool (or _LEVEL) and from which member."""

    pool: int
    giver: int


def spread(pools: Sequence[Pool], members: int) -> None:
    """Fill every pool's `assigned` so that all partitions are given, evenly, moving as few as possible for it.

    Deterministic: of members that could get the same, the one with the lowest number goes first.
    """
    loads = [0] * members
    for pool in pools:
        pool.assigned = dict(pool.owned_before)
        for member, count in pool.assigned.items():
            loads[member] += count
    _assign_free(pools, loads)
    pools_of: list[list[int]] = [[] for _ in range(members)]
    for index, pool in enumerate(pools):
        for member in pool.subscribers:
            pools_of[member].append(index)
    _balance_loads(pools, pools_of, loads)
    while any(pool.moved for pool in pools) and (cycle := _find_cycle(pools, loads)):
        _apply_cycle(pools, loads, cycle)


def _assign_free(pools: Sequence[Pool], loads: list[int]) -> None:
    """Each free partition to the least loaded member; partitions with the fewest takers first, as in Java."""
    for pool in sorted(pools, key=lambda pool: len(pool.subscribers)):
        heap = [(loads[member], member) for member in pool.subscribers]
        heapify(heap)
        for _ in range(pool.free):
            load, member = heap[0]
            heapreplace(heap, (load + 1, member))
            loads[member] += 1
            pool.assigned[member] = pool.assigned.get(member, 0) + 1


def _balance_loads(pools: Sequence[Pool], pools_of: Sequence[Sequence[int]], loads: list[int]) -> None:
    """Move partitions, along chains of members if need be, from the heaviest members to those lighter by two or more.

    Who cannot be relieved is settled, with all whom its partitions could reach: none of them is lighter by two.
    """
    balanced: set[int] = set()
    heap = [(-load, member) for member, load in enumerate(loads)]
    heapify(heap)
    while heap:
        load, heavy = heappop(heap)
        if -load != loads[heavy] or heavy in balanced:
            continue
        steps: dict[int, _Step] = {}
        light = _reach_lighter(pools, pools_of, loads, heavy, balanced, steps)
        if light is None:
            balanced.update(steps, (heavy,))
            continue
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
    """Search in breadth for a member whose load is lower by two or more; `steps` says how each one was reached."""
    queue, seen = [heavy], set[int]()
    for giver in queue:  # grows meanwhile
        for index in pools_of[giver]:
            pool = pools[index]
            if index in seen or not pool.assigned.get(giver):
                continue
            seen.add(index)
            reached = [m for m in pool.subscribers if m not in steps and m != heavy and m not in balanced]
            steps.update(dict.fromkeys(reached, _Step(index, giver)))
            queue += reached
            lightest = min(reached, key=loads.__getitem__, default=heavy)
            if loads[lightest] <= loads[heavy] - 2:
                return lightest
    return None


def _find_cycle(pools: Sequence[Pool], loads: Sequence[int]) -> dict[int, _Step] | None:
    """A cycle of moves that leaves the loads as they are, but for who has which, and brings more back than it takes.

    Bellman and Ford's search: distances fall from 0 on; when they come to rest there is no such cycle.
    """
    distance = [0] * len(loads)
    steps: dict[int, _Step] = {}
    levels: dict[int, list[int]] = {}
    for member, load in enumerate(loads):
        levels.setdefault(load, []).append(member)
    done: dict[int, int] = {}
    while True:
        changed: list[int] = []
        for index, pool in enumerate(pools):
            giver, cost = _cheapest_giver(pool, distance)
            if cost < done.get(index, 1):  # at 1 there is nothing to be won: no distance is above 0
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
    """Members whose distance falls if they take a partition that costs so much, and what they gain by it."""
    wanting = (
        pool.subscribers if cost < 0 else pool.owned_before
    )  # without a gain of their own nobody gets below 0
    gains = {member: pool.gain_of_taking(member) for member in wanting}
    return {member: gain for member, gain in gains.items() if cost - gain < distance[member]}


def _relax(
    distance: list[int], steps: dict[int, _Step], step: _Step, subscribers: dict[int, int], cost: int
) -> Iterable[int]:
    """Lower the distances of these members; returns them."""
    for member, gain in subscribers.items():
        distance[member] = cost - gain
        steps[member] = step
    return subscribers


def _cycle_through(steps: dict[int, _Step], member: int) -> dict[int, _Step] | None:
    """The cycle, if any, to which the way back from a member leads."""
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
    """Carry the moves of a cycle out."""
    for taker, (index, giver) in cycle.items():
        if index == _SWAP_LOADS:
            loads[giver] += 1
            loads[taker] -= 1
        else:
            pools[index].move(giver, taker)
