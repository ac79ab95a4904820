"""Calls of all partitions of a consumer at once, which end together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from asyncgroup.errors import ClosedError
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["call_each"]

T = TypeVar("T")


async def call_each(
    call: Callable[[PulsarConsumer], Awaitable[T]],
    asked: Iterable[PulsarConsumer],
    outlives_topics: Callable[[], bool],
) -> dict[PulsarConsumer, T]:
    """Call a coroutine function for partitions; return the results when all have ended.

    As Java's `FutureUtil.waitForAll`: one that fails stops no other, and the first error is raised at the end. If `outlives_topics`
    returns True then, a topic that was deleted fails no call.
    """
    consumers = list(asked)
    results = await asyncio.gather(*map(call, consumers), return_exceptions=True)
    found = dict[PulsarConsumer, T]()
    for consumer, result in zip(consumers, results, strict=True):
        if not isinstance(result, BaseException):
            found[consumer] = result
        elif not (_is_deleted(consumer, result) and outlives_topics()):
            raise result
    return found


def _is_deleted(consumer: PulsarConsumer, error: BaseException) -> bool:
    """Whether a consumer has ended because its topic is not there any more."""
    is_missing = isinstance(error, PulsarServerError) and error.code == ServerError.TOPIC_NOT_FOUND
    return consumer.has_ended and (is_missing or isinstance(error, ClosedError))
