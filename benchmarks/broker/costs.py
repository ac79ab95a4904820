"""What groups and starting cost a broker: each case measures one broker once."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from benchmarks.broker.groups import GroupSettings
from benchmarks.broker.servers import Server
from benchmarks.running import ClientFailed, run_worker, worker

__all__ = ["COST_CASES", "measure_cost"]

LIMIT: Final = 120.0
"""Seconds that a case may take beside the time for which it watches."""
BEATING: Final = 10
"""Members that beat without a pause."""
BEATING_SECONDS: Final = 2.0
HANDLED: Final = 20_000
"""Heartbeats that are handled without a network."""
STARTS: Final = 20

Costs = dict[str, float]
"""By the names of `figures.COSTS`."""


async def measure_cost(case: str, server: Server, options: argparse.Namespace) -> Costs:
    """Measure one case at one broker; nothing for the mock cluster.

    A group waits there for three seconds whatever comes, and is answered null where the protocol has no null.
    """
    if server.name == "librdkafka-mock":
        return {}
    return await _CASES[case](server, options)


async def _large(server: Server, options: argparse.Namespace) -> Costs:
    settings = GroupSettings(
        bootstrap_servers=server.bootstrap_servers, groups=1, members=options.members, interval=0
    )
    found = await run_worker("benchmarks.broker.groups:large", asdict(settings), LIMIT)
    costs = {"large": found["joining"], "large-total": found["total"]}
    if server.name == "asyncgroup":
        inside = await run_worker("benchmarks.broker.groups:large_in_one_loop", asdict(settings), LIMIT)
        costs["large-inside"] = inside["joining"]
    return costs


async def _beats(server: Server, options: argparse.Namespace) -> Costs:
    seconds = min(BEATING_SECONDS, options.seconds)
    settings = GroupSettings(
        bootstrap_servers=server.bootstrap_servers, groups=1, members=BEATING, interval=seconds
    )
    cpu = await server.cpu()
    found = await run_worker("benchmarks.broker.groups:beating", asdict(settings), LIMIT)
    return {"beat": (await server.cpu() - cpu) / found["beats"]}


async def _idle(server: Server, options: argparse.Namespace) -> Costs:
    settings = GroupSettings(
        bootstrap_servers=server.bootstrap_servers,
        groups=options.groups,
        members=options.group_members,
        interval=options.interval,
    )
    told = json.dumps(asdict(settings))
    command = (sys.executable, "-m", "benchmarks.worker", "benchmarks.broker.groups:idle", told)
    async with worker(*command) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT):
            ready = await process.stdout.readline()
        if not ready:
            raise ClientFailed(f"idle groups ended:\n{(await process.stderr.read()).decode()}")
        loop = asyncio.get_running_loop()
        # the first round of heartbeats finds the caches cold
        await asyncio.sleep(min(options.interval, options.seconds))
        cpu, begun = await server.cpu(), loop.time()
        await asyncio.sleep(options.seconds)
        share = (await server.cpu() - cpu) / (loop.time() - begun)
        async with asyncio.timeout(LIMIT):
            _, err = await process.communicate(b"")  # without an input it would not be closed
        if process.returncode:
            raise ClientFailed(f"idle groups failed:\n{err.decode()}")
    return {"idle": share}


async def _inside(server: Server, _options: argparse.Namespace) -> Costs:
    """Only ours can be looked into."""
    if server.name != "asyncgroup":
        return {}
    return await run_worker("benchmarks.broker.inside:costs", {"beats": HANDLED, "starts": STARTS}, LIMIT)


_CASES: Final[dict[str, Callable[[Server, argparse.Namespace], Awaitable[Costs]]]] = {
    "large": _large,
    "beats": _beats,
    "idle": _idle,
    "inside": _inside,
}
COST_CASES: Final = tuple(_CASES)
"""The cases, in the order in which they are measured."""
