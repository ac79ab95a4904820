"""Kafka's own names for configuration: Java's (`ConsumerConfig.java` and its siblings), and librdkafka's where they differ.

Each stands for one key of ours and a way to read its value; or is known to mean nothing here; or asks for something
that this client does not do, which is an error rather than a surprise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

__all__ = ["ASSIGNORS", "BY_CLASS", "IGNORED", "IGNORED_PREFIXES", "REFUSED", "REST", "SECURITY", "Property"]

KIB: Final = 1024


class Property(NamedTuple):
    """The key that a name stands for, and how its value is read; `read` raises ValueError with what is allowed."""

    key: str
    read: Callable[[object], Any]


# --- values -----------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return str(value).strip()


def _flag(value: object) -> bool:
    text = _text(value).lower()
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _whole(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}", _text(value), re.ASCII):
        raise ValueError("a whole number")
    return int(_text(value))


def _milliseconds(value: object) -> float:
    text = _text(value)
    # librdkafka takes fractions (linger.ms=0.5)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}(\.[0-9]*)?", text, re.ASCII):
        raise ValueError("a number of milliseconds")
    return float(text) / 1000


def _instead_of_minus_one(substitute: float) -> Callable[[object], float]:
    """Milliseconds, where -1 says "never"."""
    return lambda value: substitute if _text(value) == "-1" else _milliseconds(value)


def _kibibytes(value: object) -> int:
    return _whole(value) * KIB


def _choice(**words: Any) -> Callable[[object], Any]:
    """One of several words, in any case, each with what it stands for."""

    def read(value: object) -> Any:
        try:
            return words[_text(value).lower()]
        except KeyError:
            raise ValueError("one of " + ", ".join(words)) from None

    return read


_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
"""ISO 8601 as `java.time.Duration` reads it, without signs."""

_RESETS: Final = _choice(
    earliest="earliest", smallest="earliest", beginning="earliest",
    latest="latest", largest="latest", end="latest",
    none="error", error="error",
)  # fmt: skip


def _reset(value: object) -> Any:
    """`by_duration:PT1H` is KIP-1106; the words beside Java's are librdkafka's."""
    kind, colon, said = _text(value).partition(":")
    if kind.lower() != "by_duration" or not colon:
        try:
            return _RESETS(value)
        except ValueError as error:
            raise ValueError(f"{error}, or by_duration:PT1H with any ISO 8601 duration") from None
    found = _DURATION.fullmatch(said)
    parts = {unit: float(number) for unit, number in (found.groupdict() if found else {}).items() if number}
    if not parts or said.upper().endswith("T"):
        raise ValueError("by_duration: with an ISO 8601 duration above 0 such as PT1H or P7D")
    try:
        return timedelta(**parts)
    except OverflowError:
        raise ValueError("by_duration: with at most 999999999 days") from None


ASSIGNORS: Final[Mapping[str, str]] = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
"""Names of Kafka's assignors by their classes in `org.apache.kafka.clients.consumer`."""


def _assignors(value: object) -> tuple[str, ...]:
    """Java's classes or the names themselves, with commas or as a list; which there are is for the group to say."""
    items = value if isinstance(value, (list, tuple)) else _text(value).split(",")
    names = []
    for item in items:
        package, _, name = str(item).strip().rpartition(".")
        if package not in ("", "org.apache.kafka.clients.consumer") or (package and name not in ASSIGNORS):
            known = ", ".join(f"org.apache.kafka.clients.consumer.{each}" for each in ASSIGNORS)
            raise ValueError(f"classes out of {known}, or names such as {', '.join(ASSIGNORS.values())}")
        names.append(ASSIGNORS.get(name, name))
    return tuple(name for name in names if name)


def _acks(value: object) -> Any:
    text = _text(value).lower()
    return "all" if text in ("all", "-1") else _choice(**{"0": 0, "1": 1, "all": "all"})(text)


def _keepalive(value: object) -> float | None:
    return 15.0 if _flag(value) else None


def _only(*words: str, because: str) -> Callable[[object], None]:
    """Values that ask for nothing that we don't do anyway."""

    def read(value: object) -> None:
        if _text(value).lower() not in words:
            raise ValueError(f"{' or '.join(repr(word) if word else 'nothing' for word in words)}: {because}")

    return read


