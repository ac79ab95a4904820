"""What several tests of the embedded Pulsar begin with: brokers in virtual time with a client, and metadata of entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar

__all__ = ["HOSTS", "PORT", "early", "embedded", "metadata"]

HOSTS: Final = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
"""Hosts of the network of virtual time."""

PORT: Final = 6650


@asynccontextmanager
async def embedded(
    hosts: Sequence[str] = HOSTS[:1], client: PulsarConfig | None = None, **options: Any
) -> AsyncIterator[tuple[EmbeddedPulsar, PulsarClient]]:
    """Run a broker on each host with these options of `EmbeddedPulsar`, and a client with its configuration."""
    async with (
        EmbeddedPulsar(hosts=hosts, port=PORT, **options) as pulsar,
        PulsarClient(pulsar.service_url, client) as connected,
    ):
        yield pulsar, connected


def early(**settings: Any) -> PulsarConsumerConfig:
    """Return the configuration of a consumer whose subscription begins at the first message."""
    return PulsarConsumerConfig(initial_position="earliest", **settings)


def metadata(**fields: object) -> MessageMetadata:
    """Return the metadata of an entry of a producer `p`."""
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 0} | fields)  # type: ignore[arg-type]
