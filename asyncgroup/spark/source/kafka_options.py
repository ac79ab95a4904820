"""`kafka.*`: properties of Kafka's client, as Spark's source takes and refuses them (`KafkaSourceProvider`).

What they mean stands in `asyncgroup.property_names`. Not all that Java's client can do is there, and what would be
silently something else is refused: stores of JKS, for example (PEM files do), or Kerberos.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from asyncgroup.checks import check_group_id, parse_servers
from asyncgroup.config import ClientConfig, ConsumerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.ignored_properties import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties import is_secret
from asyncgroup.property_names import BY_CLASS
from asyncgroup.security import HIDDEN
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.option_names import KAFKA_PREFIX

__all__ = [
    "KafkaOptions",
    "as_option_error",
    "check_servers",
    "check_tls",
    "read_kafka",
    "refuse_oauthbearer",
]

_REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "auto.offset.reset": "leave it out; startingOffsets says where a new query begins, and later ones go on from there",
    "key.deserializer": "leave it out; keys come as bytes, to be cast or decoded by the query",
    "value.deserializer": "leave it out; values come as bytes, to be cast or decoded by the query",
    "enable.auto.commit": "leave it out; commitOffsets says whether finished batches are committed",
    "interceptor.classes": "leave it out; interceptors could change the records",
}
"""Refused whatever their value, as in Spark's source."""

_PRODUCER_PROPERTIES: Final = frozenset(BY_CLASS["ProducerConfig"]) - frozenset(BY_CLASS["ClientConfig"]) | {
    "enable.idempotence",
    "transactional.id",
    "transaction.timeout.ms",
    "partitioner.class",
}
"""A dictionary of options for source and sink has them; Java's consumer warns of them and goes on."""

_MEMBER_PROPERTIES: Final = frozenset(
    {
        *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "auto.commit.interval.ms"),
        *("partition.assignment.strategy", "group.protocol", "group.instance.id", "group.remote.assignor"),
    }
)
"""About members of groups, and a source is none: without effect, as in Spark's, but times must be such."""

_PUBLIC_SUFFIXES: Final = (".mechanism", ".mechanisms", ".type", ".location", ".algorithm")
"""What no secret's name ends with: such a value helps to see what is wrong."""

_NO_EFFECT_PREFIXES: Final = tuple(IGNORED_PREFIXES)

_READ_SEPARATELY: Final = ("bootstrap.servers", "metadata.broker.list", "group.id")


class KafkaOptions(NamedTuple):
    """What `kafka.*` says."""

    bootstrap_servers: str
    config: ConsumerConfig
    """Never commits or resets an offset by itself: those are the driver's to decide."""
    group_id: str | None
    fetch_bytes: int | None
    """`kafka.max.partition.fetch.bytes`, if it is given."""
    warnings: tuple[str, ...] = ()
    """Properties without effect, to be logged once per query."""


def read_kafka(properties: Mapping[str, str]) -> KafkaOptions:
    """The options without their prefix; raises OptionError, which names them with it and never shows a secret."""
    for name, allowed in _REFUSED_PROPERTIES.items():
        if name in properties:
            raise OptionError(KAFKA_PREFIX + name, properties[name], allowed)
    wanted = {name: value for name, value in properties.items() if name not in _PRODUCER_PROPERTIES}
    ignored = {
        name
        for name in wanted.keys() - _MEMBER_PROPERTIES
        if name in IGNORED or name.startswith(_NO_EFFECT_PREFIXES)
    }
    left_out = {*_READ_SEPARATELY, *_MEMBER_PROPERTIES, *ignored}
    _check_members(wanted)
    refuse_oauthbearer(wanted)
    try:
        config, _ = ConsumerConfig.from_properties(
            {name: value for name, value in wanted.items() if name not in left_out}, **_fixed_settings(wanted)
        )
    except ConfigError as error:
        raise as_option_error(error, wanted) from None
    check_tls(config, wanted)
    given = "max.partition.fetch.bytes" in wanted or "fetch.message.max.bytes" in wanted
    return KafkaOptions(
        _servers(wanted),
        config,
        _group_id(wanted),
        config.max_partition_fetch_bytes if given else None,
        (
            *(
                f"{KAFKA_PREFIX}{name} is a producer's, and ignored by a source"
                for name in sorted(_PRODUCER_PROPERTIES & properties.keys())
            ),
            *(
                f"{KAFKA_PREFIX}{name} has no effect on a source: {_reason_ignored(name)}"
                for name in sorted(ignored)
            ),
        ),
    )


def _reason_ignored(name: str) -> str:
    if name == "max.poll.records":
        return "tasks fetch by bytes (fetchBytes), batches are limited by maxOffsetsPerTrigger and maxBytesPerTrigger"
    return IGNORED.get(name) or next(
        why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)
    )


def refuse_oauthbearer(properties: Mapping[str, str]) -> None:
    """Raise OptionError for OAUTHBEARER, whose tokens come from a function (`OAuthBearer.token_provider`)."""
    for name in ("sasl.mechanism", "sasl.mechanisms"):
        if properties.get(name, "").strip().upper() == "OAUTHBEARER":
            allowed = (
                "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512: tokens need a function, which no option can be"
            )
            raise OptionError(KAFKA_PREFIX + name, "OAUTHBEARER", allowed)


def _fixed_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """What is not left to Kafka's defaults. Asking for a topic must not make a deleted one anew."""
    keys: dict[str, Any] = {"auto_commit": False, "auto_offset_reset": "error"}
    if "allow.auto.create.topics" not in properties:
        keys["allow_auto_topic_creation"] = False
    return keys


def _check_members(properties: Mapping[str, str]) -> None:
    for name in sorted(_MEMBER_PROPERTIES & properties.keys()):
        try:
            if name.endswith(".ms"):
                BY_CLASS["ConsumerConfig"][name].read(properties[name])
        except ValueError as error:
            raise OptionError(KAFKA_PREFIX + name, properties[name], str(error)) from None


_TLS_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "ca_file": ("ssl.truststore.location", "ssl.ca.location"),
    "ca_data": ("ssl.truststore.certificates", "ssl.ca.pem"),
    "cert_file": ("ssl.keystore.location", "ssl.certificate.location"),
    "cert_data": ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
}
"""Java's name of each key of `Tls`, and librdkafka's."""


def check_tls(config: ClientConfig, properties: Mapping[str, str]) -> None:
    """Raise OptionError for certificates and keys that cannot be read; connections would fail on the executors."""
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
            f"option {KAFKA_PREFIX}bootstrap.servers must be given: host:port, several separated by commas"
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


def as_option_error(error: ConfigError, properties: Mapping[str, str]) -> OptionError:
    """The error by the option's name, without secrets; its own words may name other properties, without the prefix."""
    if error.allowed is None:
        return OptionError(f"kafka.* options: {error}")
    is_hidden = is_secret(error.key) and not error.key.endswith(_PUBLIC_SUFFIXES)
    value = HIDDEN if is_hidden and error.value else error.value
    is_property = "." in error.key or error.key in properties
    return OptionError(KAFKA_PREFIX + error.key if is_property else error.key, value, error.allowed)
