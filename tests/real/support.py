"""The interface of a running Kafka that tests on a real Kafka use."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import pytest

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from asyncgroup.testing.apache_kafka.probe import probe
from asyncgroup.wire import messages as m

__all__ = [
    "IS_NEWEST_RELEASE",
    "NEEDS_KAFKA_4",
    "ExternalKafka",
    "RunningKafka",
    "new_topic",
    "require_newest_release",
    "resume_node",
    "until_shown",
]

T = TypeVar("T")

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


async def until_shown(read: Callable[[], Awaitable[T]], expected: T, limit: float = 30.0) -> None:
    """Read again until the value is the expected one; after `limit` seconds fail with the last value.

    In KRaft the controller answers once a change is committed; each broker applies it to its own copy a moment later.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    while (found := await read()) != expected:
        assert loop.time() < deadline, f"{found!r} instead of {expected!r}"
        await asyncio.sleep(0.05)


async def resume_node(kafka: ApacheKafka, node_id: int) -> None:
    """Resume a suspended node of a cluster that runs, and wait until each node has all of them in its metadata.

    A node that was suspended for longer than its session is fenced until then: new partitions are not in sync on it.
    """

    async def nodes_of(address: str) -> frozenset[int]:
        host, _, port = address.rpartition(":")
        return (await asyncio.to_thread(probe, host, int(port), 10.0)).node_ids

    kafka.resume(node_id)
    for address in kafka.bootstrap_servers.split(","):
        await until_shown(partial(nodes_of, address), frozenset(kafka.node_ids))
