"""Memory of ended sessions: their buffers are freed before the next session starts."""

from __future__ import annotations

import gc
from weakref import ref

from asyncgroup import Claim, Handler, Session
from asyncgroup.errors import Rebalanced
from tests.group.parts import consumer_of, end_session
from tests.scenario.support import member, orders, running
from tests.stories.virtual import VirtualEnvironment

RECORDS = [b"x" * 1000] * 200


class ClaimKeeper(Handler):
    """Reads one record of each claim and keeps all claims; measures their buffers when the next session starts."""

    def __init__(self, env: VirtualEnvironment) -> None:
        self.env = env
        self.claims: list[Claim] = []
        self.sessions: list[ref[Session]] = []
        self.held: list[int] = []
        self.left: list[int] = []

    async def setup(self, session: Session) -> None:
        gc.collect()
        self.held.append(sum(consumer_of(claim).buffered_bytes for claim in self.claims))
        self.left.append(sum(former() is not None for former in self.sessions))
        self.sessions.append(ref(session))
        self.env.bell.ring()

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.claims.append(claim)
        async for record in claim:
            claim.mark(record)
            break
        await self.env.bell.until(
            lambda: consumer_of(claim).buffered_bytes > 100_000, "a full buffer", self.env.limit
        )
        await claim.wait_ended()


async def test_an_ended_session_and_its_buffers_are_freed_before_the_next_one(
    env: VirtualEnvironment,
) -> None:
    for partition in range(4):
        await env.admin.produce(orders(partition), RECORDS, batch=10)
    handler = ClaimKeeper(env)
    async with member(env) as group, running(group.run("orders", handler)):
        for number in range(1, 4):
            await env.bell.until(lambda n=number: len(handler.held) == n, f"session {number}", env.limit)
            session = group.session
            assert session is not None
            await env.bell.until(
                lambda: (
                    all(consumer_of(c).buffered_bytes > 100_000 for c in group.session.claims)
                    and len(group.session.claims) == 4
                ),
                "full buffers",
                env.limit,
            )
            end_session(session, Rebalanced("by the test"))
            del session
        await env.bell.until(lambda: len(handler.held) == 4, "session 4", env.limit)
    assert handler.held == [0, 0, 0, 0], "ended claims still have buffered records"
    assert handler.left == [0, 0, 0, 0], "ended sessions are still referenced"


async def test_an_ended_claim_keeps_its_offsets(env: VirtualEnvironment) -> None:
    await env.admin.produce(orders(0), RECORDS, batch=10)
    handler = ClaimKeeper(env)
    async with member(env) as group, running(group.run("orders", handler)):
        await env.bell.until(
            lambda: any(consumer_of(c).buffered_bytes > 100_000 for c in handler.claims),
            "a full buffer",
            env.limit,
        )
    claim = next(claim for claim in handler.claims if claim.partition == 0)
    assert (claim.position, claim.lag, claim.next_mark) == (1, 199, 1)
    assert consumer_of(claim).buffered_bytes == 0
    assert [record async for record in claim] == []
