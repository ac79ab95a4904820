"""Seeks into a batch on the wire: what brokers push after one, and after acknowledgements and reconnects that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from asyncgroup.pulsar.wire.enums import SubType
from tests.pulsar_broker.wire_client import WireClient

__all__ = ["KINDS", "positions", "positions_expected", "seeks", "seeks_expected"]

KINDS: Final = (SubType.EXCLUSIVE, SubType.FAILOVER, SubType.SHARED, SubType.KEY_SHARED)

IN_ORDER: Final = (SubType.EXCLUSIVE, SubType.FAILOVER)

CASES: Final[Sequence[tuple[tuple[int, ...] | None, tuple[int, ...]]]] = (
    (None, ()),
    ((2, 3), ()),
    (None, (1, 3)),
    ((2, 3), (1, 3)),
    ((0, 1, 2, 3), (1, 3)),
)
"""The messages that the ack set of the seek leaves, and those that were acknowledged before."""


async def _after(client: WireClient, topic: str, kind: SubType, count: int = 1) -> list[str]:
    """Return what a new consumer gets, which leaves after that."""
    consumer = await client.subscribe(topic, "s", kind)
    found = await consumer.received(count)
    await consumer.close()
    return found


async def seeks(client: WireClient, topic: str) -> dict[str, list[list[str]]]:
    """Seek to the second of three batches; return what comes then, after a reconnect, and after acknowledgements."""

    async def one(kind: SubType, left: tuple[int, ...] | None, acked: tuple[int, ...]) -> list[list[str]]:
        name = f"{topic}-{kind.name}-{left}-{acked}".replace(" ", "")
        producer = await client.produce_to(name)
        for entry in range(3):
            await producer.send(*(b"%d%d" % (entry, index) for index in range(4)))
        first = await client.subscribe(name, "s", kind)
        await first.received(3)
        for index in acked:
            await first.ack(1, index=index, size=4)
        await first.seek(1, left, 4)
        found = [await _after(client, name, kind), await _after(client, name, kind)]
        second = await client.subscribe(name, "s", kind)
        await second.received(1)
        for index in left or ():
            await second.ack(1, index=index, size=4)
        await second.close()
        return [*found, await _after(client, name, kind)]

    cases = [(kind, *case) for kind in KINDS for case in CASES]
    found = await asyncio.gather(*(one(*case) for case in cases))
    return {
        f"{kind.name} {left} {acked}": each for (kind, left, acked), each in zip(cases, found, strict=True)
    }


def seeks_expected() -> dict[str, list[list[str]]]:
    """Return what `seeks` finds."""
    found = {}
    for kind in KINDS:
        for left, acked in CASES:
            # brokers keep acknowledgements of before in subscriptions whose consumers share messages
            survivors = () if kind in IN_ORDER else acked
            values = [f"1{index}" for index in left or range(4) if index not in survivors]
            first = [f"1:{','.join(values)}", "2:20,21,22,23"]
            found[f"{kind.name} {left} {acked}"] = [first, first, first[1:] if left else first]
    return found


async def positions(client: WireClient, topic: str) -> dict[str, list[str]]:
    """Seek to odd positions, then send another batch; return what comes."""

    async def one(kind: SubType, entry: int, words: Sequence[int]) -> list[str]:
        name = f"{topic}-{kind.name}-{entry}-{'-'.join(map(str, words))}"
        producer = await client.produce_to(name)
        for number in range(2):
            await producer.send(b"%d0" % number, b"%d1" % number)
        first = await client.subscribe(name, "s", kind)
        await first.received(2)
        await first.seek_to(entry, words)
        await producer.send(b"20", b"21")
        return await _after(client, name, kind)

    cases = [(SubType.SHARED, entry, words) for entry, words in POSITIONS]
    found = await asyncio.gather(*(one(*case) for case in cases))
    return {f"{entry} {words}": each for (_, entry, words), each in zip(cases, found, strict=True)}


POSITIONS: Final[Sequence[tuple[int, Sequence[int]]]] = (
    (1, [0]),
    (1, [0, 0]),
    (1, [-1]),
    (1, [2, 0]),
    (2, []),
    (3, []),
    (100, []),
    (3, [1]),
)


def positions_expected() -> dict[str, list[str]]:
    """Return what `positions` finds: after the last entry each position is that of the next one."""
    whole, last = ["1:10,11", "2:20,21"], ["2:20,21"]
    found = [whole, whole, whole, ["1:11", "2:20,21"], last, last, last, last]
    return {f"{entry} {words}": each for (entry, words), each in zip(POSITIONS, found, strict=True)}
