"""Groups of raw members in a process: one that is large, many that are idle, one that beats as fast as it can."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from benchmarks.broker.descriptors import allow_many
from benchmarks.broker.member import COORDINATOR, Member, Story, Wire

__all__ = ["GroupSettings", "beating", "idle", "large", "large_in_one_loop"]

CONNECTING: Final = 50
"""Connections that are made at the same time: what a listener's queue holds."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """`groups` of `members` each; `interval` seconds between heartbeats, where they beat."""

    bootstrap_servers: str
    groups: int
    members: int
    interval: float


async def _coordinator(address: str, group_id: str) -> str:
    """Where a group's coordinator is."""
    from asyncgroup.wire import messages as m

    wire = await Wire.open(address)
    try:
        while True:
            answer = await wire.ask(m.FindCoordinatorRequest(group_id), COORDINATOR)
            if not answer.error_code:
                return f"{answer.host}:{answer.port}"
            await asyncio.sleep(0.05)  # a topic that was just made takes a moment
    finally:
        wire.close()


async def _gather(address: str, members: int) -> list[Member]:
    """So many connected members of a new group."""
    story = Story(f"group-{uuid4().hex[:8]}", members)
    address = await _coordinator(address, story.group_id)
    found: list[Member] = []
    while len(found) < members:
        more = min(CONNECTING, members - len(found))
        wires = await asyncio.gather(*(Wire.open(address) for _ in range(more)))
        found += [Member(story, wire) for wire in wires]
    return found


async def large(given: dict[str, Any]) -> dict[str, float]:
    """Seconds until every member of one group has its assignment, with and without connecting."""
    allow_many()
    settings = GroupSettings(**given)
    begun = time.perf_counter()
    members = await _gather(settings.bootstrap_servers, settings.members)
    connected = time.perf_counter()
    await asyncio.gather(*(member.settle() for member in members))
    stable = time.perf_counter()
    await asyncio.gather(*(member.leave() for member in members))
    return {
        "connecting": connected - begun,
        "joining": stable - connected,
        "total": stable - begun,
        "generation": members[0].generation,
    }


async def large_in_one_loop(given: dict[str, Any]) -> dict[str, float]:
    """As `large`, with the embedded cluster in the same loop, as tests have it."""
    from asyncgroup.broker import EmbeddedCluster

    allow_many()
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("wide", given["members"])
        return await large({**given, "bootstrap_servers": cluster.bootstrap_servers})


async def beating(given: dict[str, Any]) -> dict[str, float]:
    """One group whose members beat again as soon as they are answered, for `interval` seconds; how many beats."""
    settings = GroupSettings(**given)
    members = await _gather(settings.bootstrap_servers, settings.members)
    await asyncio.gather(*(member.settle() for member in members))
    begun = time.perf_counter()
    counts = await asyncio.gather(*(_beat_on(member, begun + settings.interval) for member in members))
    return {"beats": sum(counts), "seconds": time.perf_counter() - begun}


async def _beat_on(member: Member, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        await member.heartbeat()
        count += 1
    return count


async def idle(given: dict[str, Any]) -> dict[str, float]:
    """Groups that do nothing but beat, each member every `interval` seconds, until the input ends."""
    allow_many()
    settings = GroupSettings(**given)
    groups = [await _gather(settings.bootstrap_servers, settings.members) for _ in range(settings.groups)]
    members = [member for group in groups for member in group]
    await asyncio.gather(*(member.settle() for member in members))
    loop = asyncio.get_running_loop()
    begun, total = loop.time() + settings.interval / 10, len(members)
    tasks = [
        loop.create_task(_beat_every(member, begun + settings.interval * number / total, settings.interval))
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


async def _beat_every(member: Member, at: float, interval: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(at - loop.time())
        if await member.heartbeat():
            raise RuntimeError("an idle group rebalances")
        at += interval
