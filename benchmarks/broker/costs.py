"""Costs of groups and of starting a broker: each case measures one broker once."""

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
from benchmarks.common import ClientFailed, run_worker, started_process

__all__ = ["COST_CASES", "measure_cost"]

TIMEOUT: Final = 120.0
"""Seconds that a case may take in addition to its measuring time."""
HEARTBEAT_MEMBERS: Final = 10
"""Members that send heartbeats without a pause."""
HEARTBEAT_SECONDS: Final = 2.0
HANDLED_HEARTBEATS: Final = 20_000
"""Heartbeats that are handled without a network connection."""
START_RUNS: Final = 20

Costs = dict[str, float]
"""Values by the names of `figures.COSTS`."""


async def measure_cost(case: str, server: Server, options: argparse.Namespace) -> Costs:
    """Measure one case of one broker; return no costs for the mock cluster.

    There every join takes three seconds, and responses contain nulls where the protocol does not allow them.
    """
    if server.name == "librdkafka-mock":
        return {}
    return await _CASES[case](server, options)


async def _large(server: Server, options: argparse.Namespace) -> Costs:
    settings = GroupSettings(
        bootstrap_servers=server.bootstrap_servers, groups=1, members=options.members, interval=0
    )
    found = await run_worker("benchmarks.broker.groups:large", asdict(settings), TIMEOUT)
    costs = {"large": found["joining"], "large-total": found["total"]}
    if server.name == "asyncgroup":
        inside = await run_worker("benchmarks.broker.groups:large_in_one_loop", asdict(settings), TIMEOUT)
        costs["large-inside"] = inside["joining"]
    return costs


async def _beats(server: Server, options: argparse.Namespace) -> Costs:
    seconds = min(HEARTBEAT_SECONDS, options.seconds)
    settings = GroupSettings(
        bootstrap_servers=server.bootstrap_servers, groups=1, members=HEARTBEAT_MEMBERS, interval=seconds
    )
    cpu = await server.cpu()
    found = await run_worker("benchmarks.broker.groups:heartbeat_rate", asdict(settings), TIMEOUT)
    return {"beat": (await server.cpu() - cpu) / found["beats"]}


async def _idle(server: Server, options: argparse.Namespace) -> Costs:
    settings = GroupSettings(
        bootstrap_servers=server.bootstrap_servers,
        groups=options.groups,
        members=options.group_members,
        interval=options.interval,
    )
    settings_json = json.dumps(asdict(settings))
    command = (sys.executable, "-m", "benchmarks.worker", "benchmarks.broker.groups:idle", settings_json)
    async with started_process(*command) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            ready = await process.stdout.readline()
        if not ready:
            raise ClientFailed(f"idle groups ended:\n{(await process.stderr.read()).decode()}")
        loop = asyncio.get_running_loop()
        # the first heartbeats run with cold caches
        await asyncio.sleep(min(options.interval, options.seconds))
        cpu, begun = await server.cpu(), loop.time()
        await asyncio.sleep(options.seconds)
        share = (await server.cpu() - cpu) / (loop.time() - begun)
        async with asyncio.timeout(TIMEOUT):
            _, err = await process.communicate(
                b""
            )  # the argument makes `communicate` close the standard input
        if process.returncode:
            raise ClientFailed(f"idle groups failed:\n{err.decode()}")
    return {"idle": share}


async def _inside(server: Server, _options: argparse.Namespace) -> Costs:
    """Measure inside the broker's process, which is possible for the embedded broker only."""
    if server.name != "asyncgroup":
        return {}
    return await run_worker(
        "benchmarks.broker.in_process:costs", {"beats": HANDLED_HEARTBEATS, "starts": START_RUNS}, TIMEOUT
    )


_CASES: Final[dict[str, Callable[[Server, argparse.Namespace], Awaitable[Costs]]]] = {
    "large": _large,
    "beats": _beats,
    "idle": _idle,
    "inside": _inside,
}
COST_CASES: Final = tuple(_CASES)
"""Cases, in the order in which they are measured."""
