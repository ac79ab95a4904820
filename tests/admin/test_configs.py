"""Admin, configurations: described with their sources, altered one by one; brokers are asked themselves, secrets never shown."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup import ConfigError, ErrorCode
from asyncgroup.admin import Admin, ConfigChanges
from tests.stories.virtual import VirtualEnvironment

RETENTION = "retention.ms"


def codes(results: Any) -> dict[Any, str]:
    return {name: error.name for name, error in results.errors.items()}


async def test_a_topic_is_described_and_altered(admin: Admin, env: VirtualEnvironment) -> None:
    changes = ConfigChanges(set={RETENTION: "60000"}, append={"cleanup.policy": "compact"})
    assert not (await admin.alter_configs("topic", {"orders": changes})).errors
    found = (await admin.describe_configs("topic", ["orders"])).raise_first()["orders"]
    assert (found[RETENTION].value, found[RETENTION].source) == ("60000", "DYNAMIC_TOPIC_CONFIG")
    assert [each.source for each in found[RETENTION].synonyms][:1] == ["DYNAMIC_TOPIC_CONFIG"]
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["segment.bytes"].source == "DEFAULT_CONFIG"
    changes = ConfigChanges(delete=[RETENTION], subtract={"cleanup.policy": "delete"})
    (await admin.alter_configs("topic", {"orders": changes})).raise_first()
    keys = [RETENTION, "cleanup.policy"]
    found = (await admin.describe_configs("topic", ["orders"], keys=keys)).raise_first()["orders"]
    assert sorted(found) == sorted(keys)
    assert found[RETENTION].source == "DEFAULT_CONFIG"
    assert found["cleanup.policy"].value == "compact"
    assert not env.cluster.history.of("AlterConfigs")


async def test_each_name_has_its_own_error(admin: Admin, env: VirtualEnvironment) -> None:
    good, bad = ConfigChanges(set={RETENTION: "1000"}), ConfigChanges(set={RETENTION: "soon"})
    env.cluster.create_topic("b", 1)
    made = await admin.alter_configs("topic", {"orders": good, "none": good, "b": bad})
    assert list(made.values_by_name) == ["orders"]
    assert codes(made) == {"none": "UNKNOWN_TOPIC_OR_PARTITION", "b": "INVALID_CONFIG"}
    found = await admin.describe_configs("topic", ["orders", "none"])
    assert codes(found) == {"none": "UNKNOWN_TOPIC_OR_PARTITION"}


async def test_a_dry_run_changes_nothing(admin: Admin, env: VirtualEnvironment) -> None:
    changes = ConfigChanges(set={RETENTION: "1000"})
    assert not (await admin.alter_configs("topic", {"orders": changes}, validate_only=True)).errors
    found = (await admin.describe_configs("topic", ["orders"])).raise_first()["orders"]
    assert found[RETENTION].source == "DEFAULT_CONFIG"


async def test_each_broker_is_asked_itself(admin: Admin, env: VirtualEnvironment) -> None:
    changes = ConfigChanges(set={"log.cleaner.threads": "2"})
    (await admin.alter_configs("broker", {2: changes})).raise_first()
    assert [each.node_id for each in env.cluster.history.of("IncrementalAlterConfigs")] == [2]
    found = (await admin.describe_configs("broker", [2, "3"])).raise_first()
    assert sorted(each.node_id for each in env.cluster.history.of("DescribeConfigs")) == [2, 3]
    assert found["2"]["log.cleaner.threads"].source == "DYNAMIC_BROKER_CONFIG"
    assert found["3"]["log.cleaner.threads"].source == "DEFAULT_CONFIG"
    assert found["3"]["node.id"].is_read_only


async def test_a_broker_that_does_not_answer_costs_the_others_nothing(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=0) as admin:
        env.cluster.faults.on("DescribeConfigs", node=2).drop()
        found = await admin.describe_configs("broker", [1, 2, 9])
        assert list(found.values_by_name) == ["1"]
        assert sorted(found.errors) == ["2", "9"]


async def test_a_group_is_described_and_altered(admin: Admin, env: VirtualEnvironment) -> None:
    key = "consumer.session.timeout.ms"
    env.cluster.faults.on("IncrementalAlterConfigs").disconnect(
        "after"
    )  # a change repeated is the same change
    (await admin.alter_configs("group", {"g": ConfigChanges(set={key: "50000"})})).raise_first()
    found = (await admin.describe_configs("group", ["g"])).raise_first()["g"]
    assert (found[key].value, found[key].source) == ("50000", "DYNAMIC_GROUP_CONFIG")


async def test_an_answer_about_another_kind_is_no_answer(env: VirtualEnvironment) -> None:
    def changed(response: Any) -> Any:
        for each in response.results:
            each.resource_type, each.error_code = 120, ErrorCode.UNKNOWN_SERVER_ERROR
        return response

    env.cluster.faults.on("DescribeConfigs").mutate(changed)
    async with Admin(env.bootstrap_servers) as admin:
        assert list((await admin.describe_configs("topic", ["orders"])).raise_first()) == ["orders"]
    async with Admin(env.bootstrap_servers, timeout=0) as admin:
        env.cluster.faults.on("DescribeConfigs").mutate(changed)
        error = (await admin.describe_configs("topic", ["orders"])).errors["orders"]
        assert str(error) == "the response to DescribeConfigs of a broker has no entry for topic 'orders'"


async def test_a_secret_is_never_shown(env: VirtualEnvironment) -> None:
    def leak(response: Any) -> Any:
        config = response.results[0].configs[0]
        config.is_sensitive, config.value = True, "hunter2"
        for synonym in config.synonyms:
            synonym.value = "hunter2"
        return response

    async with Admin(env.bootstrap_servers) as admin:
        env.cluster.faults.on("DescribeConfigs").mutate(leak)
        found = (await admin.describe_configs("topic", ["orders"])).raise_first()["orders"]
        secret = next(each for each in found.values() if each.is_sensitive)
        assert secret.value is None
        assert all(each.value is None for each in secret.synonyms)
        assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(ConfigChanges(set={"ssl.keystore.password": "hunter2"}))


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    good = ConfigChanges(set={RETENTION: "1"})
    cases: list[tuple[str, str, Any]] = [
        ("kind='topics'", "topics", {"orders": good}),
        ("topic='no/topic'", "topic", {"no/topic": good}),
        ("broker=-1", "broker", {-1: good}),
        ("group_id=''", "group", {"": good}),
        ("a mapping", "topic", ["orders"]),
        ("one change or more", "topic", {"orders": ConfigChanges()}),
        ("one change of each name", "topic", {"orders": ConfigChanges(set={"a": "1"}, delete=["a"])}),
        ("value as text", "topic", {"orders": ConfigChanges(set={"a": 1})}),  # type: ignore[dict-item]
        ("several names", "topic", {"orders": ConfigChanges(delete="a")}),
        ("ConfigChanges", "topic", {"orders": {"a": "1"}}),
    ]
    for text, kind, wanted in cases:
        with pytest.raises(ConfigError, match=text):
            await admin.alter_configs(kind, wanted)  # type: ignore[arg-type]
    assert not env.cluster.history.of("IncrementalAlterConfigs", "DescribeConfigs")
