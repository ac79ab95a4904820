"""`kafka.*`: configuration of the client, refused properties, hidden secrets."""

from __future__ import annotations

import logging
import pickle

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.security import Plain, Scram, Security, Tls
from asyncgroup.spark.sink.write_settings import write_settings
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.kafka_options import KafkaOptions, read_kafka
from asyncgroup.spark.source.options.parser import read_settings

SERVERS = {"bootstrap.servers": "one:9092"}
TLS = SERVERS | {"security.protocol": "SSL"}
SECRET = "hunter2"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{SECRET}";'


def read(**properties: str) -> KafkaOptions:
    """Read properties; `_` stands for a dot."""
    return read_kafka(SERVERS | {name.replace("_", "."): value for name, value in properties.items()})


def refused(properties: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        read_kafka(properties)
    assert SECRET not in f"{caught.value} {caught.value!r} {vars(caught.value)}"
    assert SECRET not in repr(pickle.loads(pickle.dumps(caught.value)))
    return str(caught.value)


def test_the_configuration_of_the_client():
    kafka = read(
        isolation_level="read_committed",
        client_rack="eu-1",
        client_id="me",
        request_timeout_ms="7000",
        fetch_max_bytes="1000000",
        fetch_max_wait_ms="250",
        fetch_min_bytes="10",
        max_partition_fetch_bytes="70000",
        group_id="orders",
        check_crcs="true",
    )
    config = kafka.config
    assert (kafka.bootstrap_servers, kafka.group_id, kafka.fetch_bytes) == ("one:9092", "orders", 70000)
    assert (config.isolation_level, config.rack_id, config.client_id) == ("read_committed", "eu-1", "me")
    assert (config.request_timeout, config.fetch_max_wait) == (7.0, 0.25)
    assert (config.fetch_max_bytes, config.fetch_min_bytes) == (1000000, 10)
    assert config.max_partition_fetch_bytes == 70000


def test_the_client_commits_resets_and_creates_nothing_by_itself():
    config = read().config
    assert (config.auto_commit, config.auto_offset_reset) == (False, "error")
    assert config.allow_auto_topic_creation is False
    assert read(allow_auto_create_topics="true").config.allow_auto_topic_creation is True


def test_fetch_bytes_default_to_kafkas_property():
    assert read().fetch_bytes is None
    assert read(fetch_message_max_bytes="70000").fetch_bytes == 70000
    options = {
        "kafka.bootstrap.servers": "one:9092",
        "subscribe": "a",
        "kafka.max.partition.fetch.bytes": "70000",
    }
    assert read_settings(options, stream=True).fetch_bytes == 70000
    assert read_settings(options | {"fetchBytes": "1m"}, stream=True).fetch_bytes == 1024**2


@pytest.mark.parametrize(
    ("properties", "security"),
    [
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS},
            Security(tls=Tls(), sasl=Plain("u", SECRET)),
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "u",
                "sasl.password": SECRET,
            },
            Security(sasl=Scram("u", SECRET, "SCRAM-SHA-256")),
        ),
    ],
)
def test_security_settings_reach_the_executors_and_are_never_shown(properties, security):
    prefixed = {f"kafka.{name}": value for name, value in (SERVERS | properties).items()}
    settings = read_settings(prefixed | {"subscribe": "a"}, stream=True)
    assert settings.config.security == security
    assert SECRET not in f"{settings!r} {settings}"
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({}, ["kafka.bootstrap.servers is missing"]),
        ({"bootstrap.servers": "kafka"}, ["kafka.bootstrap.servers='kafka'", "host:port"]),
        ({"bootstrap.servers": f"u:{SECRET}@kafka:9092"}, ["[hidden]"]),
        (SERVERS | {"security.protocol": "TLS"}, ["kafka.security.protocol='TLS'", "SASL_SSL"]),
        (SERVERS | {"sasl.jaas.config": JAAS}, ["kafka.sasl.jaas.config='[hidden]'", "security.protocol"]),
        (
            SERVERS
            | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": SECRET},
            ["kafka.sasl.jaas.config='[hidden]'", "PlainLoginModule"],
        ),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            ["kafka.sasl.password"],
        ),
        (SERVERS | {"sasl.passwrd": SECRET}, ["kafka.sasl.passwrd", "did you mean kafka.sasl.password"]),
        (SERVERS | {"ssl.truststore.password": SECRET}, ["kafka.ssl.truststore.password"]),
        (TLS | {"ssl.truststore.location": "ca.jks"}, ["kafka.ssl.truststore.type='JKS'", "PEM"]),
        (TLS | {"ssl.truststore.type": "PEM", "ssl.truststore.location": "no.pem"}, ["'no.pem'", "exists"]),
        (TLS | {"ssl.ca.pem": SECRET}, ["kafka.ssl.ca.pem", "readable PEM"]),
        (
            TLS | {"ssl.keystore.key": SECRET, "ssl.keystore.certificate.chain": "chain"},
            ["kafka.ssl.keystore.certificate.chain", "readable PEM certificate with its key"],
        ),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            ["kafka.sasl.mechanism='GSSAPI'", "SCRAM-SHA-512"],
        ),
        (
            SERVERS | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            ["kafka.sasl.mechanism='OAUTHBEARER'", "a function, which cannot be an option"],
        ),
        (SERVERS | {"isolation.level": "serializable"}, ["kafka.isolation.level='serializable'"]),
        (SERVERS | {"request.timeout.ms": "-1"}, ["kafka.request.timeout.ms"]),
        (
            SERVERS | {"fetch.max.byte": "5"},
            ["kafka.fetch.max.byte='5'", "did you mean kafka.fetch.max.bytes"],
        ),
        (SERVERS | {"session.timeout.ms": "soon"}, ["kafka.session.timeout.ms='soon'"]),
    ],
)
def test_refused_properties(properties, words):
    text = refused(properties)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "name",
    [
        "auto.offset.reset",
        "key.deserializer",
        "value.deserializer",
        "enable.auto.commit",
        "interceptor.classes",
    ],
)
def test_properties_refused_with_any_value(name):
    for value in ("", "false", "earliest"):
        assert refused(SERVERS | {name: value}).startswith(
            f"kafka.{name}={value!r} is not allowed: leave it out"
        )


