"""Configuration of clients, consumers and producers: frozen, keyword-only dataclasses that validate their values.

Durations are seconds (float), sizes bytes (int). Defaults are sarama's (`config.go`) where sarama has the key, Java's
otherwise. An invalid value raises ConfigError, which names the key, the value and what is allowed.

`consumer` and `producer` have the keys of each, `client` those that both have.
"""

from __future__ import annotations

from asyncgroup.config.client import ClientConfig, Connector
from asyncgroup.config.consumer import AutoOffsetReset, ConsumerConfig
from asyncgroup.config.producer import ProducerConfig

__all__ = [
    "AutoOffsetReset",
    "ClientConfig",
    "Connector",
    "ConsumerConfig",
    "ProducerConfig",
]
