"""All configs of a node as DescribeConfigs returns them, security configs, and the levels of loggers."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from asyncgroup.broker import ClusterOptions, EmbeddedCluster, ListenerSecurity
from asyncgroup.broker.control.static_configs import static_configs
from asyncgroup.broker.handlers.config_resources import OpType
from asyncgroup.broker.handlers.node_configs import node_configs
from asyncgroup.broker.log.topic_config_keys import ConfigType
from asyncgroup.broker.loggers import BrokerLoggers
from asyncgroup.broker.metadata.broker_config_keys import (
    BROKER_CONFIG_KEYS,
    READ_ONLY_CONFIGS,
    base_name,
    is_cluster_wide,
)
from asyncgroup.broker.metadata.config_repository import ConfigRepository
from asyncgroup.broker.metadata.coordinator_election import TRANSACTION_PARTITIONS
from asyncgroup.broker.metadata.topics import OFFSETS_PARTITIONS
from asyncgroup.broker.net.frames import MAX_REQUEST_BYTES
from asyncgroup.broker.transactions.coordinator import MAX_TIMEOUT
from asyncgroup.broker.transactions.store import ID_EXPIRATION_MS
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from tests.broker.client import connect
from tests.broker.handlers.test_api_configs import BROKER, GROUP, LOGGER, TOPIC, ask, incremental
from tests.broker.handlers.test_api_settings import described, origins
from tests.broker.internals import controller_of, node_of

MECHANISMS = "sasl.enabled.mechanisms"


async def test_a_node_has_all_configs_of_kafka():
    async with EmbeddedCluster(2) as cluster, connect(cluster) as client:
        configs = await described(client, BROKER, "1", include_documentation=True)
        assert len(configs) == 340
        assert sum(config.read_only for config in configs.values()) == 241
        assert all(config.documentation for config in configs.values())
        assert {name for name, config in configs.items() if config.is_sensitive} == {
            name for name, config in configs.items() if config.config_type == ConfigType.PASSWORD
        }
        assert origins(configs["sasl.kerberos.kinit.cmd"]) == [
            ("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", 5)
        ]
        unset = configs["sasl.login.class"]
        assert (unset.value, unset.config_source, unset.synonyms) == (None, 5, [])


def test_tls_is_described_as_kafka_would_be_configured():
    security = ListenerSecurity(cert_file="broker.pem", key_password="hidden", client_ca_file="ca.pem")
    found = static_configs(ClusterOptions(security=security))
    assert {
        name: value for name, value in found.items() if name.startswith(("ssl.", "security.", "sasl."))
    } == {
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.keystore.location": "broker.pem",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
        "ssl.truststore.type": "PEM",
    }
    assert (
        static_configs(ClusterOptions(nodes=3, default_replication_factor=1)).get(
            "default.replication.factor"
        )
        is None
    )


def test_limits_that_no_option_changes_are_kafkas_defaults():
    for name, value in (
        ("offsets.topic.num.partitions", OFFSETS_PARTITIONS),
        ("socket.request.max.bytes", MAX_REQUEST_BYTES),
        ("transaction.max.timeout.ms", int(MAX_TIMEOUT * 1000)),
        ("transaction.state.log.num.partitions", TRANSACTION_PARTITIONS),
        ("transactional.id.expiration.ms", ID_EXPIRATION_MS),
    ):
        assert BROKER_CONFIG_KEYS[name].default == str(value)


async def test_a_node_knows_the_options_of_its_cluster(tmp_path: Path):
    """They are static; what is as in Kafka is a default."""
    security = ListenerSecurity(users={"ann": "secret"}, mechanisms=["PLAIN"], max_reauth=60.0)
    options = {"offsets_retention_check_interval": 7.0, "retention_check_interval": 9.0, "group_max_size": 5}
    async with EmbeddedCluster(data_dir=tmp_path, security=security, **options) as cluster:  # type: ignore[arg-type]
        static = {each.name: each.value for each in node_configs(node_of(cluster)) if each.source == 4}
    assert {
        MECHANISMS: "PLAIN",
        "connections.max.reauth.ms": "60000",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "log.dirs": str(tmp_path),
        "log.retention.check.interval.ms": "9000",
        "offsets.retention.check.interval.ms": "7000",
        "group.max.size": "5",
        "group.initial.rebalance.delay.ms": "0",
    }.items() <= static.items()
    assert not static.keys() & {"group.max.session.timeout.ms", "num.partitions", "group.consumer.max.size"}


async def test_infinite_durations_are_described_as_the_largest():
    options = {
        "connections_max_idle": math.inf,
        "group_consumer_session_timeout": math.inf,
        "offsets_retention": math.inf,
        "offsets_retention_check_interval": math.inf,
        "retention_check_interval": math.inf,
    }
    async with (
        EmbeddedCluster(group_min_session_timeout=1.001, **options) as cluster,  # type: ignore[arg-type]
        connect(cluster) as client,
    ):
        configs = await described(client, BROKER, "1")
        group = await described(client, GROUP, "g")
    assert {name: configs[name].value for name in configs if configs[name].config_source == 4}.items() >= {
        "connections.max.idle.ms": "-1",
        "group.consumer.session.timeout.ms": "2147483647",
        "group.min.session.timeout.ms": "1001",
        "log.retention.check.interval.ms": "9223372036854775807",
        "offsets.retention.check.interval.ms": "9223372036854775807",
        "offsets.retention.minutes": "2147483647",
    }.items()
    assert group["consumer.session.timeout.ms"].value == "2147483647"


def test_durations_that_are_no_number_are_refused():
    for wrong in (math.nan, -math.inf):
        with pytest.raises(ConfigError, match="offsets_retention"):
            ClusterOptions(offsets_retention=wrong)


async def test_settings_in_other_units_are_described_as_they_were_given():
    """As by Kafka, where the retention of a topic then has no synonym."""
    given = {"log.retention.hours": "24", "log.retention.minutes": "30", "log.roll.hours": "2"}
    async with EmbeddedCluster(settings=given, topics="t") as cluster, connect(cluster) as client:
        node, topic = await described(client, BROKER, "1"), await described(client, TOPIC, "t")
        assert origins(node["log.retention.minutes"]) == [
            ("log.retention.minutes", "30", 4),
            ("log.retention.hours", "24", 4),
            ("log.retention.hours", "168", 5),
        ]
        assert (node["log.retention.ms"].value, node["log.retention.ms"].synonyms) == (None, [])
        assert (topic["retention.ms"].value, topic["retention.ms"].config_source) == ("1800000", 5)
        assert (topic["segment.ms"].value, topic["retention.ms"].synonyms) == ("7200000", [])


def test_the_most_precise_unit_applies():
    for given, expected in (
        ({"log.retention.hours": "1", "log.retention.minutes": "5", "log.retention.ms": "7"}, "7"),
        ({"log.retention.hours": "1", "log.retention.minutes": "5"}, "300000"),
        ({"log.retention.hours": "1"}, "3600000"),
        ({"log.retention.minutes": "-1"}, "-1"),
    ):
        assert ConfigRepository.from_static(given).topic_defaults(1)["retention.ms"] == expected


# -- security ----------------------------------------------------------------------------------------------------


async def test_sasl_settings_are_altered_for_a_broker_and_its_listeners(tmp_path: Path):
    own, secret = f"listener.name.plaintext.{MECHANISMS}", "listener.name.plaintext.plain.sasl.jaas.config"
    async with EmbeddedCluster(data_dir=tmp_path) as cluster, connect(cluster) as client:
        for name, operation, value in (
            (MECHANISMS, OpType.SET, "PLAIN"),
            (MECHANISMS, OpType.APPEND, "SCRAM-SHA-256"),
            (own, OpType.SET, "PLAIN"),
            (secret, OpType.SET, "a secret"),
        ):
            assert await ask(client, incremental(BROKER, "1", (name, operation, value))) == [0]
        assert "a secret" not in str(await described(client, BROKER, "1", include_documentation=True))
    async with EmbeddedCluster(data_dir=tmp_path) as cluster, connect(cluster) as client:
        configs = await described(client, BROKER, "1")
        chain = [(MECHANISMS, "PLAIN,SCRAM-SHA-256", 2), (MECHANISMS, "GSSAPI", 5)]
        assert origins(configs[MECHANISMS]) == chain
        assert origins(configs[own]) == [(own, "PLAIN", 2), *chain]
        hidden = configs[secret]
        assert (hidden.value, hidden.is_sensitive, hidden.read_only) == (None, True, True)
        assert hidden.config_type == ConfigType.PASSWORD
        assert controller_of(cluster).configs.nodes[1][secret] == "a secret"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("", (MECHANISMS, "PLAIN")),
        ("", (f"listener.name.x.{MECHANISMS}", "PLAIN")),
        ("1", ("sasl.login.refresh.buffer.seconds", "99999")),
        ("1", ("listener.name.x.ssl.client.auth", "maybe")),
        ("1", ("sasl.login.class", "a.B")),
        ("1", ("ssl.keystore.password", "secret")),
        ("1", ("principal.builder.class", "a.B")),
        ("1", ("listeners", "PLAINTEXT://:1")),
        ("", ("listener.name.x.max.connections", "many")),
        ("1", ("unstable.api.versions.enable", "true")),
    ],
)
async def test_security_settings_that_are_refused(cluster, client, name, change):
    request = incremental(BROKER, name, (change[0], OpType.SET, change[1]))
    assert await ask(client, request) == [ErrorCode.INVALID_REQUEST]
    assert controller_of(cluster).configs.nodes == {}


def test_the_base_of_a_listeners_config():
    assert base_name("listener.name.x.ssl.client.auth") == "ssl.client.auth"
    assert base_name("listener.name.x.scram-sha-256.sasl.jaas.config") == "sasl.jaas.config"
    assert base_name("listener.name.x") == "listener.name.x"
    assert is_cluster_wide("listener.name.x.max.connections")
    assert not is_cluster_wide("listener.name.x.message.max.bytes")
    assert not is_cluster_wide("ssl.client.auth")
    assert is_cluster_wide("message.max.bytes")
    assert "process.roles" in READ_ONLY_CONFIGS


# -- loggers -----------------------------------------------------------------------------------------------------


async def test_levels_of_loggers():
    package, own = logging.getLogger("asyncgroup.broker"), logging.getLogger("asyncgroup.broker.node")
    before = package.level, own.level
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        for name, change, code in (
            ("1", ("root", OpType.SET, "WARN"), 0),
            ("1", ("asyncgroup.broker.node", OpType.SET, "TRACE"), 0),
            ("1", ("asyncgroup.broker.node", OpType.SET, "warn"), ErrorCode.INVALID_CONFIG),
            ("1", ("asyncgroup.producer", OpType.SET, "INFO"), ErrorCode.INVALID_CONFIG),
            ("1", ("asyncgroup.broker.no_such_module", OpType.SET, "INFO"), ErrorCode.INVALID_CONFIG),
            ("1", ("root", OpType.DELETE, None), ErrorCode.INVALID_REQUEST),
            ("1", ("root", OpType.APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
            ("1", ("root", 9, "INFO"), ErrorCode.UNKNOWN_SERVER_ERROR),
            ("7", ("root", OpType.SET, "INFO"), ErrorCode.INVALID_REQUEST),
        ):
            assert await ask(client, incremental(LOGGER, name, change)) == [code], change
        levels = {name: config.value for name, config in (await described(client, LOGGER, "1")).items()}
        assert (levels["root"], levels["asyncgroup.broker.node"]) == ("WARN", "TRACE")
        assert levels["asyncgroup.broker.metadata.controller"] == "WARN"  # inherited
        assert package.level == logging.WARNING
        request = incremental(LOGGER, "1", ("asyncgroup.broker.node", OpType.DELETE, None))
        request.validate_only = True
        assert await ask(client, request) == [0]
        assert own.level
        request.validate_only = False
        assert await ask(client, request) == [0]
        assert own.getEffectiveLevel() == logging.WARNING
    assert (package.level, own.level) == before


@pytest.mark.parametrize("first_ends", [True, False])
def test_levels_of_two_clusters_in_one_process(first_ends):
    """The level of the cluster that is left applies, and in the end the one before both."""
    package, own = logging.getLogger("asyncgroup.broker"), logging.getLogger("asyncgroup.broker.node")
    before = package.level, own.level
    one, other = BrokerLoggers(), BrokerLoggers()
    one.set_level("root", "DEBUG")
    one.set_level("root", "ERROR")
    other.set_level("root", "TRACE")
    other.set_level("asyncgroup.broker.node", None)
    assert (repr(one), repr(other)) == ("<BrokerLoggers 1 altered>", "<BrokerLoggers 2 altered>")
    (one if first_ends else other).restore()
    assert package.level == (5 if first_ends else logging.ERROR)
    one.set_level("root", "WARN")
    other.restore()
    assert package.level == logging.WARNING
    one.restore()
    one.restore()
    assert (package.level, own.level) == before
    assert repr(one) == repr(other) == "<BrokerLoggers 0 altered>"


def test_levels_between_kafkas():
    loggers = BrokerLoggers()
    for level, name in ((1, "TRACE"), (15, "DEBUG"), (25, "INFO"), (45, "ERROR"), (99, "FATAL")):
        logging.getLogger("asyncgroup.broker.node").setLevel(level)
        assert loggers.levels()["asyncgroup.broker.node"] == name
    logging.getLogger("asyncgroup.broker.node").setLevel(logging.NOTSET)
