"""Configurations from Kafka's property names: the meaning of each, warnings for ignored ones, and errors."""

from __future__ import annotations

import logging
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.properties.ignored import IGNORED
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED
from asyncgroup.security import OAuthBearer, Plain, Scram, Security, Tls

MODULES = "org.apache.kafka.common.security"
CLIENTS = "org.apache.kafka.clients.consumer"


def consumer(properties: dict[str, object], **keys: Any) -> ConsumerConfig:
    return ConsumerConfig.from_properties(properties, **keys).config


# --- the meaning of each name -----------------------------------------------------------------------------------------


def test_a_consumer_as_java_configures_it() -> None:
    made, rest = ConsumerConfig.from_properties(
        {
            "bootstrap.servers": "a:9092,b:9092",
            "group.id": "orders",
            "session.timeout.ms": "45000",
            "heartbeat.interval.ms": 3000,
            "max.poll.interval.ms": "300000",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "client.rack": "eu-1",
            "enable.auto.commit": "false",
            "fetch.max.wait.ms": "250",
            "partition.assignment.strategy": f"{CLIENTS}.RangeAssignor, {CLIENTS}.RoundRobinAssignor",
        }
    )
    assert made == ConsumerConfig(
        session_timeout=45.0,
        heartbeat_interval=3.0,
        rebalance_timeout=300.0,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        rack_id="eu-1",
        auto_commit=False,
        fetch_max_wait=0.25,
        assignors=("range", "roundrobin"),
    )
    assert rest == {"bootstrap.servers": "a:9092,b:9092", "group.id": "orders"}


