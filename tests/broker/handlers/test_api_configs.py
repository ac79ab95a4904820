"""Topic and broker configs over the wire, and their validation by Kafka's rules."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.handlers.config_resources import (
    AlterConfigOp,
    OpType,
    apply_changes,
)
from asyncgroup.broker.log.topic_config_keys import TOPIC_CONFIG_KEYS, ConfigType
from asyncgroup.broker.log.topic_configs import LogConfig, check_configs, topic_configs
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import Client, connect
from tests.broker.requests import put

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


# -- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "cleanup.policy",
            ["compact", "delete", " delete , compact", "delete,delete", ""],
            ["abc", "delete,x"],
        ),
        ("compression.type", ["gzip", "uncompressed", "producer"], ["none", "GZIP", ""]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10", "-2"]),
        ("compression.lz4.level", ["1", "17"], ["0", "18"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["logappendtime"]),
        ("retention.ms", ["-1", "0", str(2**63 - 1), " 5 "], ["-2", str(2**63), "1.5", "", "1_000"]),
        ("retention.bytes", ["-1", "-3"], ["x"]),
        ("max.message.bytes", ["0", str(2**31 - 1)], ["-1", str(2**31)]),
        ("min.insync.replicas", ["1"], ["0"]),
        ("segment.bytes", [str(1 << 20)], [str((1 << 20) - 1)]),
        ("internal.segment.bytes", ["14"], ["x"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["-0.1", "1.1", "x"]),
        ("preallocate", ["true", "FALSE"], ["1", ""]),
        ("remote.storage.enable", ["false"], ["true", "x"]),
        ("leader.replication.throttled.replicas", ["", "*", "1:2", "1:2,3:4"], ["abc", "1"]),
        ("foo", [], ["1"]),
    ],
)
def test_allowed_and_refused_values(name, good, bad):
    for value in good:
        check_configs({name: value})
        LogConfig.of({name: value})
    for value in [*bad, None]:
        with pytest.raises(Refused) as caught:
            check_configs({name: value})
        assert caught.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        (
            {"segment.bytes": "5"},
            "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            {"cleanup.policy": "delete,burn"},
            "Invalid value burn for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            {"min.cleanable.dirty.ratio": "2"},
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        ({"flush.ms": "x", "foo": "1"}, "Unknown topic config name: foo"),
        ({"foo": "1", "a": None, "b": None}, "Null value not supported for topic configs: a,b"),
    ],
)
def test_refusals_are_worded_as_kafkas(configs, text):
    with pytest.raises(Refused) as caught:
        check_configs(configs)
    assert str(caught.value) == text


async def test_a_topic_that_exists_is_refused_before_its_configs_and_those_before_its_numbers():
    async with EmbeddedCluster(topics="t") as cluster:
        for name, partitions, factor, configs, code in (
            ("t", 0, 9, {"flush.ms": "x"}, ErrorCode.TOPIC_ALREADY_EXISTS),
            ("u", 0, 9, {"flush.ms": "x"}, ErrorCode.INVALID_CONFIG),
            ("u", 0, 0, {}, ErrorCode.INVALID_REPLICATION_FACTOR),
            ("u", 0, 9, {}, ErrorCode.INVALID_PARTITIONS),
            ("u", 1, 9, {}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ):
            with pytest.raises(Refused) as caught:
                cluster.create_topic(name, partitions, factor, configs=configs)
            assert caught.value.code == code
        with pytest.raises(Refused, match="Topic 't' already exists\\."):
            cluster.create_topic("t")


def test_min_compaction_lag_above_max_is_refused():
    check_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(Refused, match=r"min.compaction.lag.ms \(6\) > max.compaction.lag.ms \(5\)"):
        check_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


@given(
    st.sampled_from([k for k, v in TOPIC_CONFIG_KEYS.items() if v.type in (ConfigType.INT, ConfigType.LONG)]),
    st.integers(-(2**65), 2**65),
)
def test_any_number_is_either_refused_or_parsed(name, number):
    configs = {name: str(number)}
    try:
        check_configs(configs)
    except Refused:
        return
    LogConfig.of(configs)
    assert (name, str(number)) in [
        (config.name, config.value) for config in topic_configs(configs, lambda _: [], {})
    ]


def test_the_defaults_are_allowed():
    check_configs(
        {name: key.default for name, key in TOPIC_CONFIG_KEYS.items() if name != "compression.type"}
    )
    assert LogConfig.of({}).delete
    assert not LogConfig.of({}).compact
    assert LogConfig.of({"compression.type": "uncompressed"}).compression == "none"
    assert LogConfig.of({"internal.segment.bytes": "50"}).segment_bytes == 50


def change(*changes: tuple[str, int, str | None], **configs: str) -> dict[str, str | None]:
    before: dict[str, str | None] = {name.replace("_", "."): value for name, value in configs.items()}
    return apply_changes(before, TOPIC_CONFIG_KEYS, [AlterConfigOp(*one) for one in changes])


def test_incremental_changes():
    policy = "cleanup.policy"
    assert change(("flush.ms", OpType.SET, "1")) == {"flush.ms": "1"}
    assert change(("flush.ms", OpType.DELETE, None), flush_ms="1") == {}
    assert change(("flush.ms", OpType.DELETE, None)) == {}
    assert change((policy, OpType.APPEND, "compact")) == {policy: "delete,compact"}  # appended to the default
    assert change((policy, OpType.APPEND, "delete"), cleanup_policy="delete") == {policy: "delete"}
    assert change((policy, OpType.SUBTRACT, "delete,x"), cleanup_policy="delete,compact") == {
        policy: "compact"
    }
    for one, error in (
        (("flush.ms", OpType.APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("flush.ms", 9, "1"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        with pytest.raises(Refused) as caught:
            change(one)
        assert caught.value.code == error


# -- over the wire -----------------------------------------------------------------------------------------------


def incremental(kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False):
    request = m.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(*one) for one in changes]
    return request([request.AlterConfigsResource(kind, name, configs)], validate)


def whole(name: str, *configs: tuple[str, str | None], validate: bool = False):
    request = m.AlterConfigsRequest
    wanted = [request.AlterableConfig(*one) for one in configs]
    return request([request.AlterConfigsResource(TOPIC, name, wanted)], validate)


async def ask(client: Client, request, version: int | None = None) -> list[int]:
    answer = await client.ask(request, version)
    assert all(bool(one.error_code) == bool(one.error_message) for one in answer.responses)
    return [one.error_code for one in answer.responses]


@pytest.mark.parametrize("version", range(2))
async def test_incremental_alter_configs(cluster, client, version):
    cluster.create_topic("t", 2, configs={"retention.ms": "5000"})
    request = incremental(
        TOPIC, "t", ("max.message.bytes", OpType.SET, "100"), ("retention.ms", OpType.DELETE, None)
    )
    request.validate_only = True
    assert await ask(client, request, version) == [0]
    assert cluster.topic("t").configs == {"retention.ms": "5000"}
    request.validate_only = False
    assert await ask(client, request, version) == [0]
    assert cluster.topic("t").configs == {"max.message.bytes": "100"}
    for result in await put(client, cluster, batch(b"a" * 100), batch(b"a")):
        assert result.error_code == (0 if result.index else ErrorCode.MESSAGE_TOO_LARGE)
    cluster.create_partitions("t", 3)
    (result,) = await put(client, cluster, batch(b"a" * 100), first=2)
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs(cluster, client, version):
    cluster.create_topic("t", configs={"retention.ms": "5000"})
    assert await ask(client, whole("t", ("flush.ms", "1"), validate=True), version) == [0]
    assert cluster.topic("t").configs == {"retention.ms": "5000"}
    assert await ask(client, whole("t", ("flush.ms", "1")), version) == [0]
    assert cluster.topic("t").configs == {"flush.ms": "1"}
    for configs, error in (
        ([("flush.ms", None)], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", "1"), ("flush.ms", "2")], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", "x")], ErrorCode.INVALID_CONFIG),
    ):
        assert await ask(client, whole("t", *configs), version) == [error]
    assert await ask(client, whole("nope"), version) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert cluster.topic("t").configs == {"flush.ms": "1"}


async def test_alter_configs_errors(cluster, client):
    cluster.create_topic("t")
    one = ("flush.ms", OpType.SET, "1")
    for kind, name, error in (
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "b@d", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ErrorCode.INVALID_CONFIG),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (METRICS, "m", ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ErrorCode.INVALID_CONFIG),
        (LOGGER, "7", ErrorCode.INVALID_REQUEST),
        (77, "x", ErrorCode.INVALID_REQUEST),
    ):
        assert await ask(client, incremental(kind, name, one)) == [error]
    for changes, error in (
        ([], ErrorCode.NONE),
        ([one, one], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", OpType.SET, None)], ErrorCode.INVALID_REQUEST),
        ([("foo", OpType.SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("foo", OpType.DELETE, None)], ErrorCode.NONE),
    ):
        assert await ask(client, incremental(TOPIC, "t", *changes)) == [error]
    twice = incremental(TOPIC, "t", one)
    twice.resources *= 2
    assert await ask(client, twice) == [ErrorCode.INVALID_REQUEST] * 2
    assert cluster.topic("t").configs == {}


async def described(client: Client, kind: int, name: str, *keys: str, synonyms: bool = True):
    request = m.DescribeConfigsRequest
    asked = request([request.DescribeConfigsResource(kind, name, list(keys) or None)], synonyms)
    (result,) = (await client.ask(asked)).results
    return result


async def test_config_sources(cluster, client):
    cluster.create_topic("t", configs={"cleanup.policy": " compact , delete"})
    result = await described(client, TOPIC, "t", "cleanup.policy", "min.insync.replicas", "flush.ms")
    found = {c.name: (c.value, c.config_source) for c in result.configs}
    assert found == {
        "cleanup.policy": ("compact,delete", 1),
        "min.insync.replicas": ("1", 3),
        "flush.ms": (str(2**63 - 1), 5),
    }
    synonyms = {c.name: [(s.name, s.value, s.source) for s in c.synonyms] for c in result.configs}
    assert synonyms == {
        "cleanup.policy": [
            ("cleanup.policy", "compact,delete", 1),
            ("log.cleanup.policy", "delete", 5),
        ],
        "min.insync.replicas": [("min.insync.replicas", "1", 3), ("min.insync.replicas", "1", 5)],
        "flush.ms": [],
    }


async def test_describe_configs_of_a_node():
    async with EmbeddedCluster(nodes=2, default_partitions=7, racks=["a", "b"]) as cluster:
        async with connect(cluster, 2) as client:
            result = await described(client, BROKER, "2")
            values = {c.name: c.value for c in result.configs}
            assert (result.error_code, values["node.id"], values["num.partitions"]) == (0, "2", "7")
            assert values["listeners"] == f"PLAINTEXT://127.0.0.1:{cluster.nodes[2].port}"
            assert (values["broker.rack"], values["message.max.bytes"]) == ("b", "1048588")
            assert {c.name for c in result.configs if c.read_only} >= {"node.id", "num.partitions"}
            assert all(c.synonyms or c.value is None for c in result.configs)
            assert len(values) == len(result.configs)
            result = await described(client, BROKER, "")
            assert [(c.name, c.config_source) for c in result.configs] == [("min.insync.replicas", 3)]
            for kind, name in ((BROKER, "1"), (BROKER, "x"), (LOGGER, ""), (GROUP, ""), (77, "x")):
                assert (await described(client, kind, name)).error_code == ErrorCode.INVALID_REQUEST
            result = await described(client, METRICS, "m")
            assert (result.error_code, result.configs) == (0, [])
            assert "root" in [c.name for c in (await described(client, LOGGER, "2")).configs]


async def test_list_config_resources():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        for kinds, expected in (
            ([], [("1", LOGGER), ("2", LOGGER), ("1", BROKER), ("2", BROKER), ("t", TOPIC)]),
            ([TOPIC, GROUP], [("t", TOPIC)]),
        ):
            answer = await client.ask(m.ListConfigResourcesRequest(kinds), 1)
            assert [(one.resource_name, one.resource_type) for one in answer.config_resources] == expected
        assert (await client.ask(m.ListConfigResourcesRequest([77]), 1)).error_code == 35
        assert (await client.ask(m.ListConfigResourcesRequest(), 0)).config_resources == []
