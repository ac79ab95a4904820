"""Kafka's property names: Java's (`ConsumerConfig.java`, `ProducerConfig.java`, …), and librdkafka's where they differ.

Each property either maps to a configuration key and a function that parses its value, or names a feature that this
client lacks; then every value that would turn the feature on is an error. Properties without effect are in
`ignored.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

__all__ = ["ASSIGNORS", "PROPERTIES", "REST", "SECURITY", "UNSUPPORTED", "AllowedValues", "Property"]

KIB: Final = 1024


class Property(NamedTuple):
    """The key that a property stands for; `read` parses its value and raises ValueError with what is allowed."""

    key: str
    read: Callable[[object], Any]
    also: str = ""
    """A second key with the same value."""


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
    # librdkafka accepts fractions (linger.ms=0.5)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}(\.[0-9]*)?", text, re.ASCII):
        raise ValueError("a number of milliseconds")
    return float(text) / 1000


def _instead_of_minus_one(substitute: float) -> Callable[[object], float]:
    """Return a parser for milliseconds in which -1 means `substitute`, in seconds."""
    return lambda value: substitute if _text(value) == "-1" else _milliseconds(value)


def _kibibytes(value: object) -> int:
    return _whole(value) * KIB


def _choice(**words: Any) -> Callable[[object], Any]:
    """Return a parser for one of several words, in upper or lower case, each with its value."""

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
    """Parse auto.offset.reset: Java's words and librdkafka's, and `by_duration:PT1H` (KIP-1106)."""
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
"""Names of Kafka's assignors by class name in `org.apache.kafka.clients.consumer`."""


def _assignors(value: object) -> tuple[str, ...]:
    """Parse Java's class names or assignor names, comma-separated or as a list; the configuration checks the names."""
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


_LIBRDKAFKAS_PARTITIONERS: Final = _choice(
    **{name: name for name in ("random", "consistent", "consistent_random", "murmur2")},
    **{name: name for name in ("murmur2_random", "fnv1a", "fnv1a_random")},
)

_JAVAS_PARTITIONERS: Final[Mapping[str, str]] = {
    "": "default",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    # removed in Kafka 4.0, but still in many configurations
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "default",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "sticky",
}


def _partitioner_class(value: object) -> str:
    try:
        return _JAVAS_PARTITIONERS[_text(value)]
    except KeyError:
        known = ", ".join(name for name in _JAVAS_PARTITIONERS if name)
        raise ValueError(f"nothing or one of {known}; for any other pass a function as partitioner") from None


def _keepalive(value: object) -> float | None:
    return 15.0 if _flag(value) else None


class AllowedValues:
    """The accepted values of a property of a feature that this client lacks: those that leave the feature off.

    `because` says what is missing, or what to use instead.
    """

    def __init__(self, *words: str, because: str) -> None:
        self.words = words
        self.because = because

    def __call__(self, value: object) -> None:
        """Raise ValueError for any other value."""
        if _text(value).lower() not in self.words:
            words = " or ".join(repr(word) if word else "nothing" for word in self.words)
            raise ValueError(f"{words}: {self.because}")


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
    # Java's consumer also sends it as its rebalance timeout (KIP-62)
    "max.poll.interval.ms": Property("max_poll_interval", _milliseconds, also="rebalance_timeout"),
    "partition.assignment.strategy": Property("assignors", _assignors),
    "group.protocol": Property("group_protocol", lambda value: _text(value).lower()),
    "group.remote.assignor": Property("remote_assignor", lambda value: _text(value) or None),
    "group.instance.id": Property("group_instance_id", lambda value: _text(value) or None),
    "auto.offset.reset": Property("auto_offset_reset", _reset),
    "enable.auto.commit": Property("auto_commit", _flag),
    "auto.commit.enable": Property("auto_commit", _flag),
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
    "enable.idempotence": Property("enable_idempotence", _flag),
    "request.required.acks": Property("acks", _acks),
    "linger.ms": Property("linger", _milliseconds),
    "queue.buffering.max.ms": Property("linger", _milliseconds),
    "batch.num.messages": Property("batch_records", _whole),
    "batch.size": Property("batch_size", _whole),
    "max.request.size": Property("max_request_size", _whole),
    "message.max.bytes": Property("max_request_size", _whole),
    "buffer.memory": Property("buffer_bytes", _whole),
    "queue.buffering.max.kbytes": Property("buffer_bytes", _kibibytes),
    "queue.buffering.max.messages": Property("max_pending_records", lambda value: _whole(value) or None),
    "compression.type": Property("compression_type", lambda value: _text(value).lower()),
    **dict.fromkeys(
        ("compression.level", "compression.gzip.level"),
        Property("compression_level", lambda value: None if _text(value) == "-1" else _whole(value)),
    ),
    **dict.fromkeys(
        ("compression.lz4.level", "compression.zstd.level"), Property("compression_level", _whole)
    ),
    "compression.codec": Property("compression_type", lambda value: _text(value).lower()),
    "metadata.max.idle.ms": Property("metadata_max_idle", _milliseconds),
    "partitioner.class": Property("partitioner", _partitioner_class),
    "partitioner.ignore.keys": Property("partitioner", lambda value: "sticky" if _flag(value) else "default"),
    "partitioner.adaptive.partitioning.enable": Property("adaptive_partitioning", _flag),
    "partitioner": Property("partitioner", _LIBRDKAFKAS_PARTITIONERS),
    "delivery.timeout.ms": Property("delivery_timeout", _milliseconds),
    "message.timeout.ms": Property("delivery_timeout", _milliseconds),
    "transactional.id": Property("transactional_id", lambda value: _text(value) or None),
    "transaction.timeout.ms": Property("transaction_timeout", _milliseconds),
}

