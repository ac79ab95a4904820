"""Admin beside kafka-python's admin client on Kafka 4.3 and 3.9: configurations of topics, brokers and groups, and their changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pytest

from asyncgroup.admin import Admin, ConfigChanges, ConfigDescription, NewTopic
from asyncgroup.error_codes import error_name
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import NEEDS_KAFKA_4, until_shown
from tests.real.test_admin_brokers import by_kafka_python, unique
from tests.real.test_admin_topics_beside_others import by_confluent, outcome

pytestmark = pytest.mark.full

KINDS: Final = {"topic": 2, "broker": 4, "group": 32}
BROKER: Final = "1"
DYNAMIC: Final = "max.connections.per.ip"
"""A configuration of brokers that may change at any time; no test comes near to its default."""


async def described_by_others(servers: str, kind: str, name: str, keys: list[str] | None) -> dict[str, Any]:
    """Return the configurations as kafka-python describes them."""

    def ask(admin: Any) -> Any:
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType(KINDS[kind]), name, configs=keys)
        return admin.describe_configs([resource], include_synonyms=True, config_filter="all")

    found: dict[str, Any] = (await by_kafka_python(servers, ask))[kind][name]
    return {
        key: (
            each["value"],
            each["config_source"],
            each["is_sensitive"],
            each["read_only"],
            [(one["name"], one["value"], one["source"]) for one in each["synonyms"]],
        )
        for key, each in found.items()
    }


def shown(configs: Mapping[str, ConfigDescription]) -> dict[str, Any]:
    return {
        name: (
            each.value,
            each.source,
            each.is_sensitive,
            each.is_read_only,
            [(one.name, one.value, one.source) for one in each.synonyms],
        )
        for name, each in configs.items()
    }


async def same(
    admin: Admin, servers: str, kind: Any, name: str, keys: list[str] | None = None
) -> dict[str, Any]:
    """Describe a resource by both clients; return what both say."""
    ours = shown((await admin.describe_configs(kind, [name], keys=keys)).raise_first()[name])
    assert ours == await described_by_others(servers, kind, name, keys)
    return ours


def as_theirs(changes: ConfigChanges) -> dict[str, Any]:
    """Return changes as kafka-python takes them."""
    found: dict[str, Any] = dict.fromkeys(changes.delete, (1, None))
    for number, values in ((0, changes.set), (2, changes.append), (3, changes.subtract)):
        found |= {name: (number, value) for name, value in values.items()}
    return found


async def altered_by_others(
    servers: str, kind: str, wanted: Mapping[str, ConfigChanges], *, validate_only: bool = False
) -> dict[str, str]:
    """Let kafka-python change configurations; return "NONE" or the error of each name."""

    def ask(admin: Any) -> Any:
        from kafka.admin import ConfigResource, ConfigResourceType

        resources = [
            ConfigResource(ConfigResourceType(KINDS[kind]), name, configs=as_theirs(each))
            for name, each in wanted.items()
        ]
        return admin.alter_configs(resources, validate_only=validate_only, raise_on_unknown=False)

    found = (await by_kafka_python(servers, ask))[kind]
    return {name: named(text) for name, text in found.items()}


def named(text: str) -> str:
    """Return `NAME: text` of the text `[Error N] ClassName: text`."""
    if text == "OK":
        return "NONE"
    number, _, rest = text.removeprefix("[Error ").partition("] ")
    return f"{error_name(int(number))}: {rest.partition(': ')[2]}"


def without_text(found: Mapping[str, str]) -> list[str]:
    return [text.partition(":")[0] for text in found.values()]


async def until_config(admin: Admin, kind: Any, name: str, key: str, expected: str | None) -> None:
    """Wait until a configuration has this value, or this source if its value is hidden; None if there is none."""

    async def read() -> str | None:
        found = (await admin.describe_configs(kind, [name])).raise_first()[name].get(key)
        return None if found is None else found.value or found.source

    await until_shown(read, expected)


# --- topics ---------------------------------------------------------------------------------------------------------------

POLICY: Final = "cleanup.policy"
CHANGES: Final[list[tuple[ConfigChanges, str, dict[str, str | None]]]] = [
    (ConfigChanges(set={"retention.ms": "1000", POLICY: "compact"}), "NONE", {"retention.ms": "1000", POLICY: "compact"}),
    (ConfigChanges(append={POLICY: "delete"}), "NONE", {POLICY: "compact,delete"}),
    (ConfigChanges(append={POLICY: "delete"}), "NONE", {}),
    (ConfigChanges(subtract={POLICY: "compact"}, set={"max.message.bytes": "2000"}), "NONE", {POLICY: "delete", "max.message.bytes": "2000"}),
    (ConfigChanges(subtract={POLICY: "compact"}), "NONE", {}),
    (ConfigChanges(delete=["retention.ms", "segment.ms"]), "NONE", {"retention.ms": None}),
    (ConfigChanges(set={"retention.ms": "soon"}), "INVALID_CONFIG", {}),
    (ConfigChanges(set={"nonsense": "1"}), "INVALID_CONFIG", {}),
    (ConfigChanges(append={"retention.ms": "1"}), "INVALID_CONFIG", {}),
    (ConfigChanges(set={"retention.ms": "5", "max.message.bytes": "-1"}), "INVALID_CONFIG", {}),
]  # fmt: skip
"""Changes, their result, and what is different in the topic's own configurations after them."""


