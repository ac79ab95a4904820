"""Members of one group, ours and other clients', that join and leave one after the other while records are produced."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from tests.interop.cooperative_peers import CooperativePeer
from tests.stories.environment import CONSUMER
from tests.stories.real import RealEnvironment
from tests.stories.sharing import are_described, are_shared_evenly
from tests.stories.traffic import completed_traffic

__all__ = ["PARTITIONS", "Crew", "Ours", "take_turns"]

PARTITIONS: Final = range(4)


class Ours(Handler):
    """Our member; it marks each record and notes it."""

    def __init__(self, env: RealEnvironment, name: str, protocol: str) -> None:
        self.env = env
        self.name = name
        self.handled: list[tuple[int, int]] = []
        self.sessions: list[Session] = []
        config = {"assignors": ("cooperative-sticky",)} if protocol == "classic" else CONSUMER
        options = ConsumerConfig(**env.config(name, **config))
        self.group = ConsumerGroup(env.bootstrap_servers, env.group_id, options, hooks=[env.bell])
        self._task: asyncio.Task[None] | None = None

    @property
    def assigned(self) -> set[int]:
        session = self.group.session
        return {tp.partition for tp in session.partitions} if session is not None else set()

    async def setup(self, session: Session) -> None:
        self.sessions.append(session)

    async def consume_claim(self, _session: Session, claim: Claim) -> None:
        async for record in claim:
            self.handled.append((record.partition, record.offset))
            claim.mark(record)
            self.env.bell.ring()

    async def start(self) -> None:
        await self.group.__aenter__()
        self._task = asyncio.create_task(self.group.run(self.env.topic, self), name=self.name)

    async def stop(self) -> None:
        """Leave the group; raises what ended `run()`. Safe to call twice."""
        task, self._task = self._task, None
        await self.group.aclose()
        if task is not None:
            await task


class Crew:
    """The members of the group at present, and those that have left."""

    def __init__(self, env: RealEnvironment) -> None:
        self.env = env
        self.members: dict[str, Ours | CooperativePeer] = {}
        self.former: list[Ours | CooperativePeer] = []

    async def joins(self, name: str) -> None:
        """Start a member: ours is called `ours-classic` or `ours-consumer`, the others as in `cooperative_peers`.

        What follows a slash only tells two members of a kind apart.
        """
        if name.startswith("ours"):
            member: Ours | CooperativePeer = Ours(self.env, name, name.partition("/")[0].partition("-")[2])
            self.members[name] = member
            await member.start()
        else:
            member = self.members[name] = CooperativePeer(name.partition("/")[0], self.env.bell.ring)
            await member.start(self.env.bootstrap_servers, self.env.topic, self.env.group_id)

    async def leaves(self, name: str) -> None:
        member = self.members.pop(name)
        self.former.append(member)
        await member.stop()

    async def shared(self, kind: str) -> None:
        """Wait until the members share the partitions evenly, in a group of this protocol, and the coordinator agrees."""
        env = self.env

        async def is_shared() -> bool:
            parts = [member.assigned for member in self.members.values()]
            if not are_shared_evenly(PARTITIONS, parts):
                return False
            describe = env.admin.describe if kind == "classic" else env.admin.describe_consumers
            return are_described(parts, await describe(env.group_id), env.topic)

        names = ", ".join(self.members)
        await env.bell.until_known(is_shared, f"a {kind} group shared by {names}", env.limit)

    async def all_handled(self) -> None:
        """Wait until every record was handled; our members handle none twice."""
        env = self.env
        wanted = {(tp.partition, offset) for tp, count in env.produced.items() for offset in range(count)}
        everyone = [*self.members.values(), *self.former]
        await env.bell.until(
            lambda: wanted <= {record for member in everyone for record in member.handled},
            f"all {len(wanted)} records",
            env.limit,
        )
        ours = Counter(record for member in everyone if isinstance(member, Ours) for record in member.handled)
        assert set(ours.values()) == {1}

    async def stop(self) -> None:
        for name in list(self.members):
            await self.leaves(name)


async def take_turns(env: RealEnvironment, turns: Iterable[tuple[str, str, str]]) -> Crew:
    """Let members leave and join under load; return them, after every record was handled and committed and all have left.

    Of each turn: who leaves, who joins then, and the protocol of the group after that. A name may be empty.
    """
    crew = Crew(env)
    try:
        async with completed_traffic(env, PARTITIONS):
            for leaves, joins, kind in turns:
                if leaves:
                    await crew.leaves(leaves)
                if joins:
                    await crew.joins(joins)
                await crew.shared(kind)
                await asyncio.sleep(0.5)
        await crew.all_handled()
        await env.all_committed()
    finally:
        await crew.stop()
    return crew