EXAMPLES: dict[str, list[tuple[object, Any]]] = {
    "client.id": [("me", "me")],
    "request.timeout.ms": [("20000", 20.0)],
    "socket.timeout.ms": [(20_000, 20.0)],
    "socket.connection.setup.timeout.ms": [("5000", 5.0)],
    "retry.backoff.ms": [("50", 0.05)],
    "retry.backoff.max.ms": [("1000", 1.0)],
    "metadata.max.age.ms": [("300000", 300.0)],
    "topic.metadata.refresh.interval.ms": [("-1", 0.0), ("60000", 60.0)],
    "connections.max.idle.ms": [("-1", float("inf")), ("540000", 540.0)],
    "receive.message.max.bytes": [("1000000", 1_000_000)],
    "max.in.flight.requests.per.connection": [("1", 1)],
    "max.in.flight": [(7, 7)],
    "client.dns.lookup": [("use_all_dns_ips", "use_all_dns_ips")],
    "socket.keepalive.enable": [("true", 15.0), (False, None)],
    "allow.auto.create.topics": [("False", False), (True, True)],
    "session.timeout.ms": [(" 6000 ", 6.0)],
    "heartbeat.interval.ms": [("1000", 1.0)],
    "max.poll.interval.ms": [("60000", 60.0)],
    "group.protocol": [("CONSUMER", "consumer"), ("classic", "classic")],
    "group.remote.assignor": [("uniform", "uniform"), ("", None)],
    "partition.assignment.strategy": [
        ("range", ("range",)),
        ([f"{CLIENTS}.StickyAssignor", "range"], ("sticky", "range")),
    ],
    "group.instance.id": [("worker-1", "worker-1"), ("", None)],
    "auto.offset.reset": [
        ("latest", "latest"),
        ("smallest", "earliest"),
        ("end", "latest"),
        ("none", "error"),
        ("by_duration:PT1H", timedelta(hours=1)),
        ("by_duration:P7DT0.5S", timedelta(days=7, seconds=0.5)),
        ("by_duration:PT90M", timedelta(minutes=90)),
    ],
    "enable.auto.commit": [("true", True)],
    "auto.commit.enable": [("false", False)],
    "auto.commit.interval.ms": [("5000", 5.0)],
    "fetch.min.bytes": [("1024", 1024)],
    "fetch.max.wait.ms": [("100", 0.1)],
    "fetch.wait.max.ms": [("100", 0.1)],
    "fetch.max.bytes": [("1000", 1000)],
    "max.partition.fetch.bytes": [("1000", 1000)],
    "fetch.message.max.bytes": [("1000", 1000)],
    "queued.max.messages.kbytes": [("64", 65_536)],
    "check.crcs": [("true", True)],
    "isolation.level": [("READ_UNCOMMITTED", "read_uncommitted")],
    "client.rack": [("r", "r")],
    "acks": [("all", "all"), ("-1", "all"), ("1", 1), (0, 0)],
    "enable.idempotence": [("true", True), (False, False)],
    "batch.num.messages": [("1000", 1000)],
    "request.required.acks": [("-1", "all")],
    "linger.ms": [("5", 0.005), ("0.5", 0.0005)],
    "queue.buffering.max.ms": [("5", 0.005)],
    "batch.size": [("16384", 16_384)],
    "max.request.size": [("1000", 1000)],
    "message.max.bytes": [("1000", 1000)],
    "buffer.memory": [("1000", 1000)],
    "queue.buffering.max.kbytes": [("1", 1024)],
    "partitioner.class": [
        ("", "default"),
        (f"{CLIENTS.replace('consumer', 'producer')}.RoundRobinPartitioner", "round_robin"),
        (f"{CLIENTS.replace('consumer', 'producer')}.UniformStickyPartitioner", "sticky"),
    ],
    "partitioner.ignore.keys": [("false", "default"), ("true", "sticky")],
    "partitioner.adaptive.partitioning.enable": [("false", False)],
    "partitioner": [("murmur2_random", "murmur2_random"), ("consistent", "consistent")],
    "queue.buffering.max.messages": [("100000", 100_000), ("0", None)],
    "compression.type": [("GZIP", "gzip"), ("zstd", "zstd")],
    "compression.codec": [("none", "none")],
    "compression.level": [("-1", None)],
    "compression.gzip.level": [("-1", None)],
    "compression.lz4.level": [],
    "compression.zstd.level": [],
    "delivery.timeout.ms": [("60000", 60.0)],
    "transactional.id": [("orders-1", "orders-1"), ("", None)],
    "transaction.timeout.ms": [("60000", 60.0)],
    "metadata.max.idle.ms": [("60000", 60.0)],
    "message.timeout.ms": [("60000", 60.0)],
}
CLASSES: dict[str, type[ClientConfig]] = {
    cls.__name__: cls for cls in (ClientConfig, ConsumerConfig, ProducerConfig)
}


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, names in PROPERTIES.items() for name in names]
)
def test_every_name_is_read(cls: str, name: str) -> None:
    key = PROPERTIES[cls][name].key
    assert key in {field.name for field in fields(CLASSES[cls])}
    for text, value in EXAMPLES[name]:
        made, rest = CLASSES[cls].from_properties({name: text})
        assert getattr(made, key) == value
        assert rest == {}


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
@pytest.mark.parametrize("name", ["compression.{}.level", "compression.level"])
def test_compression_levels(name: str, codec: str) -> None:
    """Java's names and librdkafka's."""
    made, _ = ProducerConfig.from_properties({"compression.type": codec, name.format(codec): "7"})
    assert made.compression_level == 7


def test_tables_do_not_overlap() -> None:
    tables: list[set[str]] = [
        *map(set, PROPERTIES.values()),
        set(REST),
        set(SECURITY),
        set(UNSUPPORTED),
        set(IGNORED),
    ]
    assert len(set().union(*tables)) == sum(map(len, tables))


def test_keyword_arguments_override_properties() -> None:
    assert consumer({"session.timeout.ms": "20000"}, session_timeout=7.0).session_timeout == 7.0
    assert consumer({}, client_id="x") == ConsumerConfig(client_id="x")
    with pytest.raises(ConfigError, match=r"sesion_timeout=7\.0 .*did you mean session_timeout"):
        consumer({}, sesion_timeout=7.0)


