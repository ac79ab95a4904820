"""Admin on a real Kafka: groups and their offsets from creation to deletion, beside kafka-python's admin on the same cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, TopicPartition
from asyncgroup.admin import Admin, GroupOffset
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.test_foreign_clients import in_thread
from tests.real.support import NEEDS_KAFKA_4, RunningKafka
from tests.stories.holding import holding


@asynccontextmanager
async def member(servers: str, topic: str, protocol: str) -> AsyncIterator[None]:
    """Run a member of the group that is called as the topic; it has both partitions in the block, and has left after it."""
    config = ConsumerConfig(group_protocol=protocol, client_id="reader")  # type: ignore[arg-type]
    async with ConsumerGroup(servers, topic, config) as group, holding(group, topic, 2):
        yield


class Scene:
    """A group that is called as its topic, seen by both admin clients."""

    def __init__(self, servers: str, admin: Admin) -> None:
        self.servers = servers
        self.admin = admin
        self.group = f"groups-{uuid4().hex[:8]}"
        self.zero, self.one = TopicPartition(self.group, 0), TopicPartition(self.group, 1)

    async def theirs(self, call: Callable[[Any], Any]) -> Any:
        """Return what `call(admin)` returns with kafka-python's admin; the name of its class for an error."""

        def run() -> Any:
            from kafka.admin import KafkaAdminClient
            from kafka.errors import KafkaError

            admin = KafkaAdminClient(bootstrap_servers=self.servers)
            try:
                return call(admin)
            except KafkaError as error:
                return type(error).__name__
            finally:
                admin.close()

        return await in_thread(run)


def names(results: Any) -> dict[Any, str]:
    """Return the error of each name as kafka-python calls it; "NoError" for a success."""
    named = {
        "GROUP_ID_NOT_FOUND": "GroupIdNotFoundError",
        "NON_EMPTY_GROUP": "NonEmptyGroupError",
        "UNKNOWN_MEMBER_ID": "UnknownMemberIdError",
        "GROUP_SUBSCRIBED_TO_TOPIC": "GroupSubscribedToTopicError",
        "UNKNOWN_TOPIC_OR_PARTITION": "UnknownTopicOrPartitionError",
    }
    return {
        name: named[found.name] if hasattr(found, "name") else "NoError" for name, found in results.items()
    }


def error_names(results: Any) -> dict[Any, str]:
    """Return the names of kafka-python's errors, which it has as classes or by name."""
    return {name: error if isinstance(error, str) else error.__name__ for name, error in results.items()}


async def before_it_exists(scene: Scene) -> None:
    admin, group, zero = scene.admin, scene.group, scene.zero
    assert names(await admin.describe_groups([group])) == {group: "GroupIdNotFoundError"}
    deleted = names(await admin.delete_groups([group]))
    assert deleted == error_names(await scene.theirs(lambda other: other.delete_groups([group])))
    deleted = names(await admin.delete_group_offsets(group, [zero]))
    assert deleted == {zero: await scene.theirs(lambda other: other.delete_group_offsets(group, [zero]))}
    assert not await admin.list_group_offsets(group)


async def with_commits_only(scene: Scene) -> None:
    """The first commit creates the group."""
    admin, group, zero, one = scene.admin, scene.group, scene.zero, scene.one
    none = TopicPartition(f"{group}-none", 0)
    altered = await admin.alter_group_offsets(group, {zero: GroupOffset(0, "text", 0), one: 0, none: 0})
    assert names(altered) == {zero: "NoError", one: "NoError", none: "UnknownTopicOrPartitionError"}
    wanted = {
        tp: GroupOffset(0, "text" if tp == zero else "", 0 if tp == zero else None)
        for tp in (zero, one, none)
    }
    theirs = await scene.theirs(lambda other: other.alter_group_offsets(group, wanted))
    assert error_names(theirs) == names(altered)
    read = (await scene.theirs(lambda other: other.list_group_offsets(group)))[group]
    found = (await admin.list_group_offsets(group, require_stable=True)).raise_first()
    assert found == {zero: GroupOffset(0, "text", 0), one: GroupOffset(0)}
    assert {tp: GroupOffset(*each) for tp, each in read.items()} == found
    assert (await admin.describe_groups([group])).raise_first()[group].state == "Empty"
    missing = f"{group}-none"
    described = await admin.describe_groups([group, missing])
    others = await scene.theirs(lambda other: other.describe_groups([group, missing]))
    assert names(described) == {group: "NoError", missing: "GroupIdNotFoundError"}
    # kafka-python does not raise for a group that does not exist, but shows its state, which is Dead
    assert {each: found["group_state"] for each, found in others.items()} == {group: "Empty", missing: "Dead"}
    listed = (await admin.list_groups(states=["Empty"])).raise_first()
    others = await scene.theirs(lambda other: other.list_groups(states_filter=["Empty"]))
    assert group in {each.group_id for each in listed} & {each["group_id"] for each in others}


