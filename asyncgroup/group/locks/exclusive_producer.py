"""ExclusiveProducer: one producer of a topic at a time, with a consumer group as the lock.

Pulsar's access modes Exclusive and WaitForExclusive. The one member of the group that is assigned partition 0 holds the lock; it
reads nothing and commits nothing. The brokers do not know of the lock, so it does not fence.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import fields
from types import TracebackType

from asyncgroup.checks import (
    DURATION,
    FLAG,
    check_clock,
    check_group_id,
    check_rng,
    check_topic,
    timedelta_hint,
)
from asyncgroup.cluster import Cluster
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError, ProducerLockHeld, ProducerLockLost, UsageError
from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.group.locks.assignor import LockAssignor
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.session import Session
from asyncgroup.hooks import Hooks, check_hooks
from asyncgroup.lifecycle import start_task
from asyncgroup.model import MillisClock, wall_clock
from asyncgroup.producer import Producer

__all__ = ["ExclusiveProducer"]


class ExclusiveProducer:
    """A producer that holds the lock of a topic; entering returns the Producer.

        async with ExclusiveProducer("localhost:9092", "orders", wait=True) as producer:
            await producer.send("orders", b"one dozen")

    If another one holds the lock, entering waits for it (`wait=True`, WaitForExclusive in Pulsar), those that wait for the
    longest time first, or raises ProducerLockHeld (Exclusive). When the lock is lost, because no broker was reached for
    `session_timeout` or the coordinator expelled the member, the producer fails: the records that are not acknowledged and all
    later calls raise ProducerLockLost. Leaving the block sends the remaining records and then releases the lock.

    It is a convention among programs that use it with the same `group_id`: brokers accept records of any other producer. Nor
    does it fence: a request that the network has delayed is processed when it arrives, perhaps long after its sender lost the
    lock and another one began. Use transactions where that must not be.

    `group_id` is the group that serves as the lock, by default `asyncgroup-lock-` and the topic; every process needs permission
    to read it and the topic. `session_timeout` (seconds): after a holder's death the next one begins when it has passed.
    """

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        topic: str,
        config: ProducerConfig | None = None,
        *,
        wait: bool = False,
        group_id: str | None = None,
        session_timeout: float = 10.0,
        hooks: Iterable[object] = (),
        clock: MillisClock = wall_clock,
        rng: random.Random | None = None,
    ) -> None:
        """Raises ConfigError for an invalid argument."""
        check_topic(topic)
        check_clock(clock)
        check_rng(rng)
        if not FLAG[0](wait):
            raise ConfigError("wait", wait, FLAG[1])
        if not DURATION[0](session_timeout):
            allowed = DURATION[1] + timedelta_hint(session_timeout, DURATION[1])
            raise ConfigError("session_timeout", session_timeout, allowed)
        self.topic = topic
        self._config = ProducerConfig.of(config)
        self._servers = bootstrap_servers
        self._wait = wait
        self._hooks = hooks if isinstance(hooks, Hooks) else check_hooks(hooks)
        self._clock = clock
        self._random = rng
        self._group_id = f"asyncgroup-lock-{topic}" if group_id is None else check_group_id(group_id)
        self._lock_config = _lock_config(self._config, session_timeout, LockAssignor(clock()))
        self._exits = AsyncExitStack()
        self._holder = _Holder(self._lose)
        self._producer: Producer | None = None
        self._running: asyncio.Task[None] | None = None  # the membership of the group
        self._is_entered = False
        self._is_closing = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closing else "waiting" if self._producer is None else "holding"
        return f"<ExclusiveProducer of {self.topic!r}, lock {self._group_id!r}: {state}>"

    async def __aenter__(self) -> Producer:
        """Wait for the lock and return the producer.

        Raises ProducerLockHeld, BrokerError for an unknown topic, UsageError if it was entered before.
        """
        if self._is_entered:
            raise UsageError("an ExclusiveProducer can be entered only once; create a new one")
        self._is_entered = True
        try:
            cluster = await self._enter_cluster()
            await self._acquire(cluster)
            self._producer = Producer(
                cluster, self._config, hooks=self._hooks, clock=self._clock, rng=self._random
            )
            await self._producer.__aenter__()
            self._exits.push_async_exit(self._close_producer)
            if self._holder.cause is not None:  # lost in the meantime
                raise self._lost_error(self._holder.cause)
        except BaseException:
            self._is_closing = True
            await self._exits.aclose()
            raise
        return self._producer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.__aexit__(kind, error, trace)

    async def _enter_cluster(self) -> Cluster:
        if isinstance(self._servers, Cluster):
            return self._servers
        cluster = Cluster(self._servers, self._config, hooks=self._hooks, rng=self._random)
        return await self._exits.enter_async_context(cluster)

    async def _acquire(self, cluster: Cluster) -> None:
        """Join the group, and wait until this member holds the lock."""
        group = ConsumerGroup(cluster, self._group_id, self._lock_config)
        await group.__aenter__()
        group.pause((self.topic, 0))  # nothing is fetched
        running = start_task(group.run(self.topic, self._holder), name=f"lock {self._group_id}")
        self._exits.push_async_callback(_release, group, running)
        self._running = running
        running.add_done_callback(self._on_run_done)
        waits = [start_task(self._holder.acquired.wait()), running]
        if not self._wait:
            waits.append(start_task(self._holder.refused.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waits:
                if waiter is not running:
                    waiter.cancel()
        if running.done():
            running.result()
        if not self._holder.acquired.is_set():
            raise ProducerLockHeld(self.topic, self._group_id)

    async def _close_producer(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._producer is not None
        try:
            await self._producer.__aexit__(kind, error, trace)
        finally:
            self._is_closing = True

    def _on_run_done(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            self._lose(error)

    def _lose(self, cause: BaseException | None) -> None:
        """The lock is lost, unless the block is being left: fail the producer, and do not ask for the lock again."""
        if self._is_closing:
            return
        if self._producer is not None:
            self._producer._inner.end(self._lost_error(cause))
        if self._running is not None:
            self._running.cancel()

    def _lost_error(self, cause: BaseException | None) -> ProducerLockLost:
        error = ProducerLockLost(self.topic, self._group_id, str(cause))
        error.__cause__ = cause
        return error


class _Holder(Handler):
    """Holds the lock while its claim lives."""

    def __init__(self, on_lost: Callable[[BaseException | None], None]) -> None:
        self._on_lost = on_lost
        self.acquired = asyncio.Event()
        self.refused = asyncio.Event()
        self.cause: BaseException | None = None
        """Why the lock was lost."""

    async def setup(self, session: Session) -> None:
        if not session.partitions:
            self.refused.set()

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002  the handler's signature
        self.acquired.set()
        await claim.wait_ended()
        self.cause = claim.cause
        self._on_lost(claim.cause)


def _lock_config(config: ProducerConfig, session_timeout: float, assignor: LockAssignor) -> ConsumerConfig:
    """Return the settings of the group: the connection settings of the producer, and those of the lock."""
    shared = {field.name: getattr(config, field.name) for field in fields(ClientConfig)}
    return ConsumerConfig(
        **shared,
        assignors=(assignor,),
        session_timeout=session_timeout,
        heartbeat_interval=session_timeout / 10,
        auto_commit=False,
        auto_offset_reset="latest",
    )


async def _release(group: ConsumerGroup, running: asyncio.Task[None]) -> None:
    """Leave the group, so that the next member gets the lock at once."""
    await group.aclose()
    await asyncio.wait([running])