# --- names ------------------------------------------------------------------------------------------------------------

_BACKOFF_FOREVER: Final = float("inf")

_CLIENT: Final[Mapping[str, Property]] = {
    "client.id": Property("client_id", _text),
    "request.timeout.ms": Property("request_timeout", _milliseconds),
    "socket.timeout.ms": Property("request_timeout", _milliseconds),
    "socket.connection.setup.timeout.ms": Property("connect_timeout", _milliseconds),
    "retry.backoff.ms": Property("retry_backoff", _milliseconds),
    "retry.backoff.max.ms": Property("retry_backoff_max", _milliseconds),
    "metadata.max.age.ms": Property("metadata_refresh_interval", _milliseconds),
    "topic.metadata.refresh.interval.ms": Property("metadata_refresh_interval", _instead_of_minus_one(0.0)),
    "connections.max.idle.ms": Property("connections_max_idle", _instead_of_minus_one(_BACKOFF_FOREVER)),
    "receive.message.max.bytes": Property("max_response_size", _whole),
    "max.in.flight.requests.per.connection": Property("max_in_flight_requests", _whole),
    "max.in.flight": Property("max_in_flight_requests", _whole),
    "client.dns.lookup": Property("client_dns_lookup", _text),
    "socket.keepalive.enable": Property("tcp_keepalive", _keepalive),
    "allow.auto.create.topics": Property("allow_auto_topic_creation", _flag),
}

_CONSUMER: Final[Mapping[str, Property]] = {
    "session.timeout.ms": Property("session_timeout", _milliseconds),
    "heartbeat.interval.ms": Property("heartbeat_interval", _milliseconds),
    # what Java's consumer sends as its rebalance timeout (KIP-62)
    "max.poll.interval.ms": Property("rebalance_timeout", _milliseconds),
    "partition.assignment.strategy": Property("assignors", _assignors),
    "group.instance.id": Property("group_instance_id", lambda value: _text(value) or None),
    "auto.offset.reset": Property("auto_offset_reset", _reset),
    "enable.auto.commit": Property("auto_commit", _flag),
    "auto.commit.interval.ms": Property("auto_commit_interval", _milliseconds),
    "fetch.min.bytes": Property("fetch_min_bytes", _whole),
    "fetch.max.wait.ms": Property("fetch_max_wait", _milliseconds),
    "fetch.wait.max.ms": Property("fetch_max_wait", _milliseconds),
    "fetch.max.bytes": Property("fetch_max_bytes", _whole),
    "max.partition.fetch.bytes": Property("max_partition_fetch_bytes", _whole),
    "fetch.message.max.bytes": Property("max_partition_fetch_bytes", _whole),
    "queued.max.messages.kbytes": Property("buffer_bytes", _kibibytes),
    "check.crcs": Property("check_crcs", _flag),
    "isolation.level": Property("isolation_level", lambda value: _text(value).lower()),
    "client.rack": Property("rack_id", _text),
}

_PRODUCER: Final[Mapping[str, Property]] = {
    "acks": Property("acks", _acks),
    "request.required.acks": Property("acks", _acks),
    "linger.ms": Property("linger", _milliseconds),
    "queue.buffering.max.ms": Property("linger", _milliseconds),
    "batch.size": Property("batch_size", _whole),
    "max.request.size": Property("max_request_size", _whole),
    "message.max.bytes": Property("max_request_size", _whole),
    "buffer.memory": Property("buffer_bytes", _whole),
    "queue.buffering.max.kbytes": Property("buffer_bytes", _kibibytes),
    "compression.type": Property("compression_type", lambda value: _text(value).lower()),
    "compression.codec": Property("compression_type", lambda value: _text(value).lower()),
    "delivery.timeout.ms": Property("delivery_timeout", _milliseconds),
    "message.timeout.ms": Property("delivery_timeout", _milliseconds),
}

BY_CLASS: Final[Mapping[str, Mapping[str, Property]]] = {
    "ClientConfig": _CLIENT,
    "ConsumerConfig": _CONSUMER,
    "ProducerConfig": _PRODUCER,
}
"""Names by the class that their keys belong to."""