async def own_configs(admin: Admin, topic: str) -> dict[str, str | None]:
    """Return the configurations that were set for a topic."""
    configs = (await admin.describe_configs("topic", [topic])).raise_first()[topic]
    return {name: each.value for name, each in configs.items() if each.source == "DYNAMIC_TOPIC_CONFIG"}


async def compare_topics(servers: str) -> None:
    ours, theirs = unique(), unique()
    async with Admin(servers) as admin:
        own: dict[str, str | None] = {"min.insync.replicas": "1"}
        new = NewTopic(1, 1, {"min.insync.replicas": "1"})
        (await admin.create_topics(dict.fromkeys([ours, theirs], new))).raise_first()
        for changes, expected, different in CHANGES:
            for validate_only in (True, False):
                before = await same(admin, servers, "topic", ours)
                made = await admin.alter_configs("topic", {ours: changes}, validate_only=validate_only)
                found = await altered_by_others(
                    servers, "topic", {theirs: changes}, validate_only=validate_only
                )
                assert outcome(made[ours]) == found[theirs].replace(theirs, ours)
                assert without_text(found) == [expected]
                if not validate_only:
                    own = {name: value for name, value in (own | different).items() if value is not None}
                    for topic in (ours, theirs):
                        await until_shown(partial(own_configs, admin, topic), own)
                after = await same(admin, servers, "topic", ours)
                assert after == await same(admin, servers, "topic", theirs)
                assert not validate_only or after == before
        assert after[POLICY][:2] == ("delete", "DYNAMIC_TOPIC_CONFIG")
        assert after["max.message.bytes"][0] == "2000"
        assert after["retention.ms"][1] == "DEFAULT_CONFIG"
        await same(admin, servers, "topic", ours, [POLICY, "retention.ms", "nonsense"])
        await compare_partial_results(admin, servers, ours)


async def compare_partial_results(admin: Admin, servers: str, topic: str) -> None:
    """A topic that exists, and one that does not."""
    none = unique()
    wanted = {topic: ConfigChanges(set={"retention.ms": "7"}), none: ConfigChanges(set={"retention.ms": "7"})}
    made = await admin.alter_configs("topic", wanted)
    found = await altered_by_others(servers, "topic", wanted)
    assert {name: outcome(each) for name, each in made.items()} == found
    assert without_text(found) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    await until_config(admin, "topic", topic, "retention.ms", "7")

    def ask(admin: Any) -> Any:
        from confluent_kafka import admin as names

        resource, kinds = names.ConfigResource, names.ResourceType  # type: ignore[attr-defined]
        return admin.describe_configs([resource(kinds.TOPIC, name) for name in (topic, none)])

    described = await admin.describe_configs("topic", [topic, none])
    by_name = {resource.name: each for resource, each in (await by_confluent(servers, ask)).items()}
    assert by_name[none] == "UNKNOWN_TOPIC_OR_PART"
    assert without_text({none: outcome(described[none])}) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert {name: each.value for name, each in by_name[topic].items()} == {
        name: each.value for name, each in described.values_by_name[topic].items()
    }


async def test_topics(apache_kafka: ApacheKafka) -> None:
    await compare_topics(apache_kafka.bootstrap_servers)


async def test_topics_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_topics(kafka_39.bootstrap_servers)


# --- brokers --------------------------------------------------------------------------------------------------------------

SECRET: Final = "asyncgroup.test.secret"
"""A name that brokers do not know: they treat its value as a secret."""


