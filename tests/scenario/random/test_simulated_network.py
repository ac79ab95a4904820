"""The simulation's network: bytes may be reordered between connections, never within one.

The simulation creates its own event loop, so these tests are plain functions.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.testing import VirtualTimeLoop
from tests.simulation.conditions import LATENCY_PROFILES, DisturbedConditions, SimulatedNetwork

PLACE = ("10.0.0.1", 9092)
LINES = 200


async def arrivals(conditions: DisturbedConditions) -> list[tuple[str, int]]:
    """Let two clients write lines in turn; return the order in which a server receives them."""
    conditions.is_on = True
    got: list[tuple[str, int]] = []
    all_are_there = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            name, number = line.decode().split()
            got.append((name, int(number)))
            if len(got) == 2 * LINES:
                all_are_there.set()
        writer.close()

    async with await asyncio.start_server(serve, *PLACE) as server:
        clients = {name: await asyncio.open_connection(*PLACE) for name in ("one", "other")}
        for number in range(LINES):
            for name, (_, writer) in clients.items():
                writer.write(f"{name} {number}\n".encode())
                await asyncio.sleep(0.001)
        await all_are_there.wait()
        for _, writer in clients.values():
            writer.close()
            await writer.wait_closed()
        server.close()
    return got


def run(latency_profile: str, seed: int) -> list[tuple[str, int]]:
    conditions = DisturbedConditions(random.Random(seed), latency_profile)
    loop = VirtualTimeLoop(network=SimulatedNetwork(conditions, chunk_size=1 << 16))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(arrivals(conditions))


@pytest.mark.parametrize("latency_profile", LATENCY_PROFILES)
def test_bytes_are_reordered_between_connections_only(latency_profile: str) -> None:
    got = run(latency_profile, seed=1)
    for name in ("one", "other"):
        assert [number for who, number in got if who == name] == list(range(LINES))
    sent = [(name, number) for number in range(LINES) for name in ("one", "other")]
    assert (got == sent) is (latency_profile == "still")
    assert run(latency_profile, seed=1) == got


def test_half_open_connections_carry_no_bytes() -> None:
    """Checks that the network calls the simulation's override, whose name must follow the network's."""
    network = SimulatedNetwork(DisturbedConditions(random.Random(1), "near"), chunk_size=1 << 16)
    loop = VirtualTimeLoop(network=network)

    async def story() -> list[bytes]:
        got: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for line in reader:
                got.append(line)  # noqa: PERF401  read from outside
            writer.close()

        async with await asyncio.start_server(serve, *PLACE) as server:
            _, writer = await asyncio.open_connection(*PLACE)
            writer.write(b"first\n")
            await asyncio.sleep(1)
            assert network.half_open(PLACE[0]) == 1
            writer.write(b"second\n")
            await asyncio.sleep(1)
            network.cut(PLACE[0])
            server.close()
        return got

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(story()) == [b"first\n"]
