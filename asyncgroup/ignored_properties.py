"""Property names of Kafka's clients that have no effect here, each with the reason or with what takes its place.

Java's are those of `ConsumerConfig.java` and `ProducerConfig.java` (4.3), librdkafka's those of `CONFIGURATION.md` (2.16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["IGNORED", "IGNORED_PREFIXES"]


def _all(why: str, *names: str) -> dict[str, str]:
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
    "group.remote.assignor": "it is of the consumer protocol (KIP-848), which is not spoken yet",
    "config.providers": "read the values before they are given",
    "retries": "a record is retried until delivery_timeout",
    "max.block.ms": "use asyncio.timeout around send, or send_nowait",
    **_all(
        "the bootstrap servers are always asked again when no other broker answers",
        "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
    ),
    **_all(
        "give a function as partitioner for anything else than Java's default",
        "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
    ),
    **_all("there are no transactions yet", "transaction.timeout.ms", "transaction.two.phase.commit.enable"),
    **_all("there are no share groups yet (KIP-932)", "share.acknowledgement.mode", "share.acquire.mode"),
    **_all(
        "give a Tls(context=…) for anything else than TLS 1.2 and newer",
        "ssl.protocol", "ssl.enabled.protocols", "ssl.provider",
    ),
    **_all(
        "these are Java's names; OpenSSL does this work",
        "ssl.trustmanager.algorithm", "ssl.keymanager.algorithm", "ssl.secure.random.implementation",
    ),
    # librdkafka's
    **_all(
        "versions are negotiated with each broker",
        "api.version.request", "api.version.request.timeout.ms", "api.version.fallback.ms", "broker.version.fallback",
    ),
    "broker.address.ttl": "a name is resolved for each connection",
    "broker.address.family": "all addresses of a name are tried; local_address picks a family",
    **_all("Python's logging decides: the loggers of `asyncgroup`", "debug", "log_level", "log.connection.close", "log.queue", "log.thread.name"),
    **_all("hooks (hooks=…) report what happens", "statistics.interval.ms", "throttle_cb", "stats_cb"),
    "error_cb": "iterate over errors(), or use hooks (hooks=…)",
    "log_cb": "Python's logging decides: the loggers of `asyncgroup`",
    "socket.nagle.disable": "TCP_NODELAY is always set",
    **_all("the operating system sizes socket buffers", "socket.send.buffer.bytes", "socket.receive.buffer.bytes"),
    "socket.max.fails": "a connection is closed at its first failure",
    "message.copy.max.bytes": "records are not copied",
    "message.send.max.retries": "a record is retried until delivery_timeout",
    **_all("the producer's buffer is limited in bytes: buffer_bytes", "queue.buffering.max.messages", "queue.buffering.backpressure.threshold"),
    "batch.num.messages": "batches are limited in bytes: batch_size",
    **_all("what is prefetched is limited in bytes: buffer_bytes", "queued.min.messages", "fetch.queue.backoff.ms"),
    "fetch.error.backoff.ms": "fetch_retry_backoff, a function (failures) -> seconds",
    "enable.partition.eof": "claim.lag is 0 at a partition's end",
    "enable.auto.offset.store": "only what a handler marks is committed: claim.mark(record)",
    "consume.callback.max.messages": "an argument of claim.batches(max_records=…)",
    **_all(
        "metadata is refreshed on failures with retry_backoff, for topics in use",
        "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse", "topic.metadata.propagation.max.ms",
    ),
    "sticky.partitioning.linger.ms": "the default partitioner changes partitions with each batch, as Java's does",
    "enable.random.seed": "it concerns the C library only",
    "coordinator.query.interval.ms": "the coordinator is looked up when it fails",
    "group.protocol.type": "it is always consumer",
    **_all(
        "deprecated there, and without effect",
        "reconnect.backoff.jitter.ms", "socket.blocking.max.ms", "produce.offset.report", "queuing.strategy",
    ),
    **_all(
        "offsets are kept by the brokers",
        "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms",
    ),
    **_all("it concerns the C library only", "builtin.features", "internal.termination.signal", "enabled_events", "opaque"),
    "delivery.report.only.error": "flush() raises DeliveryFailedError for what was not delivered",
    **_all("it is for fetching tokens over HTTPS: OAuthBearer(token_provider=…) does that", "https.ca.location", "https.ca.pem"),
    # confluent-kafka's own
    "logger": "Python's logging decides: the loggers of `asyncgroup`",
}  # fmt: skip
"""By name. Given to `from_properties`, each is warned about with its reason."""

IGNORED_PREFIXES: Final[Mapping[str, str]] = {
    "metrics.": "hooks (hooks=…) report what metrics count",
    "compression.": "each codec works at its default level",
    "sasl.kerberos.": "Kerberos (GSSAPI) is not offered",
    "sasl.login.": "the token_provider of OAuthBearer does the login",
    "sasl.oauthbearer.": "OAuthBearer(token_provider=…) fetches tokens as you like",
    "sasl.client.callback.": "the token_provider of OAuthBearer does the login",
    "confluent.": "it belongs to Confluent's own components",
    "schema.registry.": "it belongs to a schema registry's client",
}
"""Families of such names."""
