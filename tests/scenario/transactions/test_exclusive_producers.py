"""Exclusive producers: who holds the lock, who waits for it, and what a lost lock does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ExclusiveProducer,
    Producer,
    ProducerConfig,
    ProducerLockHeld,
    ProducerLockLost,
    UsageError,
)
from tests.scenario.ends.test_every_loop_iteration import LoopIterations
from tests.scenario.support import now
from tests.stories.virtual import VirtualEnvironment

GROUP = "asyncgroup-lock-orders"
TIMEOUT = 10.0
HEARTBEAT = 1.0


def exclusive(env: VirtualEnvironment, name: str = "ann", **options: Any) -> ExclusiveProducer:
    """Return an exclusive producer; a client id tells its requests from others."""
    config = ProducerConfig(client_id=name, linger=0.0, **options.pop("config", {}))
    return ExclusiveProducer(
        env.bootstrap_servers,
        "orders",
        config,
        session_timeout=TIMEOUT,
        clock=lambda: int(now() * 1000),
        **options,
    )


class Program:
    """A program that waits for the lock, writes a record, and holds the lock until `stop`."""

    def __init__(self, env: VirtualEnvironment, name: str, host: str, **options: Any) -> None:
        self.name = name
        self.holds = asyncio.Event()
        self.stop = asyncio.Event()
        self.producer: Producer | None = None
        self._lock = exclusive(env, name, wait=True, **options)
        with env.network.source(host):
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._lock as self.producer:
            await self.producer.send("orders", self.name.encode(), partition=0)
            self.holds.set()
            await self.stop.wait()

    async def end(self) -> None:
        self.stop.set()
        await self.task


def written(env: VirtualEnvironment) -> list[bytes | None]:
    return [record.value for record in env.cluster.records("orders", 0)]


async def test_the_second_one_waits_until_the_first_has_left(env: VirtualEnvironment) -> None:
    first = Program(env, "ann", "10.2.0.1")
    await first.holds.wait()
    second = Program(env, "bob", "10.2.0.2")
    await asyncio.sleep(100.0)
    assert not second.holds.is_set()
    assert first.producer is not None
    await first.producer.send("orders", b"ann again", partition=0)  # it kept the lock while the other joined
    await first.end()
    left = now()
    await second.holds.wait()
    assert now() - left <= 2 * HEARTBEAT
    await second.end()
    assert written(env) == [b"ann", b"ann again", b"bob"]
    assert env.cluster.group(GROUP).offsets == {}
    assert env.cluster.history.of("Fetch") == []


async def test_those_that_wait_get_it_in_order(env: VirtualEnvironment) -> None:
    programs = []
    for number, name in enumerate(["one", "two", "three", "four"]):
        programs.append(Program(env, name, f"10.2.0.{number + 1}"))
        await asyncio.sleep(5.0)
    for program in programs:
        await program.holds.wait()
        assert sum(other.holds.is_set() and not other.task.done() for other in programs) == 1
        await program.end()
    assert written(env) == [b"one", b"two", b"three", b"four"]


async def test_exclusive_raises_at_once_if_another_holds_the_lock(env: VirtualEnvironment) -> None:
    first = Program(env, "ann", "10.2.0.1")
    await first.holds.wait()
    began = now()
    with pytest.raises(ProducerLockHeld, match="another producer of topic 'orders' holds the lock, group 'asyncgroup-lock-orders'"):  # fmt: skip
        async with exclusive(env, "bob"):
            pytest.fail("it does not hold the lock")
    assert now() - began <= 2 * HEARTBEAT
    assert first.producer is not None
    await first.producer.send("orders", b"ann again", partition=0)
    await first.end()
    async with exclusive(env, "bob") as producer:
        await producer.send("orders", b"bob", partition=0)
    assert written(env) == [b"ann", b"ann again", b"bob"]


async def test_the_next_one_takes_over_after_the_session_timeout_of_a_dead_one(
    env: VirtualEnvironment,
) -> None:
    first = Program(env, "ann", "10.2.0.1", config={"delivery_timeout": 200.0})
    await first.holds.wait()
    second = Program(env, "bob", "10.2.0.2")
    await asyncio.sleep(30.0)
    env.network.blackhole("10.2.0.1")
    died = now()
    assert first.producer is not None
    unanswered = asyncio.create_task(first.producer.send("orders", b"lost", partition=0))
    await second.holds.wait()
    assert TIMEOUT - HEARTBEAT <= now() - died <= TIMEOUT + 3 * HEARTBEAT
    with pytest.raises(ProducerLockLost, match="the producer of topic 'orders' has lost its lock") as caught:
        await unanswered
    assert caught.value.group_id == GROUP
    assert now() - died <= TIMEOUT + 5 * HEARTBEAT
    for call in (first.producer.send, first.producer.enqueue):
        with pytest.raises(ProducerLockLost):
            await call("orders", b"late")
    with pytest.raises(ClosedError):
        first.producer.send_nowait("orders", b"late")
    env.network.heal("10.2.0.1")
    await first.end()
    await asyncio.sleep(100.0)
    assert second.producer is not None
    await second.producer.send("orders", b"bob again", partition=0)
    await second.end()
    # it does not fence: the request that the network had delayed was processed after bob's
    assert written(env) == [b"ann", b"bob", b"lost", b"bob again"]


async def test_a_member_that_the_coordinator_expelled_fails_its_producer(env: VirtualEnvironment) -> None:
    first = Program(env, "ann", "10.2.0.1")
    await first.holds.wait()
    env.cluster.faults.on("Heartbeat", client_id="ann").error("UNKNOWN_MEMBER_ID")
    await asyncio.sleep(2 * HEARTBEAT)
    assert first.producer is not None
    with pytest.raises(ProducerLockLost):
        await first.producer.send("orders", b"late")
    # it does not ask for the lock again while its program still has the old producer
    await asyncio.sleep(2 * TIMEOUT)
    async with exclusive(env, "bob") as producer:
        await producer.send("orders", b"bob", partition=0)
    await first.end()


async def test_a_coordinator_that_moves_does_not_end_the_lock(env: VirtualEnvironment) -> None:
    first = Program(env, "ann", "10.2.0.1")
    await first.holds.wait()
    await env.cluster.stop_node(env.cluster.coordinator(GROUP))
    await asyncio.sleep(5 * TIMEOUT)
    assert first.producer is not None
    await first.producer.send("orders", b"ann again", partition=0)
    await first.end()


async def test_a_cancelled_wait_leaves_the_group(env: VirtualEnvironment) -> None:
    first = Program(env, "ann", "10.2.0.1")
    await first.holds.wait()
    second = Program(env, "bob", "10.2.0.2")
    await asyncio.sleep(20.0)
    second.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second.task
    await asyncio.sleep(2 * HEARTBEAT)
    assert len(env.cluster.group(GROUP).members) == 1
    await first.end()


async def test_an_unknown_topic(env: VirtualEnvironment) -> None:
    with pytest.raises(BrokerError, match="nowhere"):
        async with ExclusiveProducer(env.bootstrap_servers, "nowhere"):
            pytest.fail("there is no such topic")


async def test_an_error_in_the_block_releases_the_lock(env: VirtualEnvironment) -> None:
    with pytest.raises(ZeroDivisionError):
        async with exclusive(env):
            raise ZeroDivisionError
    async with exclusive(env, "bob") as producer:
        await producer.send("orders", b"bob", partition=0)


async def test_it_is_entered_once(env: VirtualEnvironment) -> None:
    """A second time it would hold no lock: the events of the first time are set."""
    lock = exclusive(env, wait=True)
    async with lock as producer:
        with pytest.raises(UsageError, match="entered only once"):
            await lock.__aenter__()
        await producer.send("orders", b"one", partition=0)
    other = Program(env, "bob", "10.2.0.2")
    await other.holds.wait()
    with pytest.raises(UsageError, match="entered only once"):
        await lock.__aenter__()
    await other.end()
    assert written(env) == [b"one", b"bob"]


async def restart(env: VirtualEnvironment) -> None:
    node = env.cluster.coordinator(GROUP)
    await env.cluster.stop_node(node)
    await asyncio.sleep(3.0)
    await env.cluster.start_node(node)


@pytest.mark.full
@pytest.mark.virtual(max_virtual_time=864_000)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["cancel", "cut", "move", "coordinator dies"])
async def test_something_happens_after_each_iteration_of_the_loop(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch, how: str, every: int
) -> None:
    """In each iteration the producer ends, leaves the group, and leaves no task running; then another one gets the lock."""
    iterations = LoopIterations(monkeypatch)
    group = env.cluster.group

    async def told(after: int) -> int:
        before, tasks = iterations.count, asyncio.all_tasks()
        program = Program(env, "ann", "10.2.0.1")
        program.stop.set()

        def act() -> None:
            if how == "cancel":
                program.task.cancel()
            elif how == "cut":
                env.network.cut("10.2.0.1")
            elif how == "move":
                env.cluster.move_coordinator(GROUP, env.cluster.coordinator(GROUP) % 3 + 1)
            else:
                acts.append(asyncio.create_task(restart(env)))

        acts: list[asyncio.Task[None]] = []
        iterations.after(after, act)
        await asyncio.wait([program.task], timeout=100.0)
        assert program.task.done()
        lasted = iterations.count - before
        iterations.cancel()
        await asyncio.sleep(0)  # what is due in this iteration
        if not program.task.cancelled() and (error := program.task.exception()) is not None:
            assert isinstance(error, AsyncGroupError), repr(error)
            assert how != "cancel"
        if acts:
            await asyncio.wait(acts)
        assert not group(GROUP).members
        async with asyncio.timeout(60.0):
            while asyncio.all_tasks() != tasks:  # the environment's own client refreshes metadata at times
                await asyncio.sleep(1.0)
        return lasted

    whole = await told(10**9)
    for after in range(1, whole + 1, every):
        try:
            await told(after)
        except BaseException as error:
            error.add_note(f"after {after} of {whole} iterations")
            raise
    last = Program(env, "bob", "10.2.0.2")
    await last.holds.wait()
    await last.end()
