"""Calls of all partitions of a consumer at once, which end together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer

__all__ = ["call_each"]

T = TypeVar("T")


async def call_each(
    call: Callable[[PulsarConsumer], Awaitable[T]],
    asked: Iterable[PulsarConsumer],
    current: Callable[[], Iterable[PulsarConsumer]],
) -> dict[PulsarConsumer, T]:
    """Call a coroutine function for partitions; return the results when all have ended.

    As Java's `FutureUtil.waitForAll`: one that fails stops no other, and the first error is raised at the end. `current` returns the
    partitions of that time: one that was left before, as its topic was deleted, fails no call.
    """
    consumers = list(asked)
    results = await asyncio.gather(*map(call, consumers), return_exceptions=True)
    found = dict[PulsarConsumer, T]()
    for consumer, result in zip(consumers, results, strict=True):
        if not isinstance(result, BaseException):
            found[consumer] = result
        elif consumer in current():
            raise result
    return found
