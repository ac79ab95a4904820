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
    current: Callable[[], Iterable[PulsarConsumer]],
    asked: Iterable[PulsarConsumer] | None = None,
) -> dict[PulsarConsumer, T]:
    """Call a coroutine function for each partition, or some of them; return the results when all have ended.

    As Java's `FutureUtil.waitForAll`: one that fails stops no other, and the first error is raised at the end. `current` returns the
    partitions of that time: one that was left before, as its topic was deleted, fails no call.
    """
    consumers = list(current() if asked is None else asked)
    results = await asyncio.gather(*map(call, consumers), return_exceptions=True)
    found = dict[PulsarConsumer, T]()
    left = set(current())
    for consumer, result in zip(consumers, results, strict=True):
        if not isinstance(result, BaseException):
            found[consumer] = result
        elif consumer in left:
            raise result
    return found
