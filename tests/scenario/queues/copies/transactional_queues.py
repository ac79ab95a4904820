"""Helpers for stories of work queues with transactional copies: the queue, its handler, and who sees which copies."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from asyncgroup import Consumer, ConsumerConfig, Producer
from asyncgroup.workqueue import DeadLetter, Delivery, RetryTopic
from asyncgroup.workqueue.group_engine.copy_transactions import CopyTransactions
from tests.stories.queue_members import QueueMember, Work, acked, working
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import core_of

__all__ = [
    "DLQ",
    "RETRY",
    "VALUES",
    "Process",
    "copies",
    "each_once",
    "options",
    "producer_of",
    "until_acked",
    "work",
]

RETRY: Final = "orders-g-RETRY"
DLQ: Final = "orders-g-DLQ"
VALUES: Final = [b"reject 0", b"retry 1", b"ack 2", b"fail 3", b"ack 4", b"reject 5", b"retry 6", b"ack 7"]


def options(**more: Any) -> dict[str, Any]:
    """The options of a queue with transactional copies."""
    config = {"isolation_level": "read_committed", "close_timeout": 5.0, **more.pop("config", {})}
    made = {
        "transactional_copies": True,
        "retry": RetryTopic(RETRY, partitions=1),  # a name of the user, so that no copy is deleted
        "dead_letter": DeadLetter(3, partitions=1),
        "nack_backoff": 0.2,
    }
    return made | more | {"config": config}


async def work(delivery: Delivery) -> None:
    """Do what the value says; copies in the retry topic are acknowledged."""
    if delivery.record.topic == RETRY:
        return
    match (delivery.value or b"").split()[0]:
        case b"reject":
            await delivery.reject("bad")
        case b"retry":
            await delivery.reconsume_later(0.5)
        case b"fail":
            raise ValueError("broken")


async def copies(env: VirtualEnvironment, topic: str) -> list[bytes]:
    """Return the values that readers with `read_committed` see in a topic of one partition, when no transaction is open."""
    (part,) = env.cluster.topic(topic).partitions
    async with asyncio.timeout(env.limit):
        while part.last_stable_offset != part.high_watermark:
            await asyncio.sleep(1.0)
            (part,) = env.cluster.topic(topic).partitions
    found: list[bytes] = []
    async with Consumer(env.bootstrap_servers, ConsumerConfig(isolation_level="read_committed")) as consumer:
        reader = await consumer.partition(topic, 0, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                async for record in reader:
                    found.append(record.value or b"")  # noqa: PERF401  those before the timeout count
    return sorted(found)


async def until_acked(env: VirtualEnvironment, count: int = len(VALUES)) -> None:
    """Wait until all records of `orders`, and all that are to be seen in the retry topic, are acknowledged by commits."""
    async with asyncio.timeout(env.limit):
        while await acked(env) != list(range(count)) or not await _is_retry_topic_done(env):
            await asyncio.sleep(0.2)


async def _is_retry_topic_done(env: VirtualEnvironment) -> bool:
    done = set(await acked(env, topic=RETRY))
    (part,) = env.cluster.topic(RETRY).partitions
    return done >= set(range(part.high_watermark - 1)) and part.high_watermark > 0


async def each_once(env: VirtualEnvironment) -> None:
    """Each record that was rejected, failed or is to be tried again has one copy."""
    assert await copies(env, DLQ) == [b"fail 3", b"reject 0", b"reject 5"]
    assert await copies(env, RETRY) == [b"retry 1", b"retry 6"]


class Process:
    """A queue in a separate task, which connects from its own host; the tasks of the story do not."""

    def __init__(self, env: VirtualEnvironment, name: str, handle: Work = work, **more: Any) -> None:
        self._env = env
        self._handle = handle
        self._name = name
        self._options = options(**more)
        self._ended = asyncio.Event()
        self._opened: asyncio.Future[QueueMember] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> QueueMember:
        self._task = asyncio.create_task(self._run(), name=self._name)
        await asyncio.wait([self._task, self._opened], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        return self._opened.result()

    async def _run(self) -> None:
        async with working(self._env, self._name, self._handle, **self._options) as member:
            self._opened.set_result(member)
            await self._ended.wait()

    async def __aexit__(self, *_error: object) -> None:
        self._ended.set()
        await self._task


def producer_of(member: QueueMember) -> Producer:
    """Return the producer of copies."""
    copies_of = core_of(member.queue).engine.copies
    assert isinstance(copies_of, CopyTransactions)
    return copies_of._producer
