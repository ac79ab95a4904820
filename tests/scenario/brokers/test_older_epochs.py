"""Commits in groups of the consumer protocol whose coordinator accepts only the present epoch, as before Kafka 4.3 (KIP-1251)."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import Claim, Record, Session
from tests.scenario.rebalances.test_consumer_stories import env
from tests.scenario.support import Gate, WorkHandler, committed, member, running
from tests.simulate.groups import strict_epochs
from tests.stories.virtual import VirtualEnvironment

__all__ = ["env"]


async def test_the_last_commit_of_a_session_has_the_epoch_of_the_last_heartbeat(env: VirtualEnvironment):
    """Found by `python -m tests.simulate`: the epoch increased while a session that ended waited for a handler."""
    gate = Gate(1, 0)

    async def work(session: Session, claim: Claim, record: Record) -> None:
        await gate(session, claim, record)
        if record.partition == 0:
            raise ValueError("a failing handler")

    await env.create_topic("others", 1)
    ann, bob = WorkHandler(env, work), WorkHandler(env)
    with strict_epochs():
        async with member(env) as group, running(group.run("orders", ann)) as consuming:
            await ann.until("assigned [0, 1, 2, 3]")
            await env.produce(1, [1])
            await gate.reached.wait()
            await env.produce(1, [0])
            await ann.until("end 0")
            epoch = env.cluster.group(env.group_id).generation
            async with member(env, "bob") as other, running(other.run("others", bob)):
                await bob.until("assigned [0]")
                await asyncio.sleep(10.0)
                assert env.cluster.group(env.group_id).generation > epoch
                gate.open.set()
                with pytest.raises(ValueError, match="a failing handler"):
                    await consuming
                assert committed(env) == {1: 1}
