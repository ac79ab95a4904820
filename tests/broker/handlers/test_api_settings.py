"""Dynamic broker and group configs over the wire: altering, describing, effect, persistence over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers.config_resources import OpType
from asyncgroup.broker.metadata.broker_config_keys import BROKER_CONFIG_KEYS
from asyncgroup.broker.metadata.group_config_keys import GROUP_CONFIG_KEYS
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import Client, connect
from tests.broker.handlers.test_api_configs import BROKER, GROUP, TOPIC, ask, incremental
from tests.broker.internals import controller_of
from tests.broker.requests import put


async def described(client: Client, kind: int, name: str, **more: Any) -> dict[str, Any]:
    """Return the configs by name."""
    cls = m.DescribeConfigsRequest
    asked = cls([cls.DescribeConfigsResource(kind, name, None)], include_synonyms=True, **more)
    (result,) = (await client.ask(asked)).results
    assert not result.error_code, result
    return {config.name: config for config in result.configs}


def origins(config: Any) -> list[tuple[str, str | None, int]]:
    assert config.config_source == config.synonyms[0].source
    assert config.value == config.synonyms[0].value.strip()
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


async def test_max_message_bytes_cluster_wide_and_for_one_node():
    name, topics = "message.max.bytes", ("max.message.bytes", "100")
    async with EmbeddedCluster(2) as cluster, connect(cluster) as client, connect(cluster, 2) as second:
        cluster.create_topic("t", 2)
        cluster.create_topic("own", 1, configs=dict([topics]))
        cluster.move_leader("t", 0, 1)
        cluster.move_leader("t", 1, 2)
        big = batch(b"a" * 1000)
        assert await ask(client, incremental(BROKER, "", (name, OpType.SET, "900"))) == [0]
        for node, index in ((client, 0), (second, 1)):
            (result,) = await put(node, cluster, big, first=index)
            assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await ask(client, incremental(BROKER, "1", (name, OpType.SET, " 5000 "))) == [0]
        (result,) = await put(client, cluster, big)
        assert result.error_code == 0
        (result,) = await put(second, cluster, big, first=1)
        assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
        chain = [(name, " 5000 ", 2), (name, "900", 3), (name, "1048588", 5)]
        assert origins((await described(client, BROKER, "1"))[name]) == chain
        assert origins((await described(second, BROKER, "2"))[name]) == chain[1:]
        assert origins((await described(client, BROKER, ""))[name]) == chain[1:2]
        assert origins((await described(client, TOPIC, "t"))[topics[0]]) == chain
        assert origins((await described(client, TOPIC, "own"))[topics[0]]) == [(*topics, 1), *chain]
        cluster.move_leader("t", 1, 1)  # the leader's own config applies
        (result,) = await put(client, cluster, big, first=1)
        assert result.error_code == 0
        assert await ask(client, incremental(BROKER, "1", (name, OpType.DELETE, None))) == [0]
        assert origins((await described(client, BROKER, "1"))[name]) == chain[1:]
        (result,) = await put(client, cluster, big)
        assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_retention_of_all_topics():
    async with EmbeddedCluster(retention_check_interval=10.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs={"segment.ms": "1000"})
        old = batch(b"a")  # with timestamps of 1970
        await put(client, cluster, old)
        await put(client, cluster, old)
        assert len(cluster.records("t")) == 2
        assert await ask(client, incremental(BROKER, "", ("log.retention.ms", OpType.SET, "1000"))) == [0]
        value = (await described(client, TOPIC, "t"))["retention.ms"]
        assert origins(value) == [("log.retention.ms", "1000", 3), ("log.retention.hours", "168", 5)]
        await asyncio.sleep(25)
        assert cluster.records("t") == []


async def test_refused_settings(cluster, client):
    bad, config = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
    for kind, name, change, error in (
        (BROKER, "1", ("num.partitions", OpType.SET, "3"), bad),
        (BROKER, "", ("num.partitions", OpType.SET, "3"), bad),
        (BROKER, "1", ("num.partitions", OpType.DELETE, None), 0),
        (BROKER, "1", ("log.retention.ms", OpType.SET, "x"), bad),
        (BROKER, "", ("message.max.bytes", OpType.SET, "-1"), bad),
        (BROKER, "1", ("compression.type", OpType.SET, "nope"), bad),
        (BROKER, "", ("num.io.threads", OpType.SET, "0"), bad),
        (BROKER, "", ("message.max.bytes", OpType.APPEND, "1"), config),
        (BROKER, "1", ("ssl.keystore.location", OpType.SET, "x"), bad),
        (BROKER, "", ("listener.name.x.ssl.keystore.location", OpType.SET, "x"), bad),
        (BROKER, "1", ("min.insync.replicas", OpType.SET, "2"), config),
        (BROKER, "", ("min.insync.replicas", OpType.DELETE, None), config),
        (GROUP, "g", ("consumer.session.timeout.ms", OpType.SET, "1"), config),
        (GROUP, "g", ("consumer.session.timeout.ms", OpType.SET, "60001"), config),
        (GROUP, "g", ("consumer.session.timeout.ms", OpType.SET, "x"), config),
    ):
        assert await ask(client, incremental(kind, name, change)) == [error], change
    assert controller_of(cluster).configs.cluster == {"min.insync.replicas": "1"}
    assert controller_of(cluster).configs.nodes == {}


async def test_a_list_config_and_an_unknown_config(client):
    assert await ask(client, incremental(BROKER, "", ("log.cleanup.policy", OpType.APPEND, "compact"))) == [0]
    assert await ask(client, incremental(BROKER, "1", ("my.plugin.password", OpType.SET, "x"))) == [0]
    configs = await described(client, BROKER, "1")
    assert configs["log.cleanup.policy"].value == "delete,compact"
    hidden = configs["my.plugin.password"]
    assert (hidden.value, hidden.is_sensitive, hidden.read_only) == (None, True, True)
    rate = "leader.replication.throttled.rate"
    assert rate not in configs
    assert await ask(client, incremental(BROKER, "1", (rate, OpType.SET, "100"))) == [0]
    assert (await described(client, BROKER, "1"))[rate].value == "100"


async def test_all_settings_at_once(cluster, client):
    cls = m.AlterConfigsRequest
    for name, configs, error in (
        ("1", {"log.segment.bytes": "2000000", "log.retention.ms": "5"}, 0),
        ("1", {"log.retention.ms": "6"}, 0),
        ("1", {"num.partitions": "6"}, ErrorCode.INVALID_REQUEST),
        ("", {"log.retention.ms": "6"}, ErrorCode.INVALID_CONFIG),
    ):
        settings = [cls.AlterableConfig(*item) for item in configs.items()]
        request = cls([cls.AlterConfigsResource(BROKER, name, settings)])
        assert await ask(client, request) == [error]
    assert controller_of(cluster).configs.nodes == {1: {"log.retention.ms": "6"}}


async def test_group_configs(client):
    name = "consumer.session.timeout.ms"
    before = await described(client, GROUP, "g", include_documentation=True)
    assert set(before) == set(GROUP_CONFIG_KEYS)
    assert all(config.documentation for config in before.values())
    assert origins(before[name]) == [(f"group.{name}", "45000", 5)]
    assert await ask(client, incremental(GROUP, "g", (name, OpType.SET, "46000"))) == [0]
    after = await described(client, GROUP, "g")
    assert origins(after[name]) == [(name, "46000", 8), (f"group.{name}", "45000", 5)]
    listed = await client.ask(m.ListConfigResourcesRequest([GROUP]), 1)
    assert [one.resource_name for one in listed.config_resources] == ["g"]
    assert await ask(client, incremental(GROUP, "g", (name, OpType.DELETE, None))) == [0]
    assert not (await client.ask(m.ListConfigResourcesRequest([GROUP]), 1)).config_resources


async def test_all_configs_are_documented(cluster, client):
    cluster.create_topic("t")
    for kind, name in ((BROKER, "1"), (TOPIC, "t")):
        configs = await described(client, kind, name, include_documentation=True)
        assert all(config.documentation for config in configs.values())
        assert all(config.documentation is None for config in (await described(client, kind, name)).values())
    assert set(BROKER_CONFIG_KEYS) - set(await described(client, BROKER, "1")) == {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }


async def test_settings_survive_a_restart(tmp_path: Path):
    changes = (
        (BROKER, "", ("message.max.bytes", OpType.SET, "900")),
        (BROKER, "2", ("log.retention.ms", OpType.SET, "5")),
        (GROUP, "g", ("consumer.session.timeout.ms", OpType.SET, "46000")),
        (GROUP, "gone", ("consumer.session.timeout.ms", OpType.SET, "46000")),
        (GROUP, "gone", ("consumer.session.timeout.ms", OpType.DELETE, None)),
    )
    async with EmbeddedCluster(2, data_dir=tmp_path) as cluster, connect(cluster, 2) as client:
        cluster.create_topic("t")
        for kind, name, change in changes:
            assert await ask(client, incremental(kind, name, change)) == [0]
    async with EmbeddedCluster(2, data_dir=tmp_path) as cluster, connect(cluster) as client:
        settings = controller_of(cluster).configs
        assert settings.cluster == {"message.max.bytes": "900", "min.insync.replicas": "1"}
        assert settings.nodes == {2: {"log.retention.ms": "5"}}
        assert settings.groups == {"g": {"consumer.session.timeout.ms": "46000"}}
        cluster.move_leader("t", 0, 1)
        (result,) = await put(client, cluster, batch(b"a" * 1000))
        assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_static_settings_of_a_cluster():
    given = {
        "message.max.bytes": "900",
        "log.retention.hours": "2",
        "log.roll.hours": "1",
        "log.roll.ms": "7",
    }
    async with EmbeddedCluster(settings=given) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        configs = await described(client, TOPIC, "t")
        assert origins(configs["max.message.bytes"]) == [
            ("message.max.bytes", "900", 4),
            ("message.max.bytes", "1048588", 5),
        ]
        assert configs["retention.ms"].value == "7200000"
        assert configs["segment.ms"].value == "7"
        (result,) = await put(client, cluster, batch(b"a" * 1000))
        assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
    for wrong in ({"num.partitions": "3"}, {"log.retention.ms": "x"}, {"log.retention.ms": 5}):
        with pytest.raises(ConfigError):
            EmbeddedCluster(settings=wrong)  # type: ignore[arg-type]


async def test_options_of_the_cluster_are_described_under_kafkas_names():
    async with (
        EmbeddedCluster(connections_max_idle=5.0, queued_max_request_bytes=1_000_000) as cluster,
        connect(cluster) as client,
    ):
        configs = await described(client, BROKER, "1")
        for name, value in (("connections.max.idle.ms", "5000"), ("queued.max.request.bytes", "1000000")):
            assert (configs[name].value, configs[name].config_source, configs[name].read_only) == (
                value,
                4,
                True,
            )