def test_none_counts_as_not_given_and_servers_may_be_a_list() -> None:
    assert consumer({"group.instance.id": None}) == ConsumerConfig()
    _, rest = ClientConfig.from_properties({"metadata.broker.list": ["a:1", "b:2"]})
    assert rest == {"bootstrap.servers": "a:1,b:2"}


# --- ignored properties, and errors -----------------------------------------------------------------------------------


def test_each_ignored_property_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncgroup.config"):
        consumer(
            {"key.deserializer": "StringDeserializer", "metrics.num.samples": "2", "max.poll.records": "500"}
        )
    assert [record.getMessage() for record in caplog.records] == [
        f"property {name} has no effect in asyncgroup and is ignored: {why}"
        for name, why in (
            ("key.deserializer", "records have bytes: decode them in the handler"),
            ("metrics.num.samples", "hooks (hooks=…) report what metrics count"),
            ("max.poll.records", "an argument of claim.batches(max_records=…)"),
        )
    ]


def test_the_availability_timeout_of_the_partitioner_is_reported_as_not_supported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "asyncgroup.config"):
        ProducerConfig.from_properties({"partitioner.availability.timeout.ms": "30000"})
    (record,) = caplog.records
    assert "partitioner.availability.timeout.ms has no effect" in record.getMessage()
    assert "partitions of a slow broker are not left out (KIP-794)" in record.getMessage()


@pytest.mark.parametrize(
    ("cls", "properties", "error"),
    [
        (ConsumerConfig, {"sesion.timeout.ms": "1"}, "sesion.timeout.ms='1' .*did you mean session.timeout.ms"),
        (ConsumerConfig, {"xyzzy": "1"}, "xyzzy='1' is not allowed: there is no such key$"),
        (ConsumerConfig, {"linger.ms": "5"}, "only in a ProducerConfig; this is a ConsumerConfig"),
        (ClientConfig, {"session.timeout.ms": "5"}, "only in a ConsumerConfig; this is a ClientConfig"),
        (ProducerConfig, {"group.id": "g"}, "group.id='g' .*only in a ConsumerConfig"),
        (ConsumerConfig, {"session.timeout.ms": "10s"}, "'10s' is not allowed: a number of milliseconds"),
        (ConsumerConfig, {"session.timeout.ms": True}, "a number of milliseconds"),
        (ConsumerConfig, {"session.timeout.ms": "0"}, "session.timeout.ms='0' .*session_timeout=0.0; None or a number of sec"),
        (ConsumerConfig, {"fetch.min.bytes": "1.5"}, "a whole number"),
        (ConsumerConfig, {"enable.auto.commit": "yes"}, "true or false"),
        (ConsumerConfig, {"isolation.level": "serializable"}, "isolation.level=.*one of read_uncommitted, read_comm"),
        (ConsumerConfig, {"auto.offset.reset": "nearest"}, "one of earliest, .*or by_duration:PT1H"),
        (ConsumerConfig, {"auto.offset.reset": "by_duration:1h"}, "ISO 8601"),
        (ConsumerConfig, {"auto.offset.reset": "by_duration:PT"}, "ISO 8601"),
        (ConsumerConfig, {"auto.offset.reset": "by_duration:-PT1H"}, "ISO 8601"),
        (ConsumerConfig, {"auto.offset.reset": "by_duration:P9999999999D"}, "999999999 days"),
        (ConsumerConfig, {"auto.offset.reset": "by_duration:PT0S"}, "a timedelta above 0"),
        (ConsumerConfig, {"partition.assignment.strategy": "com.example.Mine"}, "RangeAssignor.*roundrobin"),
        (ConsumerConfig, {"partition.assignment.strategy": f"{CLIENTS}.Odd"}, "RangeAssignor"),
        (ConsumerConfig, {"group.protocol": "eager"}, "group.protocol='eager' .*one of classic, consumer"),
        (
            ConsumerConfig,
            {"group.protocol": "consumer", "session.timeout.ms": "45000"},
            "session.timeout.ms='45000' .*consumer.session.timeout.ms at the brokers",
        ),
        (ProducerConfig, {"enable.idempotence": "true", "acks": "1"}, "None or False with acks=1"),
        (ProducerConfig, {"transactional.id": "t", "acks": "1"}, "transactional.id='t' .*only with acks='all'"),
        (ProducerConfig, {"partitioner.class": "com.example.Mine"}, "pass a function as partitioner"),
        (ProducerConfig, {"acks": "2"}, "one of 0, 1, all"),
        (
            ConsumerConfig,
            {"session.timeout.ms": "3000", "heartbeat.interval.ms": "3000"},
            r"heartbeat.interval.ms='3000' .*below session_timeout=3.0 \(session.timeout.ms\)",
        ),
        (
            ConsumerConfig,
            {"max.poll.interval.ms": "7200000"},
            r"max.poll.interval.ms='7200000' .*: max_poll_interval=7200.0; at most 3600 seconds; .*=0 turns it off$",
        ),
        (ConsumerConfig, {"session.timeout.ms": "7200000"}, "session_timeout=7200.0; at most 3600$"),
        (ConsumerConfig, {"session.timeout.ms": "2000"}, "session.timeout.ms='2000' .*above heartbeat_interval=3.0, its default$"),
        (
            ConsumerConfig,
            {"fetch.max.wait.ms": "100", "fetch.wait.max.ms": "200"},
            "fetch.wait.max.ms='200' .*the same as fetch.max.wait.ms='100': both mean fetch_max_wait",
        ),
        (
            ConsumerConfig,
            {"bootstrap.servers": "a:1", "metadata.broker.list": "b:1"},
            "metadata.broker.list='b:1' .*bootstrap.servers='a:1'",
        ),
    ],
)  # fmt: skip
def test_errors_name_key_value_and_what_is_allowed(
    cls: type[ClientConfig], properties: Any, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        cls.from_properties(properties)


def test_two_names_of_one_key_may_have_the_same_value() -> None:
    assert consumer({"fetch.max.wait.ms": "100", "fetch.wait.max.ms": 100}).fetch_max_wait == 0.1


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=10), max_size=3))
def test_anything_else_is_a_config_error(properties: dict[str, object]) -> None:
    refused = None
    try:
        consumer(properties)
    except ConfigError as error:
        refused = error.key
    assert refused in {None, *properties}


