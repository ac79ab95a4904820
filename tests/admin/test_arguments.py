"""Admin, arguments: one value where several are, and words of Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup import ConfigError, TopicPartition
from asyncgroup.admin import Admin
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]

ZERO, ONE = (TopicPartition("orders", number) for number in range(2))


async def test_a_text_is_one_topic(env: VirtualEnvironment) -> None:
    for name in ("x", "y", "xy"):
        env.cluster.create_topic(name, 1)
    async with Admin(env.bootstrap_servers) as admin:
        assert list((await admin.describe_topics("xy")).raise_first()) == ["xy"]
        assert list((await admin.describe_configs("topic", "xy")).raise_first()) == ["xy"]
        found = (await admin.describe_configs("topic", "xy", keys="retention.ms")).raise_first()
        assert list(found["xy"]) == ["retention.ms"]
        assert list((await admin.delete_topics("xy")).raise_first()) == ["xy"]
        assert {topic.name for topic in await admin.list_topics()} == {"orders", "x", "y"}
        assert not (await admin.transactions.find_hanging(topics="orders")).transactions


async def test_a_text_is_one_group(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        for group in ("g", "h", "gh"):
            (await admin.alter_group_offsets(group, {ZERO: 0, ONE: 0})).raise_first()
        listed = (await admin.list_groups(states="Empty", types="classic")).raise_first()
        assert [group.group_id for group in listed] == ["g", "gh", "h"]
        assert list((await admin.describe_groups("gh")).raise_first()) == ["gh"]
        assert list((await admin.lag("gh")).raise_first()) == ["gh"]
        assert list((await admin.delete_groups("gh")).raise_first()) == ["gh"]
        assert [group.group_id for group in (await admin.list_groups()).raise_first()] == ["g", "h"]


@pytest.mark.parametrize("place", [ZERO, ("orders", 0)])
async def test_a_partition_is_one_partition(env: VirtualEnvironment, place: TopicPartition) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0, ONE: 0})).raise_first()
        assert list((await admin.plan_reset("g", "latest", partitions=place)).partitions) == [ZERO]
        assert list((await admin.delete_group_offsets("g", place)).raise_first()) == [ZERO]
        assert set(await admin.list_group_offsets("g")) == {ONE}
        found = (await admin.brokers.log_dirs(partitions=place)).raise_first()
        replicas = {each.partition for dirs in found.values() for every in dirs for each in every.replicas}
        assert replicas == {ZERO}


async def test_others_are_one_value(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        assert list((await admin.brokers.log_dirs(1)).raise_first()) == [1]
        assert list((await admin.describe_configs("broker", 1)).raise_first()) == ["1"]
        assert len((await admin.plan_reset("g", "latest", topics="orders")).partitions) == 4
        assert list(await admin.transactions.describe("tx")) == ["tx"]
        assert not (await admin.transactions.list(states="Ongoing")).raise_first()


async def test_kafkas_words_in_any_case(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
        (listed,) = (await admin.list_groups(states=["EMPTY", "dead"], types=["Classic"])).raise_first()
        assert listed.group_id == "g"


async def test_bad_arguments(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        calls: list[tuple[str, Any]] = [
            ("names of type bytes", admin.delete_topics(b"xy")),  # type: ignore[arg-type]
            ("topic=None", admin.delete_topics(None)),  # type: ignore[arg-type]
            ("group_ids of type bytes", admin.delete_groups(b"g")),  # type: ignore[arg-type]
            ("partition", admin.delete_group_offsets("g", "orders")),  # type: ignore[arg-type]
            ("state='Bogus' .*Stable, Empty, Dead", admin.list_groups(states=["Bogus"])),
            ("type='queue' .*classic, consumer, share, streams", admin.list_groups(types="queue")),
        ]
        for text, call in calls:
            with pytest.raises(ConfigError, match=text):
                await call
        assert not env.cluster.history.of("DeleteTopics", "DeleteGroups", "ListGroups")
