"""The interface of a running Kafka that tests on a real Kafka use."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Final, Protocol

import pytest

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION
from asyncgroup.wire import messages as m

__all__ = [
    "IS_NEWEST_RELEASE",
    "NEEDS_KAFKA_4",
    "ExternalKafka",
    "RunningKafka",
    "new_topic",
    "require_newest_release",
]

IS_NEWEST_RELEASE: Final = (
    not os.environ.get("ASYNCGROUP_KAFKA")
    and os.environ.get("ASYNCGROUP_KAFKA_VERSION", KAFKA_VERSION) == KAFKA_VERSION
)
"""Whether the tests run on the release of Kafka that the embedded broker is compared with."""

NEEDS_KAFKA_4: Final = pytest.mark.skipif(
    os.environ.get("ASYNCGROUP_KAFKA_VERSION", "").startswith("3."), reason="needs Apache Kafka 4.0"
)
"""Marks tests of the consumer protocol (KIP-848) and of transactions of version 2 (KIP-890)."""


def require_newest_release(what: str) -> None:
    """Skip the test unless the tests run on the release of Kafka that the embedded broker is compared with."""
    if not IS_NEWEST_RELEASE:
        pytest.skip(f"{what}: needs Apache Kafka {KAFKA_VERSION}")


class RunningKafka(Protocol):
    """A running Kafka. Tests that share it use topics and groups with unique names, and change nothing else."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of its nodes, comma-separated."""


@dataclass(frozen=True)
class ExternalKafka:
    """The Kafka that `ASYNCGROUP_KAFKA` names; the tests do not start or stop it."""

    bootstrap_servers: str


async def new_topic(cluster: Cluster, prefix: str) -> str:
    """Create a topic of one partition whose name begins with `prefix` and is unique."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    response = await cluster.request(cluster.view.controller_id, request)
    assert not response.topics[0].error_code
    await cluster.topics([name])
    return name