async def compare_brokers(servers: str) -> None:
    async with Admin(servers) as admin:
        before = await same(admin, servers, "broker", BROKER)
        assert {"STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"} <= {each[1] for each in before.values()}
        assert any(each[2] for each in before.values())
        for changes, expected in (
            (ConfigChanges(set={"node.id": "7"}), "INVALID_REQUEST"),
            (ConfigChanges(set={DYNAMIC: "many"}), "INVALID_REQUEST"),
            (ConfigChanges(append={DYNAMIC: "1"}), "INVALID_CONFIG"),
        ):
            made = await admin.alter_configs("broker", {BROKER: changes})
            found = await altered_by_others(servers, "broker", {BROKER: changes})
            assert outcome(made[BROKER]) == found[BROKER]
            assert without_text(found) == [expected]
        by_us = ConfigChanges(set={DYNAMIC: "100000", SECRET: "hidden"})
        try:
            (await admin.alter_configs("broker", {BROKER: by_us}, validate_only=True)).raise_first()
            assert await same(admin, servers, "broker", BROKER) == before
            (await admin.alter_configs("broker", {BROKER: by_us})).raise_first()
            await until_config(admin, "broker", BROKER, DYNAMIC, "100000")
            await until_config(admin, "broker", BROKER, SECRET, "DYNAMIC_BROKER_CONFIG")
            now = await same(admin, servers, "broker", BROKER)
            assert now[DYNAMIC][:2] == ("100000", "DYNAMIC_BROKER_CONFIG")
            assert now[SECRET][:3] == (None, "DYNAMIC_BROKER_CONFIG", True)
        finally:
            by_them = ConfigChanges(delete=[DYNAMIC, SECRET])
            assert await altered_by_others(servers, "broker", {BROKER: by_them}) == {BROKER: "NONE"}
        await until_config(admin, "broker", BROKER, SECRET, None)
        await until_config(admin, "broker", BROKER, DYNAMIC, before[DYNAMIC][0])
        assert await same(admin, servers, "broker", BROKER) == before


async def test_brokers(kafka_to_break: ApacheKafka) -> None:
    await compare_brokers(kafka_to_break.bootstrap_servers)


async def test_brokers_of_kafka_3_9(kafka_39: ApacheKafka) -> None:
    await compare_brokers(kafka_39.bootstrap_servers)


# --- groups ---------------------------------------------------------------------------------------------------------------


async def compare_groups(servers: str) -> None:
    ours, theirs, name = unique(), unique(), "consumer.session.timeout.ms"
    async with Admin(servers) as admin:
        for changes, expected in (
            (ConfigChanges(set={name: "46000"}), "NONE"),
            (ConfigChanges(set={name: "soon"}), "INVALID_CONFIG"),
            (ConfigChanges(set={"nonsense": "1"}), "INVALID_CONFIG"),
        ):
            made = await admin.alter_configs("group", {ours: changes})
            found = await altered_by_others(servers, "group", {theirs: changes})
            assert outcome(made[ours]) == found[theirs]
            assert without_text(found) == [expected]
        for group in (ours, theirs):
            await until_config(admin, "group", group, name, "46000")
        now = await same(admin, servers, "group", ours)
        assert now == await same(admin, servers, "group", theirs)
        assert now[name][:2] == ("46000", "DYNAMIC_GROUP_CONFIG")
        (await admin.alter_configs("group", {ours: ConfigChanges(delete=[name])})).raise_first()
        assert await altered_by_others(servers, "group", {theirs: ConfigChanges(delete=[name])}) == {
            theirs: "NONE"
        }


@NEEDS_KAFKA_4
async def test_groups(apache_kafka: ApacheKafka) -> None:
    await compare_groups(apache_kafka.bootstrap_servers)


async def test_groups_of_kafka_3_9_have_no_configurations(kafka_39: ApacheKafka) -> None:
    """Only its new group coordinator has them, which is not the default in that release."""
    servers, group = kafka_39.bootstrap_servers, unique()
    changes = {group: ConfigChanges(set={"consumer.session.timeout.ms": "46000"})}
    async with Admin(servers) as admin:
        made = await admin.alter_configs("group", changes)
        found = await altered_by_others(servers, "group", changes)
        assert {name: outcome(each) for name, each in made.items()} == found
        assert without_text(found) == ["INVALID_REQUEST"]
        described = await admin.describe_configs("group", [group])
        assert without_text({group: outcome(described[group])}) == ["INVALID_REQUEST"]
