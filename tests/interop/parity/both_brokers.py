"""A scene on a new embedded broker and the same on Apache Kafka, for programs whose responses are compared."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from asyncgroup.broker import EmbeddedCluster
from tests.interop.parity.scene import Scene, ranges_of, shared_ranges
from tests.real.support import RunningKafka, require_newest_release

S = TypeVar("S", bound=Scene)


@asynccontextmanager
async def on_both_brokers(apache_kafka: RunningKafka, kind: type[S]) -> AsyncIterator[tuple[S, S]]:
    """Yield the scenes, with names that no other pair has; skip the test with another version of Kafka."""
    require_newest_release("a comparison with the embedded broker")
    host, _, port = apache_kafka.bootstrap_servers.rpartition(":")
    kafka, suffix = {1: (host, int(port))}, f"-{uuid.uuid4().hex[:8]}"
    async with EmbeddedCluster(default_partitions=4) as cluster:
        own = {1: (cluster.nodes[1].host, cluster.nodes[1].port)}
        ranges = shared_ranges(await ranges_of(own[1]), await ranges_of(kafka[1]))
        async with (
            kind(own, ranges, "highest", suffix) as ours,
            kind(kafka, ranges, "highest", suffix) as theirs,
        ):
            yield ours, theirs
