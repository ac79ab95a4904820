"""Handler tasks: a deadline, one cancellation each, and nobody is left behind."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup.group.handler_tasks import REMINDER, HandlerTasks

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


def now() -> float:
    return asyncio.get_running_loop().time()


class Work:
    """A handler's method that counts its cancellations and takes `cleaning` seconds after one."""

    def __init__(self, seconds: float, cleaning: float = 0.0, *, stubborn: bool = False) -> None:
        self.seconds, self.cleaning, self.stubborn = seconds, cleaning, stubborn
        self.cancelled: list[float] = []
        self.began = False

    async def __call__(self) -> None:
        self.began = True
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled.append(now())
            try:
                await asyncio.sleep(self.cleaning)
            except asyncio.CancelledError:
                self.cancelled.append(now())
                raise
            if not self.stubborn:
                raise


async def test_what_ends_in_time_is_never_cancelled() -> None:
    tasks, work = HandlerTasks("g"), Work(4)
    task = tasks.start(work(), "claim t-0")
    assert task.get_name() == "g: claim t-0"
    assert task in tasks
    assert asyncio.current_task() not in tasks
    tasks.limit(5)
    await tasks.wait()
    assert now() == 4
    assert (task.cancelled(), work.cancelled) == (False, [])


async def test_the_deadline_cancels_once_and_what_the_handler_does_then_has_its_time() -> None:
    tasks, work = HandlerTasks("g"), Work(60, cleaning=20)
    task = tasks.start(work(), "claim t-0")
    tasks.limit(5)
    await tasks.wait()
    assert now() == 25
    assert task.cancelled()
    assert work.cancelled == [5]


async def test_later_limits_only_bring_the_moment_forward() -> None:
    tasks, work = HandlerTasks("g"), Work(60)
    tasks.start(work(), "claim t-0")
    tasks.limit(30)
    tasks.limit(50)
    await asyncio.sleep(5)
    tasks.limit(10)
    tasks.limit(12)
    await tasks.wait()
    assert work.cancelled == [15]


async def test_limits_after_the_cancellation_do_nothing() -> None:
    tasks, work = HandlerTasks("g"), Work(60, cleaning=20)
    tasks.start(work(), "claim t-0")
    tasks.limit(1)
    await asyncio.sleep(2)
    tasks.limit(1)
    tasks.limit(0)
    await tasks.wait()
    assert work.cancelled == [1]


async def test_no_time_at_all_cancels_within_the_call() -> None:
    tasks, work = HandlerTasks("g"), Work(60)
    task = tasks.start(work(), "claim t-0")
    await asyncio.sleep(1)
    tasks.limit(0)
    assert task.cancelling() == 1
    await tasks.wait()
    assert now() == 1


async def test_a_task_that_comes_after_the_deadline_is_cancelled_at_once() -> None:
    tasks, late = HandlerTasks("g"), Work(60)
    tasks.limit(0)
    done: list[asyncio.Task[None]] = []
    task = tasks.start(late(), "cleanup", done.append)
    await tasks.wait()
    await asyncio.sleep(0)
    assert task.cancelled()
    assert not late.began
    assert done == [task]
    assert now() == 0


async def test_a_limit_counts_for_tasks_that_come_later_too() -> None:
    tasks, late = HandlerTasks("g"), Work(60)
    tasks.limit(10)
    await asyncio.sleep(4)
    tasks.start(late(), "claim t-1")
    await tasks.wait()
    assert late.cancelled == [10]


async def test_a_wait_that_ends_leaves_no_timer_that_a_new_limit_would_take_for_its_own() -> None:
    """Found by review: after a wait the old, dead timer stood for a nearer deadline, and the new one was not set."""
    tasks, work = HandlerTasks("g"), Work(60)
    tasks.limit(5)
    await tasks.wait()
    tasks.start(work(), "cleanup")
    tasks.limit(10)
    await tasks.wait()
    assert work.cancelled == [10]


async def test_waiting_takes_in_tasks_that_start_meanwhile_and_errors_are_not_its_business() -> None:
    tasks = HandlerTasks("g")

    async def fail() -> None:
        await asyncio.sleep(1)
        tasks.start(Work(3)(), "claim t-1")
        raise ValueError("the handler's own")

    task = tasks.start(fail(), "claim t-0")
    await tasks.wait()
    assert now() == 4
    assert isinstance(task.exception(), ValueError)


async def test_one_that_ignores_its_cancellation_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, work = HandlerTasks("g"), Work(600, cleaning=2.5 * REMINDER, stubborn=True)
    tasks.start(work(), "claim t-0")
    tasks.limit(1)
    with caplog.at_level(logging.WARNING):
        await tasks.wait()
    assert now() == 1 + 2.5 * REMINDER
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["g: claim t-0 was cancelled, but is still running"] * 2
    assert work.cancelled == [1]


async def test_nothing_to_wait_for() -> None:
    await HandlerTasks("g").wait()
    assert now() == 0
