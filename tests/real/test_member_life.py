"""Members on a real Kafka: changes of topics, static members, a slow rebalance, heartbeats.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import BrokerError, Claim, ConsumerConfig, ConsumerGroup, ErrorCode, Session
from tests.real.support import RunningKafka
from tests.scenario.support import Gate, WorkHandler, running
from tests.stories.real import RealEnvironment


@pytest_asyncio.fixture
async def env(apache_kafka: RunningKafka, tmp_path: Path) -> AsyncIterator[RealEnvironment]:
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as environment:
        yield environment


class TopicHandler(WorkHandler):
    """Records topics by the first part of their names."""

    async def on_assigned(self, session: Session, partitions: Any) -> None:
        self.note("assigned " + ",".join(sorted({tp.topic.split("-")[0] for tp in partitions})))

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            self.note(f"{claim.topic.split('-')[0]}@{record.offset}")


def new_group(env: RealEnvironment, name: str = "ann", **config: Any) -> ConsumerGroup:
    full = ConsumerConfig(**env.config(name, **config))
    return ConsumerGroup(env.bootstrap_servers, env.group_id, full, hooks=[env.bell])


async def test_a_member_changes_its_topics(env: RealEnvironment):
    """To two names; to a pattern that matches no topic; and to a topic that matches it later."""
    a, b = await env.create_topic("aa", 1), await env.create_topic("bb", 1)
    handler = TopicHandler(env)
    async with new_group(env) as group, running(group.run(a, handler)):
        await handler.until("assigned aa")
        group.set_topics([a, b])
        await handler.until("assigned aa,bb")
        assert handler.sessions[1].member_id == handler.sessions[0].member_id
        group.set_topics(re.compile(f"cc.*{env.topic.removeprefix('orders')}"))
        await handler.until("assigned ")
        assert group.health().waits_for is not None
        c = await env.create_topic("cc", 1)
        await env.produce(2, [0], c)
        await handler.until("cc@1")
        assert group.health().is_healthy


@pytest.mark.parametrize("leave", [None, True])
async def test_a_static_member_leaves_only_if_requested(env: RealEnvironment, leave: bool | None):
    handler = WorkHandler(env)
    async with new_group(env, group_instance_id="desk-1", session_timeout=20.0) as group:
        async with running(group.run(env.topic, handler)):
            await handler.until("claim 3@0")
            await group.aclose(leave=leave)
    described = await env.admin.describe(env.group_id)
    assert described is not None
    assert bool(described.members) is (leave is None)


async def test_a_fenced_static_member(env: RealEnvironment):
    handler, second = WorkHandler(env), WorkHandler(env)
    async with new_group(env, group_instance_id="desk-1") as group:
        async with running(group.run(env.topic, handler)) as consuming:
            await handler.until("claim 3@0")
            async with new_group(env, "bob", group_instance_id="desk-1") as other:
                async with running(other.run(env.topic, second)):
                    with pytest.raises(BrokerError) as caught:
                        await consuming
                    assert caught.value.code == ErrorCode.FENCED_INSTANCE_ID
                    assert "lost [0, 1, 2, 3]" in handler.calls
                    await second.until("claim 3@0")


async def test_a_handler_that_exceeds_the_rebalance_timeout(env: RealEnvironment):
    """It is canceled early enough for the member to rejoin before the coordinator removes it."""
    gate = Gate(0, 2)
    handler = WorkHandler(env, gate)
    await env.produce(5, [0])
    async with new_group(env, rebalance_timeout=4.0) as group, running(group.run(env.topic, handler)):
        await gate.reached.wait()
        bob = await env.member("bob", rebalance_timeout=4.0)
        await handler.until("cancelled 0")
        gate.open.set()
        await handler.until("assigned [0, 1]")
        first, later = handler.sessions
        assert (later.member_id, later.generation_id) == (first.member_id, first.generation_id + 1)
        await handler.until("done 0@4")
        assert bob.log.handled == []
        await bob.leave()


async def test_members_learn_of_a_rebalance_at_the_same_time(env: RealEnvironment):
    """Both learn of a new member at almost the same time, closer than the heartbeat interval."""
    revoked_at: dict[str, float] = {}

    class RevokedHandler(WorkHandler):
        def __init__(self, name: str) -> None:
            super().__init__(env)
            self.name = name

        async def on_revoked(self, session: Session, partitions: Any) -> None:
            revoked_at[self.name] = asyncio.get_running_loop().time()

    ann, bob = RevokedHandler("ann"), RevokedHandler("bob")
    async with (
        new_group(env, "ann", heartbeat_interval=3.0, session_timeout=18.0) as first,
        new_group(env, "bob", heartbeat_interval=3.0, session_timeout=18.0) as second,
        running(first.run(env.topic, ann)),
    ):
        await ann.until("claim 3@0")
        async with running(second.run(env.topic, bob)):
            await bob.until("claim 3@0")
            await ann.until("assigned [0, 1]")
            revoked_at.clear()
            await asyncio.sleep(1.2)
            carol = await env.member("carol")
            await env.bell.until(lambda: len(revoked_at) == 2, "both learned of it", env.limit)
            assert abs(revoked_at["ann"] - revoked_at["bob"]) < 1.0
            await carol.leave()