# --- security ---------------------------------------------------------------------------------------------------------


def secure(**properties: str) -> Security | None:
    return ClientConfig.from_properties(
        {key.replace("__", "."): value for key, value in properties.items()}
    ).config.security


PLAIN_JAAS = f'{MODULES}.plain.PlainLoginModule required username="alice" password="s3cret";'
SCRAM_JAAS = f'{MODULES}.scram.ScramLoginModule required\n  username=alice\n  password="a\\"b=\\\\;c" ;'


@pytest.mark.parametrize(
    ("properties", "made"),
    [
        ({"security.protocol": "PLAINTEXT"}, None),
        ({"security.protocol": "ssl"}, Security(tls=Tls())),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_JAAS},
            Security(sasl=Plain("alice", "s3cret")),
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": SCRAM_JAAS},
            Security(tls=Tls(), sasl=Scram("alice", 'a"b=\\;c', "SCRAM-SHA-256")),
        ),
        (
            {
                "security.protocol": "sasl_ssl",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "s3cret",
                "ssl.endpoint.identification.algorithm": "none",
            },
            Security(tls=Tls(check_hostname=False), sasl=Scram("alice", "s3cret")),
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": "CA",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "CERT",
                "ssl.keystore.key": "KEY",
                "ssl.key.password": "s3cret",
            },
            Security(tls=Tls(ca_data="CA", cert_data="CERT", key_data="KEY", key_password="s3cret")),
        ),
    ],
)  # fmt: skip
def test_security(properties: dict[str, object], made: Security | None) -> None:
    assert ClientConfig.from_properties(properties).config.security == made


