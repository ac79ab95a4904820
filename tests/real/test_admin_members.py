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
from asyncgroup.error_codes import error_name
from tests.interop.test_foreign_clients import in_thread
from tests.real.support import NEEDS_KAFKA_4, RunningKafka

pytestmark = pytest.mark.full


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


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_members_are_removed_and_join_again(apache_kafka: RunningKafka, protocol: str) -> None:
    await removed_and_joined_again(apache_kafka.bootstrap_servers, protocol)


async def test_members_of_an_old_kafka(kafka_39: RunningKafka) -> None:
    await removed_and_joined_again(kafka_39.bootstrap_servers, "classic")


async def removed_and_joined_again(servers: str, protocol: str) -> None:
    topic = f"members-{uuid4().hex[:8]}"
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


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=NEEDS_KAFKA_4)])
async def test_all_members_of_a_group(apache_kafka: RunningKafka, protocol: str) -> None:
    topic = f"members-{uuid4().hex[:8]}"
    servers = apache_kafka.bootstrap_servers
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
        async with member(servers, topic, group_protocol=protocol) as ids:
            first = await ids.get()
            assert list((await admin.remove_members(topic, "all")).raise_first()) == [MemberToRemove(first)]
            assert await ids.get() != first


async def test_the_same_results_as_kafka_python(apache_kafka: RunningKafka) -> None:
    await compare_removals(apache_kafka.bootstrap_servers)


async def test_the_same_results_as_kafka_python_on_kafka_3_9(kafka_39: RunningKafka) -> None:
    await compare_removals(kafka_39.bootstrap_servers)


async def compare_removals(servers: str) -> None:
    topic = f"members-{uuid4().hex[:8]}"
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
        results = []
        for remove in (by_admin, by_kafka_python):
            async with member(servers, topic, group_instance_id="one") as ids:
                await ids.get()
            results.append(await remove(admin, servers, topic))
        assert results[0] == results[1]
        assert sorted(results[0].values()) == [
            "FENCED_INSTANCE_ID",
            "NONE",
            "UNKNOWN_MEMBER_ID",
            "UNKNOWN_MEMBER_ID",
        ]


WANTED = [("former", "one"), ("", "one"), ("other", None), ("", "two")]
"""Member ids and instance ids of two requests: the first is refused, the second removes the member."""


async def by_admin(admin: Admin, _: str, group_id: str) -> dict[str | None, str]:
    found: dict[str | None, str] = {}
    for wanted in (WANTED[:1], WANTED[1:]):
        removed = await admin.remove_members(group_id, [MemberToRemove(*each) for each in wanted])
        for each, error in removed.items():
            found[each.member_id or each.group_instance_id] = getattr(error, "name", "NONE")
    return found


async def by_kafka_python(_: Admin, servers: str, group_id: str) -> dict[str | None, str]:
    """Its results are by member id, or by instance id without one."""

    def run() -> dict[str | None, str]:
        import kafka.admin

        client = kafka.admin.KafkaAdminClient(bootstrap_servers=servers.split(","))
        found = {}
        try:
            for wanted in (WANTED[:1], WANTED[1:]):
                members = [kafka.admin.MemberToRemove(each or None, instance) for each, instance in wanted]
                for name, error in client.remove_group_members(group_id, members).items():
                    found[name] = error_name(error.errno)
        finally:
            client.close()
        return found

    return await in_thread(run)
