"""The group at work: three members, a fourth that joins, one that leaves, until every record is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from asyncgroup.cli.demo.members import Member
from asyncgroup.cli.demo.place import PARTITIONS, Place
from asyncgroup.cli.demo.progress import DemoFailed, Gate, Progress
from asyncgroup.group import Handler

__all__ = ["GroupRun", "Rebalance"]

MEMBERS: Final = 3
LEAVES: Final = 1
"""Index of the member that leaves."""

JOIN_AT, JOIN_BEFORE = 0.25, 0.5
LEAVE_AT, LEAVE_BEFORE = 0.55, 0.85
"""Shares of the records: a rebalance is caused at the first, and must be over before more than the second are taken."""


@dataclass(frozen=True)
class Rebalance:
    """A rebalance that took place while records were flowing."""

    reason: str
    generation_before: int
    generation_after: int
    records_handled: int


class GroupRun:
    """Reads `total` records of a place; `members` and `events` grow while it does."""

    def __init__(self, place: Place, total: int, make_handler: Callable[[], Handler]) -> None:
        self.members: list[Member] = []
        self.events: list[str] = []
        self.rebalances: list[Rebalance] = []
        self.progress = Progress(total)
        self._place, self._make_handler = place, make_handler
        self._gate = Gate(self.progress)

    async def run(self) -> None:
        """Returns when every record is committed. Raises DemoFailed, or what a member did."""
        gate = self._gate
        gate.open_to(JOIN_BEFORE)
        for _ in range(MEMBERS):
            self._join()
        await self._until_settled(MEMBERS, 0, "the first members to join")
        await self._until_handled(JOIN_AT)
        newcomer = self._join()
        await self._rebalanced(f"{newcomer.name} joined", MEMBERS + 1)
        gate.open_to(LEAVE_BEFORE)
        await self._until_handled(LEAVE_AT)
        leaver = self.members[LEAVES]
        leaver.leave()
        await self._rebalanced(f"{leaver.name} left", MEMBERS)
        gate.open_to(1.0)
        await self._until_handled(1.0)

    async def aclose(self) -> None:
        """Let every member leave; safe to call twice."""
        for member in self.members:
            member.leave()
        await asyncio.gather(*(member.gone() for member in self.members))

    def _join(self) -> Member:
        name = f"member {len(self.members) + 1}"
        member = Member(name, self._place, self.progress, self._make_handler(), self._gate)
        self.members.append(member)
        member.start()
        return member

    @property
    def _generation(self) -> int:
        return max(
            (m.live_session.generation_id for m in self.members if m.live_session is not None), default=0
        )

    async def _rebalanced(self, reason: str, members: int) -> None:
        """Wait until the group has settled anew, and note that it did so under load."""
        before = self._generation
        await self._until_settled(members, before, f"the rebalance after {reason}")
        handled, total = self.progress.handled, self.progress.total
        if handled >= total:
            raise DemoFailed(f"all records were handled before the group had rebalanced: {reason}")
        done = Rebalance(reason, before, self._generation, handled)
        self.rebalances.append(done)
        self.events.append(
            f"{reason}: generation {before} to {done.generation_after}, at {handled:,} records ({handled / total:.0%})"
        )

    async def _until_settled(self, members: int, after: int, what: str) -> None:
        """So many members in one generation above `after`, all partitions among them."""

        def settled() -> bool:
            sessions = [m.live_session for m in self.members if m.live_session is not None]
            generations = {session.generation_id for session in sessions}
            claims = sum(len(session.claims) for session in sessions)
            return (
                len(sessions) == members
                and len(generations) == 1
                and generations.pop() > after
                and claims == PARTITIONS
            )

        await self._until(settled, what)

    async def _until_handled(self, share: float) -> None:
        wanted = int(share * self.progress.total)
        await self._until(lambda: self.progress.handled >= wanted, f"{wanted:,} records")

    async def _until(self, is_so: Callable[[], bool], what: str) -> None:
        def failed() -> bool:
            return any(member.failure is not None for member in self.members)

        await self.progress.until(lambda: is_so() or failed(), what)
        for member in self.members:
            if member.failure is not None:
                raise member.failure
