"""The virtual clock: it jumps, keeps the order of timers, waits for threads, and raises errors instead of hanging."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import subprocess
import sys
import threading

import anyio
import anyio.to_thread
import pytest

import asyncgroup.testing
from asyncgroup.errors import AsyncGroupError, UsageError
from asyncgroup.testing import (
    Network,
    VirtualDeadlock,
    VirtualLivelock,
    VirtualTimeError,
    VirtualTimeLimit,
    VirtualTimeLoop,
    current_network,
    run_virtual,
)


def now() -> float:
    return asyncio.get_running_loop().time()


def runner(**options):
    """Return a Runner with a VirtualTimeLoop with these options."""
    return asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(**options))


# -- the clock ----------------------------------------------------------------------------------------------------------


def test_sleep_takes_exactly_its_time_and_no_other():
    async def story():
        times = [now()]
        for delay in (0.1, 0.2, 3600.0, 0):
            await asyncio.sleep(delay)
            times.append(now())
        return times

    assert run_virtual(story()) == [0.0, 0.1, 0.1 + 0.2, 0.1 + 0.2 + 3600.0, 0.1 + 0.2 + 3600.0]


@pytest.mark.parametrize("start", [0.0, 1.5, 1e9, 2e12])
def test_timers_fire_at_any_size_of_the_clock(start):
    async def story():
        await asyncio.sleep(0.25)
        return now()

    assert run_virtual(story(), start=start) == start + 0.25


def test_timers_of_one_instant_run_in_the_order_of_scheduling():
    async def story():
        loop, ran = asyncio.get_running_loop(), []
        handles = [loop.call_at(7.0, ran.append, number) for number in range(1000)]
        for number in range(0, 1000, 3):  # enough cancelled timers to make the loop rebuild its heap
            handles[number].cancel()
        await asyncio.sleep(7.0)
        await asyncio.sleep(0)
        return ran

    assert run_virtual(story()) == [number for number in range(1000) if number % 3]


def test_the_earlier_of_two_close_timers_runs_first():
    async def story():
        loop, ran = asyncio.get_running_loop(), []
        loop.call_at(math.nextafter(1.0, 2.0), ran.append, "second")
        loop.call_at(1.0, lambda: ran.append(("first", now())))
        await asyncio.sleep(2.0)
        return ran

    assert run_virtual(story()) == [("first", 1.0), "second"]


def test_ready_callbacks_run_before_the_clock_moves():
    async def story():
        trace = []

        async def turns():
            for _ in range(500):
                await asyncio.sleep(0)
            trace.append(("turns done", now()))

        async with asyncio.TaskGroup() as group:
            group.create_task(turns())
            await asyncio.sleep(0.001)
            trace.append(("slept", now()))
        return trace

    assert run_virtual(story()) == [("turns done", 0.0), ("slept", 0.001)]


def test_timeouts_of_asyncio_and_anyio_follow_the_clock():
    async def story():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 30)
        assert now() == 30
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(15):
                await asyncio.sleep(60)
        assert now() == 45
        with anyio.move_on_after(5) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        return now()

    assert run_virtual(story()) == 50


def trace_of_a_random_story(seed):
    async def story():
        rng, trace = random.Random(seed), []

        async def walker(name):
            for step in range(20):
                await asyncio.sleep(rng.choice([0, 0.5, 0.5, 1.25]))
                trace.append((now(), name, step))

        async with asyncio.TaskGroup() as group:
            for name in "abcde":
                group.create_task(walker(name))
        return trace

    return run_virtual(story())


def test_runs_are_deterministic():
    first = trace_of_a_random_story(1)
    assert first == trace_of_a_random_story(1)
    assert first != trace_of_a_random_story(2)
    assert len(first) == 100


def test_debug_mode_works():
    async def story():
        await asyncio.sleep(1)
        return asyncio.get_running_loop().get_debug()

    assert run_virtual(story(), debug=True) is True


# -- errors instead of hanging ------------------------------------------------------------------------------------------


async def wait_endlessly():
    await asyncio.Event().wait()


def test_a_deadlock_names_the_tasks_and_where_they_wait():
    async def story():
        await asyncio.sleep(12.5)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_endlessly(), name="stuck")

    with pytest.raises(VirtualDeadlock) as caught:
        run_virtual(story())
    message = str(caught.value)
    assert "t=12.5 s" in message
    assert "stuck (wait_endlessly) waits at testing/test_virtual_time.py" in message
    assert "in wait_endlessly" in message
    assert message.index("story") < message.index("stuck")


def test_an_infinite_sleep_is_a_deadlock_too():
    with pytest.raises(VirtualDeadlock, match="no timer is scheduled"):
        run_virtual(anyio.sleep_forever(), max_virtual_time=None)


def test_a_deadlock_message_names_faults_and_stays_short():
    async def story():
        current_network().blackhole("10.0.0.1", 9092)
        tasks = [asyncio.create_task(wait_endlessly()) for _ in range(50)]
        await asyncio.gather(*tasks)

    with pytest.raises(VirtualDeadlock) as caught:
        run_virtual(story())
    assert "blackhole (connects hang) 10.0.0.1:9092" in str(caught.value)
    assert "and 21 more" in str(caught.value)


def test_after_a_deadlock_the_loop_can_clean_up():
    cleaned = []

    async def story():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append(now())

    with pytest.raises(VirtualDeadlock), runner() as running:
        running.run(story())
    assert cleaned == [5.0]


def test_max_virtual_time_ends_an_endless_repetition():
    beats = []

    async def heartbeat():
        while True:
            await asyncio.sleep(3)
            beats.append(now())

    async def story():
        async with asyncio.TaskGroup() as group:
            group.create_task(heartbeat(), name="heartbeat")

    with pytest.raises(VirtualTimeLimit, match=r"after max_virtual_time \(t=110 s\)(?s:.*)heartbeat"):
        run_virtual(story(), start=10, max_virtual_time=100)
    assert beats[-1] == 109


def test_cleanup_after_the_time_limit_has_the_same_limit_again():
    cleaned = []

    async def story():
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)
            cleaned.append(now())

    with pytest.raises(VirtualTimeLimit), runner(max_virtual_time=100) as running:
        running.run(story())
    assert cleaned == [5.0]


def test_iterations_are_counted_for_each_instant():
    async def story():
        for _ in range(500):
            await asyncio.sleep(1)
        return now()

    with runner(max_turns=100) as running:
        assert running.run(story()) == 500


def test_iterations_at_one_instant_without_end_are_a_livelock():
    async def retry_without_delay():
        while True:
            await asyncio.sleep(0)

    with runner(max_turns=1000) as running, pytest.raises(VirtualLivelock, match="retry_without_delay"):
        running.run(retry_without_delay())


def test_virtual_errors_derive_from_the_package_errors():
    for error in (VirtualDeadlock, VirtualLivelock, VirtualTimeLimit):
        assert issubclass(error, VirtualTimeError)
    assert issubclass(VirtualTimeError, AsyncGroupError)


def test_run_virtual_passes_results_and_errors_through():
    async def fail():
        await asyncio.sleep(1)
        raise LookupError("mine")

    async def answer():
        return 42

    assert run_virtual(answer()) == 42
    with pytest.raises(LookupError, match="mine"):
        run_virtual(fail())


# -- threads and other real work ----------------------------------------------------------------------------------------


def work_for_a_while():
    """A job that takes real time."""
    threading.Event().wait(0.03)
    return "done"


async def by_to_thread():
    return await asyncio.to_thread(work_for_a_while)


async def by_executor():
    return await asyncio.get_running_loop().run_in_executor(None, work_for_a_while)


async def by_anyio():
    return await anyio.to_thread.run_sync(work_for_a_while)


async def by_anyio_with_a_limiter_of_its_own():
    return await anyio.to_thread.run_sync(work_for_a_while, limiter=anyio.CapacityLimiter(1))


@pytest.mark.parametrize("way", [by_to_thread, by_executor, by_anyio, by_anyio_with_a_limiter_of_its_own])
def test_the_clock_stands_still_while_a_thread_works(way):
    async def story():
        async with asyncio.timeout(0.001):  # shorter than the job takes in real time
            result = await way()
        assert now() == 0
        await asyncio.sleep(10)
        return result, now()

    assert run_virtual(story()) == ("done", 10)


def test_other_tasks_run_while_a_thread_works():
    async def story():
        from_loop, from_thread = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def job():
            loop.call_soon_threadsafe(from_thread.set)
            assert from_loop.wait(10)
            return "both"

        async def answer():
            await from_thread.wait()
            from_loop.set()

        answering = asyncio.create_task(answer())
        result = await asyncio.to_thread(job)
        await answering
        return result, now()

    assert run_virtual(story()) == ("both", 0.0)


def test_a_thread_can_run_a_coroutine_on_the_loop():
    async def story():
        loop = asyncio.get_running_loop()

        async def on_loop():
            await asyncio.sleep(0)
            return threading.current_thread() is threading.main_thread()

        return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(on_loop(), loop).result(10))

    assert run_virtual(story()) is True


def test_real_work_waits_for_other_threads():
    async def story():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        thread = threading.Thread(target=lambda: (work_for_a_while(), loop.call_soon_threadsafe(done.set)))
        with loop.real_work("my thread"):
            thread.start()
            async with asyncio.timeout(1):
                await done.wait()
        thread.join()
        return now()

    assert run_virtual(story()) == 0


def test_a_watched_descriptor_is_real_work():
    async def story():
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        here, there = socket.socketpair()
        thread = threading.Thread(target=lambda: (work_for_a_while(), there.send(b"x")))
        with here, there:
            loop.add_reader(here, readable.set)
            thread.start()
            async with asyncio.timeout(1):
                await readable.wait()
            loop.remove_reader(here)
        thread.join()
        await asyncio.sleep(5)
        return now()

    assert run_virtual(story()) == 5


@pytest.mark.parametrize("thread_pool", ["asyncio", "anyio"])
def test_a_thread_that_never_ends_is_named_in_the_deadlock(thread_pool):
    release = threading.Event()

    def never_ends():
        release.wait(30)

    async def story():
        run = asyncio.to_thread if thread_pool == "asyncio" else anyio.to_thread.run_sync
        try:
            async with asyncio.timeout(5):
                await run(never_ends)
        finally:
            release.set()

    description = "never_ends" if thread_pool == "asyncio" else r"1 job\(s\) of anyio.to_thread"
    with pytest.raises(VirtualDeadlock, match=f"no callback for 0.1 real seconds from: .*{description}"):
        with runner(real_wait_limit=0.1) as running:
            try:
                running.run(story())
            finally:
                release.set()


def test_an_abandoned_job_does_not_stop_the_clock():
    release = threading.Event()

    async def story():
        job = asyncio.get_running_loop().run_in_executor(None, release.wait, 30)
        await asyncio.sleep(0)
        job.cancel()
        await asyncio.sleep(60)
        release.set()
        return now()

    assert run_virtual(story()) == 60


# -- limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize(
    "call",
    [
        lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, ssl=True),
        lambda loop: loop.create_connection(asyncio.Protocol, sock=object()),
        lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 1, ssl=object()),
        lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
        lambda loop: loop.create_unix_connection(asyncio.Protocol, "path"),
        lambda loop: loop.create_unix_server(asyncio.Protocol, "path"),
        lambda loop: loop.connect_accepted_socket(asyncio.Protocol, object()),
    ],
)
async def test_unsupported_network_methods_raise(call):
    with pytest.raises(NotImplementedError, match="in-memory plain TCP"):
        await call(asyncio.get_running_loop())


def test_a_network_belongs_to_one_loop():
    network = Network()

    async def story():
        return current_network()

    assert run_virtual(story(), network=network) is network
    with pytest.raises(UsageError, match="one loop only"):
        VirtualTimeLoop(network=network)


async def test_an_ordinary_loop_has_no_virtual_network():
    with pytest.raises(UsageError, match="VirtualTimeLoop"):
        current_network()


@pytest.mark.parametrize("options", [{"latency": -1}, {"window": 0}, {"chunk_size": 0}])
def test_invalid_network_options(options):
    with pytest.raises(UsageError, match="at least 1"):
        Network(**options)


def test_closing_the_loop_drops_what_is_open():
    lost = []

    class Left(asyncio.Protocol):
        def connection_lost(self, error):
            lost.append(error)

    async def story():
        loop = asyncio.get_running_loop()
        await loop.create_server(Left, "10.0.0.1", 9092)
        await loop.create_connection(Left, "10.0.0.1", 9092)
        await asyncio.sleep(1)
        return current_network()

    network = run_virtual(story())
    assert network.connections() == ()
    assert network.listeners() == ()
    assert lost == []


def test_repr_shows_the_time():
    async def story():
        await asyncio.sleep(2.5)
        return repr(asyncio.get_running_loop())

    assert run_virtual(story()) == "<VirtualTimeLoop t=2.5 running=True closed=False>"


# -- the package --------------------------------------------------------------------------------------------------------


def test_public_names_are_imported_on_first_use():
    for name in asyncgroup.testing.__all__:
        assert getattr(asyncgroup.testing, name).__name__ == name
    assert set(asyncgroup.testing.__all__) <= set(dir(asyncgroup.testing))
    with pytest.raises(AttributeError, match="no attribute 'VirtualSpace'"):
        _ = asyncgroup.testing.VirtualSpace
    code = "import sys, asyncgroup.testing; print([m for m in sys.modules if m.startswith('asyncgroup.testing.')])"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, check=True)
    assert loaded.stdout.strip() == b"[]"
