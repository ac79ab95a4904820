"""Handlers that mark all or read nothing, members that hold partitions, and brokers that know older versions of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup import Claim, ConsumerGroup, Session
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.control.faults import Fault

__all__ = ["holding", "limit_version", "mark_all"]


async def mark_all(_: Session, claim: Claim) -> None:
    """Read a claim to its end, and mark each record."""
    async for record in claim:
        claim.mark(record)


@asynccontextmanager
async def holding(group: ConsumerGroup, topic: str, count: int) -> AsyncIterator[None]:
    """Run the group with a handler that reads nothing: it has `count` partitions in the block, and has left after it."""
    claims: set[int] = set()
    joined = asyncio.Event()

    async def wait(_: Session, claim: Claim) -> None:
        claims.add(claim.partition)
        if len(claims) == count:
            joined.set()
        await claim.wait_ended()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run(topic, wait))
        await joined.wait()
        yield
        await group.aclose()


def limit_version(cluster: EmbeddedCluster, api_key: int, highest: int | None) -> Fault:
    """Let all brokers say that they know a request up to this version; None: not at all."""

    def limit(response: Any) -> Any:
        if highest is None:
            response.api_keys = [each for each in response.api_keys if each.api_key != api_key]
        for each in response.api_keys:
            if each.api_key == api_key:
                each.max_version = highest
        return response

    return cluster.faults.on("ApiVersions", times=None).mutate(limit)
