"""Helpers for stories with ConsumeTransformProduce: the transform function, its output, and what was committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any
from zlib import crc32

from asyncgroup import (
    Batch,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    ConsumeTransformProduce,
    TransactionOutput,
)
from tests.scenario.support import Gate, committed, member, running
from tests.stories.environment import Environment
from tests.stories.virtual import VirtualEnvironment

__all__ = ["OUT", "Copy", "all_once", "end_txns", "host_of", "outputs", "transforming"]

OUT = "out"
"""The topic with the output."""


class Copy:
    """Writes each record to the same partition of `out`. `calls` lists the batches as `partition@last offset`."""

    def __init__(self, env: Environment, gate: Gate | None = None) -> None:
        self.env = env
        self.gate = gate
        self.calls: list[str] = []

    def note(self, text: str) -> None:
        """Add an entry to `calls`."""
        self.calls.append(text)
        self.env.bell.ring()

    async def until(self, call: str, times: int = 1) -> None:
        """Wait until `calls` contains `call` this many times."""
        what = f"{call!r} ({times}) among {self.calls}"
        await self.env.bell.until(lambda: self.calls.count(call) >= times, what, self.env.limit)

    async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
        place = f"{batch.partition}@{batch.last_offset}"
        self.note(f"batch {place}")
        try:
            for record in batch:
                await output.enqueue(OUT, record.value, partition=batch.partition)
                if self.gate is not None and (record.partition, record.offset) == self.gate.place:
                    self.gate.reached.set()
                    await self.gate.open.wait()
        except asyncio.CancelledError:
            self.note(f"cancelled {place}")
            raise
        except Exception as error:
            self.note(f"{type(error).__name__} {place}")
            raise
        self.note(f"done {place}")


@contextlib.asynccontextmanager
async def transforming(
    env: VirtualEnvironment,
    transform: Copy,
    name: str = "ann",
    *,
    settings: dict[str, Any] | None = None,
    how: str = "run",
    **config: Any,
) -> AsyncIterator[tuple[ConsumerGroup, asyncio.Task[None]]]:
    """A member that consumes `orders` with ConsumeTransformProduce, which has these `settings`."""
    handler = ConsumeTransformProduce(transform, **(settings or {}))
    config.setdefault("isolation_level", "read_committed")
    async with (
        member(env, name, host=host_of(name), **config) as group,
        running(getattr(group, how)("orders", handler)) as run,
    ):
        yield group, run
        await group.aclose()  # else the transaction is aborted


def host_of(name: str) -> str:
    """Return the address from which a member connects."""
    number = crc32(name.encode())
    return f"10.3.{number // 256 % 250}.{number % 250 + 1}"


async def outputs(env: VirtualEnvironment, isolation: str = "read_committed") -> dict[int, list[bytes]]:
    """Return the output by partition, as readers of this isolation level see it."""
    found: dict[int, list[bytes]] = {number: [] for number in range(4)}
    config = ConsumerConfig(isolation_level=isolation)  # type: ignore[arg-type]
    async with Consumer(env.bootstrap_servers, config) as consumer:
        for number, values in found.items():
            reader = await consumer.partition(OUT, number, 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    async for record in reader:
                        values.append(record.value or b"")
    return found


def inputs(env: VirtualEnvironment) -> dict[int, list[bytes]]:
    """Return the input by partition, in the order of the log."""
    found: dict[int, list[bytes]] = {tp.partition: [] for tp in env.produced}
    for record in env.cluster.records("orders"):
        found.setdefault(record.partition, []).append(record.value or b"")
    return found


async def all_once(env: VirtualEnvironment, partitions: Iterable[int] = range(4)) -> None:
    """Wait until all input is committed, and check that its output is there once and in order."""
    await env.all_committed()
    async with asyncio.timeout(env.limit):
        while not all(
            part.last_stable_offset == part.high_watermark for part in env.cluster.topic(OUT).partitions
        ):
            await asyncio.sleep(1.0)  # the coordinator aborts what dead members left open
    wanted, found = inputs(env), await outputs(env)
    for number in partitions:
        assert found[number] == wanted.get(number, []), f"partition {number}"
    assert committed(env) == {number: len(values) for number, values in wanted.items()}


def end_txns(env: VirtualEnvironment, *, commits: bool = True) -> int:
    """Return how many transactions were committed, or aborted, by request."""
    return sum(exchange.request.committed is commits for exchange in env.cluster.history.of("EndTxn"))
