"""A group protocol for tests: its assignments are proposed by the test, and revoke no more than they have to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.errors import SessionEnd
from asyncgroup.group.membership import Assignable, ClaimChanges, JoinedGroup
from asyncgroup.offsets import MemberIdentity

__all__ = ["ScriptedHeartbeats", "ScriptedMembership"]


class ScriptedHeartbeats:
    """No heartbeats: the group has no members for its coordinator, which then accepts commits of anybody."""

    def __init__(self) -> None:
        self.last_response_at = self.last_stable_sent_at = asyncio.get_running_loop().time()
        self.believes_refusals = False
        self.session_timeout = 10.0
        self.heartbeat_interval = 3.0

    def next_heartbeat_after(self, moment: float) -> float | None:
        return None

    async def confirm_refusal(self, lookup: int | None, sent_at: float) -> bool:
        return self.believes_refusals

    async def wait_joined(self) -> bool:
        return False


class ScriptedMembership:
    """Assigns the partitions in `first`, then what is passed to `propose`, while the session goes on."""

    lanes = ("join-scripted",)

    def __init__(self, topic: str, first: Iterable[int]) -> None:
        self.topic = topic
        self.first = list(first)
        self.identity = MemberIdentity()
        self.heartbeats = ScriptedHeartbeats()
        self.fatal_codes: set[int] = set()
        self.ends: list[SessionEnd | None] = []
        self.owned_at_acknowledgement: list[list[int]] = []
        self._proposals: asyncio.Queue[tuple[JoinedGroup, asyncio.Future[ClaimChanges]]] = asyncio.Queue()

    def _joined(self, partitions: Iterable[int]) -> JoinedGroup:
        return JoinedGroup(self.identity, {self.topic: sorted(partitions)}, False, {})

    async def join(self, topics: Iterable[str]) -> JoinedGroup:
        assert list(topics) == [self.topic]
        return self._joined(self.first)

    async def stay(self, joined: JoinedGroup, member: Assignable) -> None:
        assert joined.assignment == {self.topic: self.first}
        while True:
            proposal, done = await self._proposals.get()
            # as if it were in the response to a heartbeat
            self.heartbeats.last_stable_sent_at = asyncio.get_running_loop().time()
            done.set_result(await member.assign(proposal))
            # an incremental protocol sends this list to the group now
            self.owned_at_acknowledgement.append([tp.partition for tp in member.owned])

    def propose(self, *partitions: int) -> asyncio.Future[ClaimChanges]:
        """Assign these partitions; the result are the changes, once the revocation is complete."""
        done: asyncio.Future[ClaimChanges] = asyncio.get_running_loop().create_future()
        self._proposals.put_nowait((self._joined(partitions), done))
        return done

    def rejoin(self, cause: SessionEnd) -> bool:
        return False

    def is_fatal(self, code: int) -> bool:
        return code in self.fatal_codes

    def after_session(self, cause: SessionEnd | None) -> None:
        self.ends.append(cause)

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        pass
