"""OffsetManager on a real Kafka, its commits read back by librdkafka."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

import confluent_kafka
import pytest

from asyncgroup import CommitFailedError, ConsumerConfig, OffsetManager, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.wire import messages as m
from tests.real.support import IS_NEWEST_RELEASE, RunningKafka, require_newest_release
from tests.stories.admin import Admin

pytestmark = pytest.mark.usefixtures("apache_kafka")


@pytest.fixture
def names() -> tuple[str, str]:
    """A topic and a group with unique names."""
    suffix = uuid.uuid4().hex[:8]
    return f"offsets-{suffix}", f"offsets-group-{suffix}"


@contextlib.asynccontextmanager
async def created_topic(kafka: RunningKafka, topic: str, partitions: int = 2) -> AsyncIterator[Admin]:
    admin = Admin(kafka.bootstrap_servers)
    async with admin.cluster:
        await admin.create_topic(topic, partitions)
        yield admin


def manager(kafka: RunningKafka, group: str, **config: Any) -> OffsetManager:
    return OffsetManager(
        kafka.bootstrap_servers, group, ConsumerConfig(allow_auto_topic_creation=False, **config)
    )


async def read_by_confluent(
    kafka: RunningKafka, group: str, topic: str
) -> list[tuple[int, str | None, int | None]]:
    """Return offset, metadata and leader epoch of the first two partitions, as librdkafka reads them."""

    def ask() -> list[tuple[int, str | None, int | None]]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
        try:
            asked = [confluent_kafka.TopicPartition(topic, number) for number in range(2)]
            return [(tp.offset, tp.metadata, tp.leader_epoch) for tp in consumer.committed(asked, timeout=30)]
        finally:
            consumer.close()

    return await asyncio.to_thread(ask)


async def test_a_group_without_members(apache_kafka: RunningKafka, names: tuple[str, str]) -> None:
    topic, group = names
    async with created_topic(apache_kafka, topic):
        async with manager(apache_kafka, group, auto_commit_interval=1000.0) as offsets:
            managed = await offsets.manage_all([(topic, 0), (topic, 1)])
            zero, one = managed.values()
            assert (zero.next_offset, one.next_offset) == (-1, -1)
            zero.mark_offset(7, "seven", 0)
            await offsets.commit()
            one.mark_offset(9)  # committed when it closes
        (offset, metadata, epoch), second = await read_by_confluent(apache_kafka, group, topic)
        # librdkafka sometimes returns metadata with an additional byte
        assert (offset, (metadata or "")[:5], epoch) == (7, "seven", 0)
        assert second == (9, None, None)
        async with manager(apache_kafka, group, auto_commit=False) as offsets:
            zero = await offsets.manage(topic, 0)
            assert (zero.next_offset, zero.metadata, zero.leader_epoch) == (7, "seven", 0)
            zero.reset_offset(3)
            await offsets.commit()
            assert await offsets.fetch([(topic, 0), (topic, 1)]) == {
                TopicPartition(topic, 0): (3, "", -1),
                TopicPartition(topic, 1): (9, "", -1),
            }


async def test_one_partition_fails_and_the_others_are_committed(
    apache_kafka: RunningKafka, names: tuple[str, str]
) -> None:
    topic, group = names
    async with created_topic(apache_kafka, topic), manager(apache_kafka, group, auto_commit=False) as offsets:
        zero, one = await offsets.manage(topic, 0), await offsets.manage(topic, 1)
        zero.mark_offset(1, "x" * 10_000)
        one.mark_offset(1)
        with pytest.raises(CommitFailedError, match="OFFSET_METADATA_TOO_LARGE") as raised:
            await offsets.commit()
        assert set(raised.value.errors) == {TopicPartition(topic, 0)}
        assert (zero._marks.rejected, one._marks.dirty) == (True, False)
        assert set(await offsets.fetch([(topic, 0), (topic, 1)])) == {TopicPartition(topic, 1)}


async def wait_until_deleted(admin: Admin, topic: str) -> None:
    """Wait until the broker's metadata no longer has the topic."""
    async with asyncio.timeout(30):
        while topic in await admin.cluster.all_topics():
            await asyncio.sleep(0.1)