def test_files_in_both_spellings(tmp_path: Path) -> None:
    file = tmp_path / "some.pem"
    file.write_text("")
    java = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(file)}
    java |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}
    assert ClientConfig.from_properties({"security.protocol": "SSL", **java}).config.security == Security(
        tls=Tls(ca_file=str(file), cert_file=str(file))
    )
    other = {
        "ssl.ca.location": str(file),
        "ssl.certificate.location": str(file),
        "ssl.key.location": str(file),
    }
    assert ClientConfig.from_properties({"security.protocol": "SSL", **other}).config.security == Security(
        tls=Tls(ca_file=str(file), cert_file=str(file), key_file=str(file))
    )


async def token() -> str:
    return "t"


def test_security_that_properties_cannot_express_is_a_keyword_argument() -> None:
    given = Security(tls=Tls(), sasl=OAuthBearer(token))
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    assert ClientConfig.from_properties(properties, security=given).config.security == given


SASL = {"security.protocol": "SASL_SSL"}
SSL = {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"security.protocol": "TLS"}, "'TLS' is not allowed: one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl.password": "s3cret"}, "sasl.password=.*only with security.protocol=SASL_PLAINTEXT or SASL_SSL"),
        ({**SSL, "sasl.mechanism": "PLAIN"}, "sasl.mechanism=.*SASL_SSL, and that is SSL"),
        ({"ssl.ca.location": "/ca"}, "ssl.ca.location=.*only with security.protocol=SSL or SASL_SSL"),
        (SASL, "sasl.mechanism=None .*one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "'GSSAPI'"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, r"security=Security\(sasl=OAuthBearer\(token_provider\)\)"),
        ({**SASL, "sasl.mechanism": "PLAIN"}, "sasl.username=.*given, or in sasl.jaas.config"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password=''"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"}, "sasl.mechanisms=.*sasl.mechanism is given"),
        (
            {**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_JAAS, "sasl.password": "s3cret"},
            "sasl.password=.*sasl.jaas.config is given",
        ),
        (
            {**SASL, "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": PLAIN_JAAS},
            "sasl.jaas.config='PlainLoginModule' .*the module of sasl.mechanism=SCRAM-SHA-256",
        ),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_JAAS[:-1]}, r"sasl.jaas.config='\[hidden\]'"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": "s3cret"}, "one login module"),
        ({**SSL, "ssl.truststore.location": "/t.jks"}, "ssl.truststore.type='JKS' .*PEM; .*Java's default type"),
        ({**SSL, "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type='PKCS12' .*PEM"),
        ({**SSL, "ssl.ca.location": "/nowhere"}, "ssl.ca.location='/nowhere' .*a file that exists"),
        ({**SSL, "ssl.ca.location": "/a", "ssl.ca.pem": "CA"}, "ssl.ca.pem=.*ssl.ca.location is given"),
        ({**SSL, "ssl.endpoint.identification.algorithm": "ldaps"}, "https, none or nothing"),
        ({**SSL, "ssl.truststore.password": "s3cret"}, "PEM files of certificates have no password"),
        ({**SSL, "enable.ssl.certificate.verification": "false"}, r"Tls\(context"),
        ({"sasl.pasword": "s3cret", "my.secret": "s3cret"}, "sasl.pasword=.*did you mean sasl.password"),
        ({"my.secret": "s3cret"}, r"my.secret='\[hidden\]'"),
        ({"basic.auth.user.info": "u:s3cret"}, r"basic.auth.user.info='\[hidden\]'"),
        ({"apikey": "s3cret"}, r"apikey='\[hidden\]'"),
        ({"pass": "s3cret"}, r"pass='\[hidden\]'"),
    ],
)  # fmt: skip
def test_contradicting_security_properties(properties: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        ClientConfig.from_properties(properties)
    shown = str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    "properties", [None, "session.timeout.ms=5", [("group.id", "g")], {1: "a"}, {b"group.id": "g"}]
)
def test_properties_that_are_not_a_mapping_of_strings(properties: Any) -> None:
    with pytest.raises(ConfigError, match=r"properties(=| of type)"):
        ConsumerConfig.from_properties(properties)