PROPERTIES: Final[Mapping[str, Mapping[str, Property]]] = {
    "ClientConfig": _CLIENT,
    "ConsumerConfig": _CONSUMER,
    "ProducerConfig": _PRODUCER,
}
"""Properties by the configuration class that their keys belong to."""

REST: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap.servers",
    "metadata.broker.list": "bootstrap.servers",
    "group.id": "group.id",
}
"""Properties that are not configuration keys here but arguments of Cluster, ConsumerGroup and Producer."""

SECURITY: Final[Mapping[str, str]] = {
    "security.protocol": "Security(tls=…, sasl=…)",
    **dict.fromkeys(("sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config"), "Security(sasl=Plain(…) or Scram(…))"),
    "sasl.username": "Security(sasl=Plain(username, password) or Scram(username, password))",
    "sasl.password": "Security(sasl=Plain(username, password) or Scram(username, password))",
    "ssl.endpoint.identification.algorithm": "Security(tls=Tls(check_hostname=…))",
    **dict.fromkeys(("ssl.truststore.location", "ssl.truststore.type", "ssl.ca.location"), "Security(tls=Tls(ca_file=…))"),
    **dict.fromkeys(("ssl.truststore.certificates", "ssl.ca.pem"), "Security(tls=Tls(ca_data=…))"),
    **dict.fromkeys(("ssl.keystore.location", "ssl.keystore.type", "ssl.certificate.location"), "Security(tls=Tls(cert_file=…))"),
    **dict.fromkeys(("ssl.keystore.certificate.chain", "ssl.certificate.pem"), "Security(tls=Tls(cert_data=…))"),
    **dict.fromkeys(("ssl.keystore.key", "ssl.key.pem"), "Security(tls=Tls(key_data=…))"),
    "ssl.key.location": "Security(tls=Tls(key_file=…))",
    "ssl.key.password": "Security(tls=Tls(key_password=…))",
}  # fmt: skip
"""Properties that together make the `security` value (`security.py`), each with its field there."""

UNSUPPORTED: Final[Mapping[str, AllowedValues]] = {
    "enable.gapless.guarantee": AllowedValues("false", because="records after a failed one are still sent"),
    "partitioner_cb": AllowedValues("", because="pass a function as partitioner"),
    "msg_order_cmp": AllowedValues("", because="records are sent in the order of the calls"),
    **dict.fromkeys(("interceptor.classes", "interceptors"), AllowedValues("", because="pass objects as interceptors to ConsumerGroup, Consumer or Producer")),
    "plugin.library.paths": AllowedValues("", because="specific to the C library"),
    "topic.blacklist": AllowedValues("", because="exclude topics in the pattern that the group subscribes to"),
    **dict.fromkeys(("dr_cb", "dr_msg_cb", "on_delivery"), AllowedValues("", because="await producer.send(…), which returns the record's metadata")),
    **dict.fromkeys(("offset_commit_cb", "on_commit"), AllowedValues("", because="session.commit() raises, and hooks (hooks=…) report commits")),
    "rebalance_cb": AllowedValues("", because="Handler.on_assigned, on_revoked and on_lost are called at a rebalance"),
    "consume_cb": AllowedValues("", because="a handler's consume_claim gets the records"),
    "background_event_cb": AllowedValues("", because="hooks (hooks=…) report events"),
    **dict.fromkeys(("socket_cb", "connect_cb", "closesocket_cb", "resolve_cb"), AllowedValues("", because="connector, an async function (host, port) -> socket")),
    "open_cb": AllowedValues("", because="no files are opened"),
    **dict.fromkeys(("default_topic_conf", "default.topic.config"), AllowedValues("", because="merge its properties into the others")),
    **dict.fromkeys(("oauthbearer_token_refresh_cb", "oauth_cb"), AllowedValues("", because="pass Security(sasl=OAuthBearer(token_provider=…))")),
    "enable.sasl.oauthbearer.unsecure.jwt": AllowedValues("false", because="pass Security(sasl=OAuthBearer(token_provider=…))"),
    "enable.ssl.certificate.verification": AllowedValues("true", because="to turn it off pass Tls(context=…)"),
    "ssl.truststore.password": AllowedValues("", because="PEM files of certificates have no password"),
    "ssl.keystore.password": AllowedValues("", because="for PEM files use ssl.key.password"),
    **dict.fromkeys(("ssl_ca", "ssl_certificate", "ssl_key"), AllowedValues("", because="pass Security(tls=Tls(ca_data=…, cert_data=…, key_data=…))")),
    "ssl.ca.certificate.stores": AllowedValues("", "root", because="the system's certificate authorities are the default; for others pass Tls(context=…)"),
    **dict.fromkeys(
        (
            *("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list", "ssl.crl.location", "ssl.providers"),
            *("ssl.engine.factory.class", "ssl.engine.location", "ssl.engine.id", "ssl_engine_callback_data"),
            "ssl.certificate.verify_cb",
        ),
        AllowedValues("", because="pass Tls(context=…)"),
    ),
}  # fmt: skip
"""Properties of features that this client lacks, with the values that leave the feature off."""