async def test_commits_for_a_deleted_topic_fail(
    apache_kafka: RunningKafka, names: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = names
    async with created_topic(apache_kafka, topic) as admin:
        with caplog.at_level(logging.WARNING, "asyncgroup.offsets"):
            async with manager(apache_kafka, group, auto_commit_interval=0.1, commit_retry_max=1) as offsets:
                zero = await offsets.manage(topic, 0)
                await admin.delete_topic(topic)
                await wait_until_deleted(admin, topic)
                zero.mark_offset(5)
                async with asyncio.timeout(30):
                    while not zero._marks.rejected:
                        await asyncio.sleep(0.1)
                with pytest.raises(
                    CommitFailedError,
                    match="UNKNOWN_TOPIC_ID" if IS_NEWEST_RELEASE else "UNKNOWN_TOPIC_OR_PARTITION",
                ):
                    await offsets.commit()
        assert caplog.text.count("not committed") == 1, "one warning, not one per interval"


async def test_marks_of_a_deleted_topic_are_not_committed_to_its_successor(
    apache_kafka: RunningKafka, names: tuple[str, str]
) -> None:
    require_newest_release("commits that name topics by id")
    topic, group = names
    async with (
        created_topic(apache_kafka, topic) as admin,
        manager(apache_kafka, group, auto_commit=False) as offsets,
    ):
        zero = await offsets.manage(topic, 0)
        zero.mark_offset(500)
        await admin.delete_topic(topic)
        await wait_until_deleted(admin, topic)
        await admin.create_topic(topic, 2)
        with pytest.raises(CommitFailedError, match="deleted and recreated"):
            await offsets.commit()
        await offsets.release(topic, 0)
        assert (await offsets.manage(topic, 0)).next_offset == -1


async def test_commits_without_membership_fail_while_a_group_has_members(
    apache_kafka: RunningKafka, names: tuple[str, str]
) -> None:
    topic, group = names
    async with created_topic(apache_kafka, topic), manager(apache_kafka, group, auto_commit=False) as offsets:
        zero = await offsets.manage(topic, 0)
        zero.mark_offset(5)
        joining = m.JoinGroupRequest.JoinGroupRequestProtocol("range", bytes(12))
        request = m.JoinGroupRequest(group, 30_000, 30_000, "", None, "consumer", [joining])
        answer = await offsets.cluster.coordinators.request(group, request, timeout=60.0)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = answer.member_id
            answer = await offsets.cluster.coordinators.request(group, request, timeout=60.0)
        assert answer.error_code == 0
        with pytest.raises(CommitFailedError) as raised:
            await offsets.commit()
        (error,) = raised.value.errors.values()
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNKNOWN_MEMBER_ID
        leaving = m.LeaveGroupRequest.MemberIdentity(answer.member_id)
        await offsets.cluster.coordinators.request(group, m.LeaveGroupRequest(group, "", [leaving]))
        await offsets.commit()
        assert await offsets.fetch([(topic, 0)]) == {TopicPartition(topic, 0): (5, "", -1)}


def commit_request(topics: list[tuple[uuid.UUID, list[int]]], group: str) -> m.OffsetCommitRequest:
    """Return a request that commits offset 7 for these partitions, by topic id."""
    cls = m.OffsetCommitRequest
    return cls(
        group_id=group,
        topics=[
            cls.OffsetCommitRequestTopic(
                "", topic_id, [cls.OffsetCommitRequestPartition(number, 7, 2, "m") for number in numbers]
            )
            for topic_id, numbers in topics
        ],
    )


async def responses_by_topic_id(admin: Admin, topic: str, group: str) -> list[object]:
    """Return a coordinator's responses for known and unknown topic ids and partitions; `T` stands for the topic's id."""
    coordinators = admin.cluster.coordinators
    topic_id = (await admin.cluster.topics([topic]))[topic].topic_id
    asked = [(uuid.UUID(int=99), [0, 1]), (topic_id, [0, 5]), (m.NO_UUID, [0])]
    fetch = m.OffsetFetchRequest
    named = [fetch.OffsetFetchRequestTopics("", each, numbers) for each, numbers in asked]
    responses: list[object] = []
    while True:  # the coordinator loads at the first use of a group
        committed = await coordinators.request(group, commit_request(asked, group))
        codes = {p.error_code for t in committed.topics for p in t.partitions}
        if not codes & {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
            break
        coordinators.mark_unknown(group)
        await asyncio.sleep(0.1)
    for answered in committed.topics:
        name = "T" if answered.topic_id == topic_id else answered.topic_id
        responses += [(name, part.partition_index, part.error_code) for part in answered.partitions]
    for topics in (named, None):
        request = fetch(groups=[fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)])
        (answer,) = (await coordinators.request(group, request)).groups
        for found in answer.topics:
            name = "T" if found.topic_id == topic_id else found.topic_id
            responses += [
                (
                    name,
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.metadata,
                    p.error_code,
                )
                for p in found.partitions
            ]
    return sorted(responses, key=repr)


async def test_the_embedded_broker_handles_topic_ids_as_kafka_does(
    apache_kafka: RunningKafka, names: tuple[str, str]
) -> None:
    require_newest_release("a comparison with the embedded broker")
    topic, group = names
    async with created_topic(apache_kafka, topic) as admin:
        real = await responses_by_topic_id(admin, topic, group)
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(topic, 2)
        admin = Admin(cluster.bootstrap_servers)
        async with admin.cluster:
            assert await responses_by_topic_id(admin, topic, group) == real
    assert ("T", 0, 7, 2, "m", 0) in real
