"""Admin on a real Kafka: members of both protocols are removed by member id, by instance id, and all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import BrokerError, Claim, ConsumerConfig, ConsumerGroup, Session
from asyncgroup.admin import Admin, MemberToRemove
from tests.real.support import NEEDS_KAFKA_4, RunningKafka

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def member(servers: str, topic: str, **config: Any) -> AsyncIterator[asyncio.Queue[str]]:
    """Run a member of the group that is called as the topic; the queue gets the id of each of its memberships."""
    ids: asyncio.Queue[str] = asyncio.Queue()

    async def wait(session: Session, claim: Claim) -> None:
        ids.put_nowait(session.member_id)
        await claim.wait_ended()

    async with ConsumerGroup(servers, topic, ConsumerConfig(**config)) as group, asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run(topic, wait))
        yield ids
        await group.aclose()


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_members_are_removed_and_join_again(apache_kafka: RunningKafka, protocol: str) -> None:
    topic = f"members-{uuid4().hex[:8]}"
    servers = apache_kafka.bootstrap_servers
    one, none = MemberToRemove(group_instance_id="one"), MemberToRemove("nothing")
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
        async with member(servers, topic, group_protocol=protocol, group_instance_id="one") as ids:
            first = await ids.get()
            removed = await admin.remove_members(topic, [one, none])
            assert removed[one] is None
            error = removed[none]
            assert isinstance(error, BrokerError)
            assert error.name == "UNKNOWN_MEMBER_ID"
            second = await ids.get()
            assert second != first
            stale = await admin.remove_members(topic, [MemberToRemove(first, "one")])
            assert [getattr(each, "name", None) for each in stale.values()] == ["FENCED_INSTANCE_ID"]
        assert list((await admin.remove_members(topic, "all")).raise_first()) == [one]
        assert (await admin.describe_groups([topic])).raise_first()[topic].state == "Empty"


@pytest.mark.parametrize(
    "protocol",
    [pytest.param("classic", marks=pytest.mark.full), pytest.param("consumer", marks=NEEDS_KAFKA_4)],
)
async def test_all_members_of_a_group(apache_kafka: RunningKafka, protocol: str) -> None:
    topic = f"members-{uuid4().hex[:8]}"
    servers = apache_kafka.bootstrap_servers
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
        async with member(servers, topic, group_protocol=protocol) as ids:
            first = await ids.get()
            assert list((await admin.remove_members(topic, "all")).raise_first()) == [MemberToRemove(first)]
            assert await ids.get() != first