REST: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap.servers",
    "metadata.broker.list": "bootstrap.servers",
    "group.id": "group.id",
}
"""Names that are no configuration here but arguments of Cluster, ConsumerGroup and Producer."""

SECURITY: Final[frozenset[str]] = frozenset(
    {
        *["security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username"],
        *["sasl.password", "ssl.endpoint.identification.algorithm", "ssl.truststore.location"],
        *["ssl.truststore.type", "ssl.truststore.certificates", "ssl.ca.location", "ssl.ca.pem"],
        *["ssl.keystore.location", "ssl.keystore.type", "ssl.keystore.certificate.chain", "ssl.keystore.key"],
        *["ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem"],
        *["ssl.key.password"],
    }
)
"""Names that together make the `security` value (`asyncgroup.security_properties`)."""

REFUSED: Final[Mapping[str, Callable[[object], None]]] = {
    "group.protocol": _only("classic", because="the consumer protocol of KIP-848 is not spoken yet"),
    "transactional.id": _only("", because="there are no transactions yet"),
    "enable.idempotence": _only("false", because="the producer is not idempotent yet"),
    "partitioner.class": _only("", because="give a function as partitioner"),
    "partitioner.ignore.keys": _only("false", because="give a function as partitioner"),
    "partitioner": _only("murmur2_random", because="for others give a function as partitioner"),
    "interceptor.classes": _only("", because="give objects as interceptors"),
    "enable.ssl.certificate.verification": _only("true", because="for anything else give a Tls(context=…)"),
    "ssl.truststore.password": _only("", because="PEM files of certificates have no password"),
    "ssl.keystore.password": _only("", because="PEM files take ssl.key.password"),
    "ssl.cipher.suites": _only("", because="give a Tls(context=…)"),
    "ssl.engine.factory.class": _only("", because="give a Tls(context=…)"),
}
"""Names that are allowed as long as their value asks for nothing that this client doesn't do."""

IGNORED: Final[frozenset[str]] = frozenset(
    {
        # Java's: what is a type, a hook or an argument here, or has no counterpart
        *["key.deserializer", "value.deserializer", "key.serializer", "value.serializer"],
        *["max.poll.records", "default.api.timeout.ms", "exclude.internal.topics", "security.providers"],
        *["send.buffer.bytes", "receive.buffer.bytes", "reconnect.backoff.ms", "reconnect.backoff.max.ms"],
        *["socket.connection.setup.timeout.max.ms", "metric.reporters", "enable.metrics.push"],
        *["auto.include.jmx.reporter", "group.remote.assignor", "config.providers", "retries", "max.block.ms"],
        *["metadata.max.idle.ms", "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms"],
        *["partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"],
        *["transaction.timeout.ms", "transaction.two.phase.commit.enable", "share.acknowledgement.mode", "share.acquire.mode"],
        *["ssl.protocol", "ssl.enabled.protocols", "ssl.provider", "ssl.trustmanager.algorithm"],
        *["ssl.keymanager.algorithm", "ssl.secure.random.implementation"],
        # librdkafka's
        *["api.version.request", "broker.version.fallback", "broker.address.ttl", "broker.address.family"],
        *["debug", "log_level", "log.connection.close", "log.queue", "statistics.interval.ms", "error_cb"],
        *["socket.nagle.disable", "socket.send.buffer.bytes", "socket.receive.buffer.bytes"],
        *["socket.max.fails", "message.copy.max.bytes", "message.send.max.retries", "queue.buffering.max.messages"],
        *["batch.num.messages", "queued.min.messages", "fetch.error.backoff.ms", "enable.partition.eof"],
        *["enable.auto.offset.store", "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.sparse"],
        *["sticky.partitioning.linger.ms", "enable.random.seed"],
        *["coordinator.query.interval.ms", "group.protocol.type"],
    }
)  # fmt: skip
"""Names that Kafka's clients know and that mean nothing here; each is warned about."""

IGNORED_PREFIXES: Final[tuple[str, ...]] = (
    *(
        "metrics.",
        "compression.",
        "sasl.kerberos.",
        "sasl.login.",
        "sasl.oauthbearer.",
        "sasl.client.callback.",
    ),
    *("confluent.", "schema.registry."),
)
"""Families of such names."""
