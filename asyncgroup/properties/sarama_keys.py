"""Map sarama's configuration keys (`config.go`, v1.61) to the keys of this package, for users who come from sarama.

Each row names a key as `Class.field` (`ConsumerConfig.session_timeout`), or says why there is none. The defaults are
sarama's unless a row says otherwise. Producer and Admin keys are not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["SARAMA_KEYS", "Counterpart"]


class Counterpart(NamedTuple):
    """`place` is `Class.field`, or "" if there is no such key; `why` says why not, or how it differs."""

    place: str = ""
    why: str = ""


def _consumer(key: str, why: str = "") -> Counterpart:
    return Counterpart(f"ConsumerConfig.{key}", why)


def _client(key: str, why: str = "") -> Counterpart:
    return Counterpart(f"ClientConfig.{key}", why)


def _none(why: str) -> Counterpart:
    return Counterpart("", why)


SARAMA_KEYS: Final[Mapping[str, Counterpart]] = {
    "Consumer.Group.Session.Timeout": _consumer("session_timeout"),
    "Consumer.Group.Heartbeat.Interval": _consumer("heartbeat_interval"),
    "Consumer.Group.Rebalance.GroupStrategies": _consumer("assignors"),
    "Consumer.Group.Rebalance.Strategy": _none("deprecated in sarama: use assignors with one entry"),
    "Consumer.Group.Rebalance.Timeout": _consumer("rebalance_timeout"),
    "Consumer.Group.Rebalance.Retry.Max": _consumer("rejoin_retry_max"),
    "Consumer.Group.Rebalance.Retry.Backoff": _consumer(
        "rejoin_backoff", "the longest pause; pauses grow up to it"
    ),
    "Consumer.Group.Member.UserData": _consumer("user_data"),
    "Consumer.Group.InstanceId": _consumer("group_instance_id"),
    "Consumer.Group.ResetInvalidOffsets": _consumer(
        "out_of_range_reset",
        "None is sarama's true, `error` its false; it also applies in the middle of a session",
    ),
    "Consumer.Retry.Backoff": _consumer(
        "fetch_retry_backoff", "None: exponential (KIP-580), sooner than 2 s at first"
    ),
    "Consumer.Retry.BackoffFunc": _consumer("fetch_retry_backoff"),
    "Consumer.Retry.Max": _consumer("fetch_retry_max", "None is sarama's 0, no limit"),
    "Consumer.Fetch.Min": _consumer("fetch_min_bytes"),
    "Consumer.Fetch.Default": _consumer("max_partition_fetch_bytes"),
    "Consumer.Fetch.Max": _none(
        "brokers return a first batch of any size (KIP-74), so no request has to grow"
    ),
    "Consumer.Fetch.MaxBytes": _consumer("fetch_max_bytes"),
    "Consumer.MaxWaitTime": _consumer("fetch_max_wait"),
    "Consumer.MaxProcessingTime": _consumer("max_processing_time"),
    "Consumer.Return.Errors": _none("errors() is always available, and never blocks if it is not read"),
    "Consumer.Offsets.AutoCommit.Enable": _consumer("auto_commit"),
    "Consumer.Offsets.AutoCommit.Interval": _consumer("auto_commit_interval"),
    "Consumer.Offsets.CommitInterval": _none("deprecated in sarama, and ignored"),
    "Consumer.Offsets.Initial": _consumer("auto_offset_reset", "also `error` and a timedelta"),
    "Consumer.Offsets.Retention": _consumer("offset_retention", "None is sarama's 0"),
    "Consumer.Offsets.Retry.Max": _consumer("commit_retry_max"),
    "Consumer.IsolationLevel": _consumer("isolation_level"),
    "Consumer.Interceptors": _none("an argument: ConsumerGroup(interceptors=…)"),
    "Net.MaxOpenRequests": _client("max_in_flight_requests"),
    "Net.DialTimeout": _client(
        "connect_timeout", "10 s, as in Java: an address that does not answer must not cost half a minute"
    ),
    "Net.ReadTimeout": _client("request_timeout", "JoinGroup has its own timeout, rebalance_timeout + 5 s"),
    "Net.WriteTimeout": _client(
        "request_timeout", "it starts when the request is written, so it covers both"
    ),
    "Net.KeepAlive": _client(
        "tcp_keepalive", "15 s, which sarama's 0 means in Go; None is its negative value"
    ),
    "Net.LocalAddr": _client("local_address", "without a port: several connections cannot share one"),
    "Net.Proxy.Enable": _client("connector", "None is off"),
    "Net.Proxy.Dialer": _client("connector"),
    "Net.ResolveCanonicalBootstrapServers": _client("client_dns_lookup", "Java's name and values"),
    "Net.TLS.Enable": Counterpart("Security.tls", "None is off"),
    "Net.TLS.Config": Counterpart("Tls.context"),
    "Net.SASL.Enable": Counterpart("Security.sasl", "None is off"),
    "Net.SASL.Mechanism": Counterpart("Security.sasl", "a class for each: Plain, Scram, OAuthBearer"),
    "Net.SASL.Version": _none("always SaslHandshake version 1, which brokers support since 1.0"),
    "Net.SASL.Handshake": _none("always sent; only proxies that are not Kafka lack it"),
    "Net.SASL.AuthIdentity": Counterpart("Plain.authzid"),
    "Net.SASL.User": Counterpart("Plain.username"),
    "Net.SASL.Password": Counterpart("Plain.password"),
    "Net.SASL.SCRAMAuthzID": Counterpart("Scram.authzid"),
    "Net.SASL.SCRAMClientGeneratorFunc": _none("SCRAM is built in"),
    "Net.SASL.TokenProvider": Counterpart("OAuthBearer.token_provider"),
    "Net.SASL.GSSAPI": _none("Kerberos is not supported: it needs a system library"),
    "Metadata.Retry.Max": _client("metadata_retry_max", "5, as the first pauses are shorter"),
    "Metadata.Retry.Backoff": _client("retry_backoff", "0.1 s and growing (KIP-580), as in Java"),
    "Metadata.Retry.BackoffFunc": _client("metadata_retry_backoff"),
    "Metadata.RefreshFrequency": _client("metadata_refresh_interval"),
    "Metadata.Full": _client(
        "metadata_full", "False, as in Java: metadata of a large cluster takes megabytes"
    ),
    "Metadata.Timeout": _client("metadata_timeout", "None is sarama's 0"),
    "Metadata.AllowAutoTopicCreation": _client("allow_auto_topic_creation"),
    "Metadata.SingleFlight": _none("always: concurrent refreshes share their requests"),
    "ClientID": _client("client_id"),
    "RackID": _consumer("rack_id"),
    "ChannelBufferSize": _consumer(
        "error_buffer", "for errors; records are limited in bytes, by buffer_bytes"
    ),
    "ApiVersionsRequest": _none("always: versions are negotiated with each broker"),
    "Version": _none("negotiated for each API with each broker"),
    "MetricRegistry": _none("hooks (asyncgroup.Hook) report events, from which metrics can be computed"),
    "MaxResponseSize": _client("max_response_size"),
    "MaxRequestSize": Counterpart(
        "ProducerConfig.max_request_size", "1 MiB, as in Java; a consumer's requests are small"
    ),
    "MaxDecompressedBatchSize": _client(
        "max_response_size", "100 MiB, the same limit as for a response; sarama's default is no limit"
    ),
    "PanicHandler": _none("a failed background task ends its object with the error (asyncgroup.lifecycle)"),
    "Logger": _none("the logger `asyncgroup` of Python's logging"),
}
"""Counterparts by sarama's name."""
