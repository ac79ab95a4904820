"""Read the options `kafka.*`: Kafka client properties, accepted and refused as by Spark's source (`KafkaSourceProvider`).

`asyncgroup.properties.names` maps them to configuration. Features of Java's client that do not exist here are refused, for
example JKS key stores (PEM files can be used) and Kerberos.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from asyncgroup.checks import check_group_id, parse_servers
from asyncgroup.config import ClientConfig, ConsumerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.properties.names import PROPERTIES
from asyncgroup.spark.api_timeout import API_TIMEOUT
from asyncgroup.spark.option_words import KAFKA_PREFIX, SOURCE_WORDS
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.kafka_properties import (
    OptionReader,
    api_timeout,
    as_option_error,
    refuse_other_names,
    separate,
)

__all__ = ["KafkaOptions", "check_servers", "check_tls", "read_kafka", "refuse_oauthbearer"]

_REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "auto.offset.reset": "leave it out; startingOffsets sets where a new query starts, restarted ones use the checkpoint",
    "key.deserializer": "leave it out; keys are bytes, which the query can cast or decode",
    "value.deserializer": "leave it out; values are bytes, which the query can cast or decode",
    "enable.auto.commit": "leave it out; commitOffsets sets whether finished batches are committed",
    "interceptor.classes": "leave it out; interceptors could change the records",
}
"""Refused with any value, as by Spark's source."""

_PRODUCER_PROPERTIES: Final = (
    frozenset(PROPERTIES["ProducerConfig"]) - frozenset(PROPERTIES["ClientConfig"])
) | {"max.block.ms", "chunking", "max.chunk.size"}
"""Properties of the sink, ignored with a warning, as by Java's consumer: options are often shared by source and sink."""

_MEMBER_PROPERTIES: Final = frozenset(
    {
        *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "auto.commit.interval.ms"),
        *("partition.assignment.strategy", "group.protocol", "group.instance.id", "group.remote.assignor"),
    }
)
"""Properties of group members, ignored as by Spark's source, since a query is no member; times are still checked."""

_SOURCE: Final = OptionReader(
    "source",
    SOURCE_WORDS,
    _PRODUCER_PROPERTIES,
    "producer",
    {
        "max.poll.records": (
            "tasks fetch by bytes (fetchBytes), batches are limited by maxOffsetsPerTrigger and maxBytesPerTrigger"
        ),
    },
)

_READ_SEPARATELY: Final = ("bootstrap.servers", "metadata.broker.list", "group.id")

_API_TIMEOUT_NAME: Final = "default.api.timeout.ms"


class KafkaOptions(NamedTuple):
    """The settings from `kafka.*`."""

    bootstrap_servers: str
    config: ConsumerConfig
    """With automatic commits and offset resets disabled: the driver decides about both."""
    group_id: str | None
    fetch_bytes: int | None
    """`kafka.max.partition.fetch.bytes`, if set."""
    api_timeout: float = API_TIMEOUT
    """`kafka.default.api.timeout.ms` in seconds."""
    warnings: tuple[str, ...] = ()
    """About properties without effect; to be logged once per query."""


def read_kafka(properties: Mapping[str, str]) -> KafkaOptions:
    """Return the settings from properties without prefix. Raises OptionError, with prefix and without secrets."""
    for name, allowed in _REFUSED_PROPERTIES.items():
        if name in properties:
            raise OptionError(KAFKA_PREFIX + name, properties[name], allowed)
    words = SOURCE_WORDS.including(properties)
    refuse_other_names(properties, words)
    timed = dict(properties)
    timeout = api_timeout(timed, _API_TIMEOUT_NAME)
    wanted, warnings = separate(timed, _SOURCE)
    _check_members(wanted)
    refuse_oauthbearer(wanted)
    left_out = {*_READ_SEPARATELY, *_MEMBER_PROPERTIES}
    try:
        config, _ = ConsumerConfig.from_properties(
            {name: value for name, value in wanted.items() if name not in left_out}, **_fixed_settings(wanted)
        )
    except ConfigError as error:
        raise as_option_error(error, wanted, words) from None
    check_tls(config, wanted)
    given = "max.partition.fetch.bytes" in wanted or "fetch.message.max.bytes" in wanted
    return KafkaOptions(
        _servers(wanted),
        config,
        _group_id(wanted),
        config.max_partition_fetch_bytes if given else None,
        API_TIMEOUT if timeout is None else timeout,
        warnings,
    )


def refuse_oauthbearer(properties: Mapping[str, str]) -> None:
    """Raise OptionError for OAUTHBEARER, which needs a function for tokens (`OAuthBearer.token_provider`)."""
    for name in ("sasl.mechanism", "sasl.mechanisms"):
        if properties.get(name, "").strip().upper() == "OAUTHBEARER":
            allowed = "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512: tokens need a function, which cannot be an option"
            raise OptionError(KAFKA_PREFIX + name, "OAUTHBEARER", allowed)


def _fixed_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return settings that differ from Kafka's defaults. Metadata requests must not recreate deleted topics."""
    keys: dict[str, Any] = {"auto_commit": False, "auto_offset_reset": "error"}
    if "allow.auto.create.topics" not in properties:
        keys["allow_auto_topic_creation"] = False
    return keys


def _check_members(properties: Mapping[str, str]) -> None:
    for name in sorted(_MEMBER_PROPERTIES & properties.keys()):
        try:
            if name.endswith(".ms"):
                PROPERTIES["ConsumerConfig"][name].read(properties[name])
        except ValueError as error:
            raise OptionError(KAFKA_PREFIX + name, properties[name], str(error)) from None


_TLS_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "ca_file": ("ssl.truststore.location", "ssl.ca.location"),
    "ca_data": ("ssl.truststore.certificates", "ssl.ca.pem"),
    "cert_file": ("ssl.keystore.location", "ssl.certificate.location"),
    "cert_data": ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
}
"""The property names of Java and librdkafka for each field of `Tls`."""


def check_tls(config: ClientConfig, properties: Mapping[str, str]) -> None:
    """Raise OptionError for certificates and keys that cannot be read, before connections fail on executors."""
    if config.security is None or config.security.tls is None:
        return
    try:
        config.security.tls.make_context()
    except ConfigError as error:
        names = _TLS_NAMES.get(error.key, (error.key,))
        name = next((name for name in names if name in properties), names[0])
        raise OptionError(KAFKA_PREFIX + name, error.value, error.allowed) from None


def _servers(properties: Mapping[str, str]) -> str:
    name = "bootstrap.servers" if "bootstrap.servers" in properties else "metadata.broker.list"
    servers = properties.get(name)
    if servers is None:
        raise OptionError(
            f"option {KAFKA_PREFIX}bootstrap.servers is missing: host:port of the brokers, several separated by commas"
        )
    return check_servers(name, servers)


def check_servers(name: str, servers: str) -> str:
    """Return the addresses without spaces around them; raise OptionError if one of them is not an address."""
    try:
        parse_servers(servers)
    except ConfigError as error:
        raise OptionError(KAFKA_PREFIX + name, error.value, error.allowed) from None
    return servers.strip()


def _group_id(properties: Mapping[str, str]) -> str | None:
    group_id = properties.get("group.id")
    if group_id is None:
        return None
    try:
        return check_group_id(group_id)
    except ConfigError as error:
        raise OptionError(f"{KAFKA_PREFIX}group.id", error.value, error.allowed) from None
