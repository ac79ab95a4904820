"""Run the demonstration's group: three members, a fourth that joins, one that leaves, until every record is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from asyncgroup.counting import counted
from asyncgroup.demo.members import DemoMember
from asyncgroup.demo.progress import DemoFailed, Gate, GroupProgress
from asyncgroup.demo.target import PARTITIONS, DemoTarget
from asyncgroup.group import Handler
from asyncgroup.lifecycle import wait_shielded

__all__ = ["GroupRun", "ObservedRebalance"]

MEMBERS: Final = 3
"""Members at the start."""
LEAVES: Final = 1
"""The index of the member that leaves."""

JOIN_AT, JOIN_BEFORE = 0.25, 0.5
LEAVE_AT, LEAVE_BEFORE = 0.55, 0.85
"""Shares of the records: a rebalance is started when the first share is committed, and must end before more than the
second share is delivered."""


@dataclass(frozen=True)
class ObservedRebalance:
    """A rebalance that took place while records were consumed; part of the JSON result."""

    reason: str
    generation_before: int
    generation_after: int
    records_handled: int
    """Records that were committed when it had ended."""


class GroupRun:
    """Consumes the `total` records of a target's topic; `members` and `events` grow during the run."""

    def __init__(self, target: DemoTarget, total: int, make_handler: Callable[[], Handler]) -> None:
        self.members: list[DemoMember] = []
        self.events: list[str] = []
        self.rebalances: list[ObservedRebalance] = []
        self.progress = GroupProgress(total)
        self._target = target
        self._make_handler = make_handler
        self._gate = Gate(self.progress)

    async def run(self) -> None:
        """Run until every record is committed. Raises DemoFailed, or the error of a member."""
        gate = self._gate
        gate.open_to(JOIN_BEFORE)
        for _ in range(MEMBERS):
            self._join()
        await self._wait_for_generation(MEMBERS, 0, "the first members to join")
        await self._wait_for_commits(JOIN_AT)
        newcomer = self._join()
        await self._rebalanced(f"{newcomer.name} joined", MEMBERS + 1)
        gate.open_to(LEAVE_BEFORE)
        await self._wait_for_commits(LEAVE_AT)
        leaver = self.members[LEAVES]
        leaver.leave()
        await self._rebalanced(f"{leaver.name} left", MEMBERS)
        gate.open_to(1.0)
        await self._wait_for_commits(1.0)

    async def aclose(self) -> None:
        """Let every member leave, and wait for them even if cancelled; safe to call twice."""
        for member in self.members:
            member.leave()
        await wait_shielded(asyncio.gather(*(member.gone() for member in self.members)))

    def _join(self) -> DemoMember:
        name = f"member {len(self.members) + 1}"
        member = DemoMember(name, self._target, self.progress, self._make_handler(), self._gate)
        self.members.append(member)
        member.start()
        return member

    @property
    def _generation(self) -> int:
        return max(
            (m.live_session.generation_id for m in self.members if m.live_session is not None), default=0
        )

    async def _rebalanced(self, reason: str, members: int) -> None:
        """Wait until the group has rebalanced, and record the rebalance. Raises DemoFailed if no records were left."""
        before = self._generation
        await self._wait_for_generation(members, before, f"the rebalance after {reason}")
        committed_records, total = self.progress.committed_records, self.progress.total
        if committed_records >= total:
            raise DemoFailed(f"all records were committed before the group had rebalanced: {reason}")
        done = ObservedRebalance(reason, before, self._generation, committed_records)
        self.rebalances.append(done)
        self.events.append(
            f"{reason}: generation {before} to {done.generation_after}, "
            f"at {counted(committed_records, 'record')} ({committed_records / total:.0%})"
        )

    async def _wait_for_generation(self, members: int, after: int, what: str) -> None:
        """Wait until the group has `members` members in one generation above `after`, with all partitions assigned."""

        def in_one_generation() -> bool:
            sessions = [m.live_session for m in self.members if m.live_session is not None]
            generations = {session.generation_id for session in sessions}
            claims = sum(len(session.claims) for session in sessions)
            return (
                len(sessions) == members
                and len(generations) == 1
                and generations.pop() > after
                and claims == PARTITIONS
            )

        await self._wait_until(in_one_generation, what)

    async def _wait_for_commits(self, share: float) -> None:
        wanted = int(share * self.progress.total)
        await self._wait_until(lambda: self.progress.committed_records >= wanted, counted(wanted, "record"))

    async def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def failed() -> bool:
            return any(member.failure is not None for member in self.members)

        await self.progress.wait_until(lambda: condition() or failed(), what)
        for member in self.members:
            if member.failure is not None:
                raise member.failure