async def with_a_member(scene: Scene, protocol: str) -> None:
    """It is described, and refuses changes."""
    admin, group, zero, one = scene.admin, scene.group, scene.zero, scene.one
    described = (await admin.describe_groups([group])).raise_first()[group]
    assert (described.group_type, described.state) == (protocol, "Stable")
    (reader,) = described.members
    assert (reader.client_id, reader.assignment) == ("reader", (zero, one))
    if protocol == "classic":  # kafka-python describes only those
        theirs = (await scene.theirs(lambda other: other.describe_groups([group])))[group]
        (other,) = theirs["members"]
        assert (theirs["group_state"], theirs["protocol_data"]) == ("Stable", described.assignor)
        shown = other["member_id"], other["client_id"], other["client_host"]
        assert shown == (reader.member_id, reader.client_id, reader.host)
    listed = (await admin.list_groups(states=["Stable"], types=[protocol])).raise_first()
    (mine,) = [each for each in listed if each.group_id == group]
    assert (mine.group_type, mine.state, mine.protocol_type) == (protocol, "Stable", "consumer")

    before = (await admin.list_group_offsets(group)).raise_first()
    altered = names(await admin.alter_group_offsets(group, {zero: 1, one: 1}))
    offset = GroupOffset(1)
    theirs = await scene.theirs(lambda other: other.alter_group_offsets(group, {zero: offset, one: offset}))
    assert altered == error_names(theirs) == dict.fromkeys([zero, one], "UnknownMemberIdError")
    deleted = names(await admin.delete_group_offsets(group, [zero]))
    theirs = await scene.theirs(lambda other: other.delete_group_offsets(group, [zero]))
    assert deleted == error_names(theirs) == {zero: "GroupSubscribedToTopicError"}
    deleted = names(await admin.delete_groups([group]))
    theirs = await scene.theirs(lambda other: other.delete_groups([group]))
    assert deleted == error_names(theirs) == {group: "NonEmptyGroupError"}
    assert (await admin.list_group_offsets(group)).raise_first() == before


async def until_its_end(scene: Scene) -> None:
    """It is deleted, offset by offset and as a whole."""
    admin, group, zero, one = scene.admin, scene.group, scene.zero, scene.one
    missing = TopicPartition(group, 9)
    deleted = names(await admin.delete_group_offsets(group, [one, missing]))
    assert deleted == {one: "NoError", missing: "UnknownTopicOrPartitionError"}
    theirs = await scene.theirs(lambda other: other.delete_group_offsets(group, [one, missing]))
    assert error_names(theirs) == deleted
    read = await scene.theirs(lambda other: other.list_group_offsets(group))
    assert list(read[group]) == [zero]
    await scene.theirs(lambda other: other.alter_group_offsets(group, {one: GroupOffset(0, "k")}))
    assert (await admin.list_group_offsets(group)).raise_first()[one] == GroupOffset(0, "k")
    none, other_group = f"{group}-none", f"{group}-other"
    await scene.theirs(lambda other: other.alter_group_offsets(other_group, {one: GroupOffset(0)}))
    deleted = names(await admin.delete_groups([group, none]))
    assert deleted == {group: "NoError", none: "GroupIdNotFoundError"}
    theirs = error_names(await scene.theirs(lambda other: other.delete_groups([other_group, none])))
    assert theirs == {other_group: "OK", none: "GroupIdNotFoundError"}
    assert group not in {each.group_id for each in (await admin.list_groups()).raise_first()}
    assert not await admin.list_group_offsets(group)
    assert names(await admin.delete_groups([group])) == {group: "GroupIdNotFoundError"}


async def life_of_a_group(servers: str, protocol: str) -> None:
    async with Admin(servers) as admin:
        scene = Scene(servers, admin)
        (await admin.create_topics({scene.group: 2})).raise_first()
        await before_it_exists(scene)
        await with_commits_only(scene)
        async with member(servers, scene.group, protocol):
            await with_a_member(scene, protocol)
        await until_its_end(scene)


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("classic", marks=pytest.mark.full),
        pytest.param("consumer", marks=[NEEDS_KAFKA_4, pytest.mark.full]),
    ],
)
async def test_a_group_from_its_first_commit_to_its_end(apache_kafka: RunningKafka, protocol: str) -> None:
    await life_of_a_group(apache_kafka.bootstrap_servers, protocol)


@pytest.mark.full
async def test_a_group_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await life_of_a_group(kafka_39.bootstrap_servers, "classic")
