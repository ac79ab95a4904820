"""Every configuration key of sarama has a counterpart, or a reason why there is none."""

from __future__ import annotations

from dataclasses import fields

import pytest

from asyncgroup import config, security
from asyncgroup.config import ConsumerConfig
from asyncgroup.properties.sarama_keys import SARAMA_KEYS

SARAMA = """
Consumer.Group: Session.Timeout, Heartbeat.Interval, Rebalance.GroupStrategies, Rebalance.Strategy, Rebalance.Timeout,
  Rebalance.Retry.Max, Rebalance.Retry.Backoff, Member.UserData, InstanceId, ResetInvalidOffsets
Consumer: Retry.Backoff, Retry.BackoffFunc, Retry.Max, Fetch.Min, Fetch.Default, Fetch.Max, Fetch.MaxBytes, MaxWaitTime,
  MaxProcessingTime, Return.Errors, Offsets.AutoCommit.Enable, Offsets.AutoCommit.Interval, Offsets.CommitInterval,
  Offsets.Initial, Offsets.Retention, Offsets.Retry.Max, IsolationLevel, Interceptors
Net: MaxOpenRequests, DialTimeout, ReadTimeout, WriteTimeout, KeepAlive, LocalAddr, Proxy.Enable, Proxy.Dialer,
  ResolveCanonicalBootstrapServers, TLS.Enable, TLS.Config, SASL.Enable, SASL.Mechanism, SASL.Version, SASL.Handshake,
  SASL.AuthIdentity, SASL.User, SASL.Password, SASL.SCRAMAuthzID, SASL.SCRAMClientGeneratorFunc, SASL.TokenProvider,
  SASL.GSSAPI
Metadata: Retry.Max, Retry.Backoff, Retry.BackoffFunc, RefreshFrequency, Full, Timeout, AllowAutoTopicCreation,
  SingleFlight
: ClientID, RackID, ChannelBufferSize, ApiVersionsRequest, Version, MetricRegistry, MaxRequestSize, MaxResponseSize,
  MaxDecompressedBatchSize, Logger, PanicHandler
"""
"""Every key of sarama 1.61 and its globals, except those of the producer and the admin client."""


def sarama_keys() -> set[str]:
    keys = set()
    for block in SARAMA.replace(",\n ", ",").replace(",\n", ",").strip().splitlines():
        prefix, _, names = block.partition(":")
        keys |= {f"{prefix}.{name.strip()}".lstrip(".") for name in names.split(",")}
    return keys


def test_no_key_of_sarama_is_forgotten() -> None:
    assert sarama_keys() == set(SARAMA_KEYS)


@pytest.mark.parametrize("key", SARAMA_KEYS)
def test_each_has_a_place_or_a_reason(key: str) -> None:
    place, why = SARAMA_KEYS[key]
    assert place or why
    if place:
        name, _, field = place.partition(".")
        cls = getattr(config, name, None) or getattr(security, name)
        assert field in {one.name for one in fields(cls)}


DEFAULTS = {
    "Consumer.Group.Session.Timeout": 10.0,
    "Consumer.Group.Heartbeat.Interval": 3.0,
    "Consumer.Group.Rebalance.GroupStrategies": ("range",),
    "Consumer.Group.Rebalance.Timeout": 60.0,
    "Consumer.Group.Rebalance.Retry.Max": 4,
    "Consumer.Group.Rebalance.Retry.Backoff": 2.0,
    "Consumer.Fetch.Min": 1,
    "Consumer.Fetch.Default": 1 << 20,
    "Consumer.Fetch.MaxBytes": 50 << 20,
    "Consumer.MaxWaitTime": 0.5,
    "Consumer.MaxProcessingTime": 0.1,
    "Consumer.Offsets.AutoCommit.Enable": True,
    "Consumer.Offsets.AutoCommit.Interval": 1.0,
    "Consumer.Offsets.Initial": "latest",
    "Consumer.Offsets.Retry.Max": 3,
    "Consumer.IsolationLevel": "read_uncommitted",
    "Net.MaxOpenRequests": 5,
    "Net.ReadTimeout": 30.0,
    "Metadata.RefreshFrequency": 600.0,
    "Metadata.AllowAutoTopicCreation": True,
    "RackID": "",
    "MaxResponseSize": 100 << 20,
}
"""sarama's defaults, in this package's units."""


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults_are_saramas(key: str) -> None:
    config, name = ConsumerConfig(), SARAMA_KEYS[key].place.partition(".")[2]
    # None stands for the default of the group protocol
    assert getattr(config, f"effective_{name}", getattr(config, name)) == DEFAULTS[key]