def test_properties_of_members_have_no_effect():
    """Spark's documentation recommends a very short session timeout for queries with a group id."""
    quick = read(
        session_timeout_ms="100",
        heartbeat_interval_ms="50",
        max_poll_interval_ms="1",
        group_protocol="consumer",
        partition_assignment_strategy="org.example.Ours",
    )
    assert quick == read()


def test_producer_properties_cause_a_warning():
    kafka = read(acks="all", linger_ms="5", transactional_id="t", enable_idempotence="true")
    assert kafka._replace(warnings=()) == read()
    assert kafka.warnings == tuple(
        f"kafka.{name} is a producer property, ignored by the source"
        for name in ("acks", "enable.idempotence", "linger.ms", "transactional.id")
    )


def test_properties_of_javas_client_only_cause_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "asyncgroup"):
        kafka = read(receive_buffer_bytes="65536", max_poll_records="500")
    assert kafka._replace(warnings=()) == read()
    first, second = kafka.warnings
    assert first.startswith(
        "kafka.max.poll.records has no effect on the source: tasks fetch by bytes (fetchBytes)"
    )
    assert second.startswith("kafka.receive.buffer.bytes has no effect on the source: ")
    assert caplog.records == [], "options are read several times for a query, but warnings are logged once"


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_delegation_tokens_are_refused(value):
    """They need the SCRAM extension `tokenauth` (KIP-48); without it the broker only reports failed authentication."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}
    jaas = f'{module} required username="id" password="{SECRET}" tokenauth={value};'
    text = refused(SERVERS | sasl | {"sasl.jaas.config": jaas})
    assert text.startswith("kafka.sasl.jaas.config=")
    assert "delegation tokens (KIP-48) are not supported" in text
    read_kafka(SERVERS | sasl | {"sasl.jaas.config": jaas.replace(value, "false")})


def test_settings_for_executors_are_pickled_with_secrets() -> None:
    """Executors need them for connecting; a configuration by itself cannot be pickled (`asyncgroup.secret`)."""
    options = {
        "kafka.bootstrap.servers": "a:1",
        "subscribe": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": SECRET,
    }
    reading = read_settings(options, stream=True)
    writing = write_settings({**options, "topic": "t"})
    for settings in (reading, writing):
        with pytest.raises(UsageError, match="secrets_in_pickles"):
            pickle.dumps(settings.config)
        copied = pickle.loads(pickle.dumps(settings))
        assert copied == settings
        assert type(copied) is type(settings)
        assert SECRET not in repr(copied)
