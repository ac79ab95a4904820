"""Property names of other Kafka clients that have no effect here, each with the reason or its replacement.

Java's names are from `ConsumerConfig.java` and `ProducerConfig.java` (4.3), librdkafka's from `CONFIGURATION.md`
(2.16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["IGNORED", "IGNORED_PREFIXES"]


def _all(why: str, *names: str) -> dict[str, str]:
    """Return the same reason for several names."""
    return dict.fromkeys(names, why)


IGNORED: Final[Mapping[str, str]] = {
    # Java's
    **_all("records have bytes: decode them in the handler", "key.deserializer", "value.deserializer"),
    **_all("the producer takes bytes: encode before send", "key.serializer", "value.serializer"),
    "max.poll.records": "an argument of claim.batches(max_records=…)",
    "default.api.timeout.ms": "use asyncio.timeout around the call",
    "exclude.internal.topics": "a pattern never matches internal topics",
    "security.providers": "these are Java classes",
    **_all("the operating system sizes socket buffers", "send.buffer.bytes", "receive.buffer.bytes"),
    **_all("retry_backoff and retry_backoff_max apply to connections too", "reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    "socket.connection.setup.timeout.max.ms": "connect_timeout is the limit of each attempt and does not grow",
    **_all("hooks (hooks=…) report what metrics count", "metric.reporters", "auto.include.jmx.reporter"),
    "enable.metrics.push": "no metrics are pushed to brokers (KIP-714)",
    "config.providers": "resolve the values before passing them",
    "retries": "a record is retried until delivery_timeout",
    "max.block.ms": "use asyncio.timeout around send, or send_nowait",
    **_all(
        "the bootstrap servers, which may be a function, are always contacted again when no other broker answers",
        "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
    ),
    "transaction.two.phase.commit.enable": "two-phase commit (KIP-939) is not supported",
    "partitioner.availability.timeout.ms": "not supported: partitions of a slow broker are not left out (KIP-794); adaptive_partitioning prefers those with fewer waiting batches",
    **_all("share groups (KIP-932) are not supported yet", "share.acknowledgement.mode", "share.acquire.mode"),
    **_all(
        "TLS 1.2 and newer are used; for anything else pass Tls(context=…)",
        "ssl.protocol", "ssl.enabled.protocols", "ssl.provider",
    ),
    **_all(
        "specific to Java; OpenSSL is used here",
        "ssl.trustmanager.algorithm", "ssl.keymanager.algorithm", "ssl.secure.random.implementation",
    ),
    # librdkafka's
    **_all(
        "versions are negotiated with each broker",
        "api.version.request", "api.version.request.timeout.ms", "api.version.fallback.ms", "broker.version.fallback",
    ),
    "broker.address.ttl": "a host name is resolved for each connection",
    "broker.address.family": "all addresses of a name are tried; local_address selects a family",
    **_all("configure the loggers of `asyncgroup` in Python's logging", "debug", "log_level", "log.connection.close", "log.queue", "log.thread.name"),
    **_all("hooks (hooks=…) report what happens", "statistics.interval.ms", "throttle_cb", "stats_cb"),
    "error_cb": "iterate over errors(), or use hooks (hooks=…)",
    "log_cb": "configure the loggers of `asyncgroup` in Python's logging",
    "socket.nagle.disable": "TCP_NODELAY is always set",
    **_all("the operating system sizes socket buffers", "socket.send.buffer.bytes", "socket.receive.buffer.bytes"),
    "socket.max.fails": "a connection is closed at its first failure",
    "message.copy.max.bytes": "records are not copied",
    "message.send.max.retries": "a record is retried until delivery_timeout",
    **_all("callers wait when buffer_bytes or max_pending_records is reached", "queue.buffering.backpressure.threshold"),
    **_all("prefetching is limited in bytes: buffer_bytes", "queued.min.messages", "fetch.queue.backoff.ms"),
    "fetch.error.backoff.ms": "fetch_retry_backoff, a function (failures) -> seconds",
    "enable.partition.eof": "claim.lag is 0 at a partition's end",
    "enable.auto.offset.store": "only records that a handler marks are committed: claim.mark(record)",
    "consume.callback.max.messages": "an argument of claim.batches(max_records=…)",
    **_all(
        "metadata is refreshed on failures with retry_backoff, for topics in use",
        "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse", "topic.metadata.propagation.max.ms",
    ),
    "sticky.partitioning.linger.ms": "the sticky partition changes after batch_size bytes, as in Java; partitioner='timed_round_robin' changes it by time",
    "enable.random.seed": "specific to the C library",
    "coordinator.query.interval.ms": "the coordinator is looked up when it fails, and every 5 s while a join waits there",
    "group.protocol.type": "always `consumer`",
    **_all(
        "deprecated in librdkafka, without effect",
        "reconnect.backoff.jitter.ms", "socket.blocking.max.ms", "produce.offset.report", "queuing.strategy",
    ),
    **_all(
        "offsets are stored by the brokers",
        "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms",
    ),
    **_all("specific to the C library", "builtin.features", "internal.termination.signal", "enabled_events", "opaque"),
    "delivery.report.only.error": "flush() raises DeliveryFailedError for records that were not delivered",
    **_all("tokens are fetched by OAuthBearer(token_provider=…)", "https.ca.location", "https.ca.pem"),
    # confluent-kafka's own
    "logger": "configure the loggers of `asyncgroup` in Python's logging",
}  # fmt: skip
"""Reasons by property name; `from_properties` logs them as warnings."""

IGNORED_PREFIXES: Final[Mapping[str, str]] = {
    "metrics.": "hooks (hooks=…) report what metrics count",
    "sasl.kerberos.": "Kerberos (GSSAPI) is not supported",
    "sasl.login.": "the token_provider of OAuthBearer does the login",
    "sasl.oauthbearer.": "the token_provider of OAuthBearer fetches tokens",
    "sasl.client.callback.": "the token_provider of OAuthBearer does the login",
    "confluent.": "specific to Confluent's components",
    "schema.registry.": "specific to schema registry clients",
}
"""Reasons by prefix of property names."""
