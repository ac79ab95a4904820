"""Admin, arguments: one value where several are, and words of Kafka."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup import ConfigError, TopicPartition
from asyncgroup.admin import (
    AclBindingFilter,
    Admin,
    ClientQuotaEntity,
    ConfigChanges,
    GroupOffset,
    MemberToRemove,
    NewTopic,
    UserScramCredentialUpsertion,
)
from tests.stories.virtual import VirtualEnvironment

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


async def test_a_text_is_one_group(admin: Admin, env: VirtualEnvironment) -> None:
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


async def test_others_are_one_value(admin: Admin, env: VirtualEnvironment) -> None:
    assert list((await admin.brokers.log_dirs(1)).raise_first()) == [1]
    assert list((await admin.describe_configs("broker", 1)).raise_first()) == ["1"]
    assert len((await admin.plan_reset("g", "latest", topics="orders")).partitions) == 4
    assert list(await admin.transactions.describe("tx")) == ["tx"]
    assert not (await admin.transactions.list(states="Ongoing")).raise_first()


async def test_kafkas_words_in_any_case(admin: Admin, env: VirtualEnvironment) -> None:
    (await admin.alter_group_offsets("g", {ZERO: 0})).raise_first()
    (listed,) = (await admin.list_groups(states=["EMPTY", "dead"], types=["Classic"])).raise_first()
    assert listed.group_id == "g"


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
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


TINY = ConfigChanges(set={"retention.ms": "1"})
LONG = "x" * 70_000
BROKEN = "pa\ud800ss"

Call = Callable[[Admin], Awaitable[Any]]

REFUSED: dict[str, Call] = {
    "kind=[]": lambda admin: admin.describe_configs([], "orders"),  # type: ignore[arg-type]
    "kind={}": lambda admin: admin.alter_configs({}, {"orders": TINY}),  # type: ignore[arg-type]
    "a configuration of topic 'orders'": lambda admin: admin.alter_configs(
        "topic", {"orders": ConfigChanges(set={BROKEN: "1"})}
    ),
    "retention.ms of topic 'orders'": lambda admin: admin.alter_configs(
        "topic", {"orders": ConfigChanges(set={"retention.ms": BROKEN})}
    ),
    "the new topic 'a': configs": lambda admin: admin.create_topics({"a": NewTopic(configs=None)}),  # type: ignore[arg-type]
    "the new topic 'a': 'b'": lambda admin: admin.create_topics({"a": NewTopic(configs={"b": LONG})}),
    "offsets": lambda admin: admin.alter_group_offsets("g", None),  # type: ignore[arg-type]
    "metadata": lambda admin: admin.alter_group_offsets("g", {ZERO: GroupOffset(0, LONG)}),
    "leader_epoch": lambda admin: admin.alter_group_offsets("g", {ZERO: GroupOffset(0, "", 1 << 40)}),
    "member_id": lambda admin: admin.remove_members("g", [MemberToRemove(LONG)]),
    "feature": lambda admin: admin.brokers.update_features({BROKEN: 1}),
    "user": lambda admin: admin.users.describe([LONG]),
    "password": lambda admin: admin.users.alter(UserScramCredentialUpsertion("bob", BROKEN)),
    "client_id": lambda admin: admin.quotas.describe(client_id=LONG),
    "producer_byte_rate": lambda admin: admin.quotas.alter(
        {ClientQuotaEntity(user="a"): {"producer_byte_rate": 10**309}}
    ),
    "name": lambda admin: admin.acls.describe(AclBindingFilter(name=LONG)),
    "principal": lambda admin: admin.acls.describe(AclBindingFilter(principal="User:" + LONG)),
    "host": lambda admin: admin.acls.describe(AclBindingFilter(host=BROKEN)),
    "election_type": lambda admin: admin.replicas.elect_leaders([]),  # type: ignore[arg-type]
    "transactional_id": lambda admin: admin.transactions.describe([BROKEN]),
    "pattern": lambda admin: admin.transactions.list(pattern=LONG),
    "longer_than": lambda admin: admin.transactions.list(longer_than=float("inf")),
}


async def test_what_no_request_can_contain_is_refused_by_name(admin: Admin, env: VirtualEnvironment) -> None:
    before = len(env.cluster.history)
    for key, call in REFUSED.items():
        with pytest.raises(ConfigError) as refused:
            await call(admin)
        assert str(refused.value).startswith(key), (key, refused.value)
        assert len(str(refused.value)) < 400
        if key in ("password", "retention.ms of topic 'orders'"):  # the value may be a secret
            assert "pa" not in str(refused.value).removeprefix(key)
    assert len(env.cluster.history) == before
