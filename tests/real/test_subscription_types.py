"""Pulsar's subscription types on a real Kafka: an exclusive group, and a standby that takes over."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

from asyncgroup import Claim, ConsumerBusy, ConsumerConfig, ConsumerGroup, Handler, Session
from asyncgroup.cluster import Cluster
from asyncgroup.group.assignors import Assignor
from asyncgroup.workqueue.group_engine.exclusive_group import (
    ExclusiveAssignor,
    check_is_holder,
    check_not_busy,
)
from asyncgroup.workqueue.group_engine.failover_assignor import FailoverAssignor
from tests.real.support import RunningKafka, new_topic

pytestmark = pytest.mark.full

WAIT = 60.0


class Owner(Handler):
    """Sets `owns` while it has the partition."""

    def __init__(self, group: ConsumerGroup, *, exclusive: bool = False) -> None:
        self._group = group
        self._exclusive = exclusive
        self.owns = asyncio.Event()

    async def setup(self, session: Session) -> None:
        if self._exclusive:
            await check_is_holder(self._group.cluster._inner, session)

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.owns.set()
        await claim.wait_ended()
        self.owns.clear()


@contextlib.asynccontextmanager
async def joined(
    servers: str, group_id: str, topic: str, assignor: Assignor, *, exclusive: bool = False
) -> AsyncIterator[tuple[ConsumerGroup, Owner, asyncio.Task[None]]]:
    config = ConsumerConfig(client_id="story", assignors=(assignor,), heartbeat_interval=1.0)
    async with ConsumerGroup(servers, group_id, config) as group:
        owner = Owner(group, exclusive=exclusive)
        run = asyncio.create_task(group.run(topic, owner))
        try:
            yield group, owner, run
        finally:
            await group.aclose()
            await asyncio.wait([run])


async def test_exclusive_and_failover(apache_kafka: RunningKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, "types")
        await asyncio.gather(exclusive(servers, topic, cluster), failover(servers, topic))


async def exclusive(servers: str, topic: str, cluster: Cluster) -> None:
    group_id = f"exclusive-{uuid.uuid4().hex[:8]}"
    client = cluster._inner
    await check_not_busy(client, group_id)
    async with joined(servers, group_id, topic, ExclusiveAssignor(2), exclusive=True) as (_, owner, _):
        await asyncio.wait_for(owner.owns.wait(), WAIT)
        with pytest.raises(ConsumerBusy, match=r"story-\S+ \(client 'story' at "):
            await check_not_busy(client, group_id)
        async with joined(servers, group_id, topic, ExclusiveAssignor(1), exclusive=True) as (_, _, refused):
            with pytest.raises(ConsumerBusy, match=r"story-\S+ \(client 'story' at "):
                await asyncio.wait_for(refused, WAIT)
        assert owner.owns.is_set()
    await check_not_busy(client, group_id)


async def failover(servers: str, topic: str) -> None:
    group_id = f"failover-{uuid.uuid4().hex[:8]}"
    async with joined(servers, group_id, topic, FailoverAssignor(1, "aaa")) as (_, standby, _):
        await asyncio.wait_for(standby.owns.wait(), WAIT)
        async with joined(servers, group_id, topic, FailoverAssignor(0, "bbb")) as (_, active, _):
            await asyncio.wait_for(active.owns.wait(), WAIT)
            assert not standby.owns.is_set()
        await asyncio.wait_for(standby.owns.wait(), WAIT)
