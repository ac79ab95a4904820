"""`kafka.*`: properties of Kafka's client, as Spark's source takes and refuses them (`KafkaSourceProvider`).

What they mean stands in `asyncgroup.property_names`. Not all that Java's client can do is there, and what would be
silently something else is refused: stores of JKS, for example (PEM files do), or Kerberos.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from asyncgroup.checks import check_group_id, parse_servers
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.properties import is_secret
from asyncgroup.property_names import BY_CLASS
from asyncgroup.security import HIDDEN
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.option_names import KAFKA

__all__ = ["KafkaOptions", "read_kafka"]

_log = logging.getLogger("asyncgroup.spark")

_REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": "leave it out; startingOffsets says where a new query begins, and later ones go on from there",
    "key.deserializer": "leave it out; keys come as bytes, to be cast or decoded by the query",
    "value.deserializer": "leave it out; values come as bytes, to be cast or decoded by the query",
    "enable.auto.commit": "leave it out; commitOffsets says whether finished batches are committed",
    "interceptor.classes": "leave it out; interceptors could change the records",
}
"""Refused whatever their value, as in Spark's source."""

_PRODUCERS: Final = frozenset(BY_CLASS["ProducerConfig"]) - frozenset(BY_CLASS["ClientConfig"]) | {
    "enable.idempotence",
    "transactional.id",
    "transaction.timeout.ms",
    "partitioner.class",
}
"""A dictionary of options for source and sink has them; Java's consumer warns of them and goes on."""

_MEMBERS: Final = frozenset(
    {
        *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "auto.commit.interval.ms"),
        *("partition.assignment.strategy", "group.protocol", "group.instance.id", "group.remote.assignor"),
    }
)
"""About members of groups, and a source is none: without effect, as in Spark's, but times must be such."""

_OPEN: Final = (".mechanism", ".mechanisms", ".type", ".location", ".algorithm")
"""What no secret's name ends with: such a value helps to see what is wrong."""

_APART: Final = ("bootstrap.servers", "metadata.broker.list", "group.id")


class KafkaOptions(NamedTuple):
    """What `kafka.*` says."""

    bootstrap_servers: str
    config: ConsumerConfig
    """Never commits or resets an offset by itself: those are the driver's to decide."""
    group_id: str | None
    fetch_bytes: int | None
    """`kafka.max.partition.fetch.bytes`, if it is given."""


def read_kafka(properties: Mapping[str, str]) -> KafkaOptions:
    """The options without their prefix; raises OptionError, which names them with it and never shows a secret."""
    for name, allowed in _REFUSED.items():
        if name in properties:
            raise OptionError(KAFKA + name, properties[name], allowed)
    for name in sorted(_PRODUCERS & properties.keys()):
        _log.warning("%s%s is a producer's, and ignored by a source", KAFKA, name)
    wanted = {name: value for name, value in properties.items() if name not in _PRODUCERS}
    left_out = {*_APART, *_MEMBERS}
    _check_members(wanted)
    if wanted.get("sasl.mechanism", "").strip().upper() == "OAUTHBEARER":
        allowed = "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512: tokens need a function, which no option can be"
        raise OptionError(f"{KAFKA}sasl.mechanism", "OAUTHBEARER", allowed)
    try:
        config, _ = ConsumerConfig.from_properties(
            {name: value for name, value in wanted.items() if name not in left_out}, **_fixed(wanted)
        )
    except ConfigError as error:
        raise _named(error) from None
    _check_tls(config)
    given = "max.partition.fetch.bytes" in wanted or "fetch.message.max.bytes" in wanted
    return KafkaOptions(
        _servers(wanted), config, _group_id(wanted), config.max_partition_fetch_bytes if given else None
    )


def _fixed(properties: Mapping[str, str]) -> dict[str, Any]:
    """What is not left to Kafka's defaults. Asking for a topic must not make a deleted one anew."""
    keys: dict[str, Any] = {"auto_commit": False, "auto_offset_reset": "error"}
    if "allow.auto.create.topics" not in properties:
        keys["allow_auto_topic_creation"] = False
    return keys


def _check_members(properties: Mapping[str, str]) -> None:
    for name in sorted(_MEMBERS & properties.keys()):
        try:
            if name.endswith(".ms"):
                BY_CLASS["ConsumerConfig"][name].read(properties[name])
        except ValueError as error:
            raise OptionError(KAFKA + name, properties[name], str(error)) from None


_TLS_NAMES: Final[Mapping[str, str]] = {
    "ca_file": "ssl.truststore.location",
    "ca_data": "ssl.truststore.certificates",
    "cert_file": "ssl.keystore.location",
    "cert_data": "ssl.keystore.certificate.chain",
}


def _check_tls(config: ConsumerConfig) -> None:
    """Certificates that cannot be read are an error of the options, and not of each connection."""
    if config.security is None or config.security.tls is None:
        return
    try:
        config.security.tls.make_context()
    except ConfigError as error:
        raise OptionError(KAFKA + _TLS_NAMES.get(error.key, error.key), error.value, error.allowed) from None


def _servers(properties: Mapping[str, str]) -> str:
    name = "bootstrap.servers" if "bootstrap.servers" in properties else "metadata.broker.list"
    servers = properties.get(name)
    if servers is None:
        raise OptionError(
            f"option {KAFKA}bootstrap.servers must be given: host:port, several separated by commas"
        )
    try:
        parse_servers(servers)
    except ConfigError as error:
        raise OptionError(KAFKA + name, error.value, error.allowed) from None
    return servers.strip()


def _group_id(properties: Mapping[str, str]) -> str | None:
    group_id = properties.get("group.id")
    if group_id is None:
        return None
    try:
        return check_group_id(group_id)
    except ConfigError as error:
        raise OptionError(f"{KAFKA}group.id", error.value, error.allowed) from None


def _named(error: ConfigError) -> OptionError:
    """The error by the option's name; its own words may speak of other properties, without the prefix."""
    if error.allowed is None:
        return OptionError(f"kafka.* options: {error}")
    is_hidden = is_secret(error.key) and not error.key.endswith(_OPEN)
    value = HIDDEN if is_hidden and error.value else error.value
    return OptionError(KAFKA + error.key if "." in error.key else error.key, value, error.allowed)
