"""Groups of protocol-level members in one process: a large group, idle groups, and one with constant heartbeats."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from benchmarks.broker.file_limit import raise_file_limit
from benchmarks.broker.member import FIND_COORDINATOR, GroupProgress, Member, RawConnection

__all__ = ["GroupSettings", "heartbeat_rate", "idle", "large", "large_in_one_loop"]

CONNECTING: Final = 50
"""Connections that are opened at the same time; more could overflow the listener's backlog."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """`groups` groups of `members` members; `interval` is in seconds, see the functions."""

    bootstrap_servers: str
    groups: int
    members: int
    interval: float


async def _coordinator(address: str, group_id: str) -> str:
    """Return the `host:port` of a group's coordinator."""
    from asyncgroup.wire import messages as m

    connection = await RawConnection.open(address)
    try:
        while True:
            answer = await connection.request(m.FindCoordinatorRequest(group_id), FIND_COORDINATOR)
            if not answer.error_code:
                return f"{answer.host}:{answer.port}"
            await asyncio.sleep(0.05)  # __consumer_offsets is being created
    finally:
        connection.close()


async def _connected_members(address: str, members: int) -> list[Member]:
    """Connect this number of members of a new group to its coordinator."""
    progress = GroupProgress(f"group-{uuid4().hex[:8]}", members)
    address = await _coordinator(address, progress.group_id)
    found: list[Member] = []
    while len(found) < members:
        more = min(CONNECTING, members - len(found))
        connections = await asyncio.gather(*(RawConnection.open(address) for _ in range(more)))
        found += [Member(progress, connection) for connection in connections]
    return found


async def large(given: dict[str, Any]) -> dict[str, float]:
    """Return the seconds until every member of one group has its assignment, with and without connecting."""
    raise_file_limit()
    settings = GroupSettings(**given)
    begun = time.perf_counter()
    members = await _connected_members(settings.bootstrap_servers, settings.members)
    connected = time.perf_counter()
    await asyncio.gather(*(member.join_until_stable() for member in members))
    stable = time.perf_counter()
    await asyncio.gather(*(member.leave() for member in members))
    return {
        "connecting": connected - begun,
        "joining": stable - connected,
        "total": stable - begun,
        "generation": members[0].generation,
    }


async def large_in_one_loop(given: dict[str, Any]) -> dict[str, float]:
    """Run `large` with the embedded cluster in the same event loop, as in tests."""
    from asyncgroup.broker import EmbeddedCluster

    raise_file_limit()
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("wide", given["members"])
        return await large({**given, "bootstrap_servers": cluster.bootstrap_servers})


async def heartbeat_rate(given: dict[str, Any]) -> dict[str, float]:
    """Count the heartbeats of one group in `interval` seconds; each member sends the next one at once."""
    settings = GroupSettings(**given)
    members = await _connected_members(settings.bootstrap_servers, settings.members)
    await asyncio.gather(*(member.join_until_stable() for member in members))
    begun = time.perf_counter()
    counts = await asyncio.gather(
        *(_heartbeat_until(member, begun + settings.interval) for member in members)
    )
    return {"beats": sum(counts), "seconds": time.perf_counter() - begun}


async def _heartbeat_until(member: Member, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        await member.heartbeat()
        count += 1
    return count


async def idle(given: dict[str, Any]) -> dict[str, float]:
    """Run groups that only send heartbeats, each member every `interval` seconds, until the standard input ends."""
    raise_file_limit()
    settings = GroupSettings(**given)
    groups = [
        await _connected_members(settings.bootstrap_servers, settings.members) for _ in range(settings.groups)
    ]
    members = [member for group in groups for member in group]
    await asyncio.gather(*(member.join_until_stable() for member in members))
    loop = asyncio.get_running_loop()
    begun, total = loop.time() + settings.interval / 10, len(members)
    tasks = [
        loop.create_task(
            _heartbeat_every(member, begun + settings.interval * number / total, settings.interval)
        )
        for number, member in enumerate(members)
    ]
    print(json.dumps({"members": total}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    failed = [e for e in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(e, Exception)]
    if failed:
        raise failed[0]
    return {"members": total}


async def _heartbeat_every(member: Member, at: float, interval: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(at - loop.time())
        if await member.heartbeat():
            raise RuntimeError("an idle group rebalances")
        at += interval
