"""Handler tasks: a common deadline, one cancellation each, and waiting for all of them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup.group.sessions.handler_tasks import REMINDER, HandlerTasks
from tests.stories.virtual import now


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


async def test_a_task_that_ends_in_time_is_not_cancelled() -> None:
    tasks, work = HandlerTasks("g"), Work(4)
    task = tasks.start(work(), "claim t-0")
    assert task.get_name() == "g: claim t-0"
    assert tasks.running == ["claim t-0"]
    tasks.limit(5)
    await tasks.wait()
    assert now() == 4
    assert (task.cancelled(), work.cancelled) == (False, [])


async def test_a_task_is_cancelled_once_and_may_take_its_time_after_that() -> None:
    tasks, work = HandlerTasks("g"), Work(60, cleaning=20)
    task = tasks.start(work(), "claim t-0")
    tasks.limit(5)
    await tasks.wait()
    assert now() == 25
    assert task.cancelled()
    assert work.cancelled == [5]


async def test_later_limits_only_bring_the_deadline_forward() -> None:
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


async def test_a_limit_of_zero_cancels_before_it_returns() -> None:
    tasks, work = HandlerTasks("g"), Work(60)
    task = tasks.start(work(), "claim t-0")
    await asyncio.sleep(1)
    tasks.limit(0)
    assert task.cancelling() == 1
    await tasks.wait()
    assert now() == 1


async def test_a_task_started_after_the_deadline_is_cancelled_at_once() -> None:
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


async def test_a_limit_applies_to_tasks_started_later() -> None:
    tasks, late = HandlerTasks("g"), Work(60)
    tasks.limit(10)
    await asyncio.sleep(4)
    tasks.start(late(), "claim t-1")
    await tasks.wait()
    assert late.cancelled == [10]


async def test_a_new_limit_after_a_wait_is_set() -> None:
    """Found by review: the cancelled timer of the old limit was taken for a nearer deadline, and none was set."""
    tasks, work = HandlerTasks("g"), Work(60)
    tasks.limit(5)
    await tasks.wait()
    tasks.start(work(), "cleanup")
    tasks.limit(10)
    await tasks.wait()
    assert work.cancelled == [10]


async def test_wait_includes_tasks_started_in_the_meantime_and_ignores_errors() -> None:
    tasks = HandlerTasks("g")

    async def fail() -> None:
        await asyncio.sleep(1)
        tasks.start(Work(3)(), "claim t-1")
        raise ValueError("the handler's own")

    task = tasks.start(fail(), "claim t-0")
    await tasks.wait()
    assert now() == 4
    assert isinstance(task.exception(), ValueError)


@pytest.mark.parametrize("waits", [0, 1, 2])
async def test_a_task_that_ignores_its_cancellation_is_logged(
    waits: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As often if several callers wait for it, or none."""
    tasks, work = HandlerTasks("g"), Work(600, cleaning=2.5 * REMINDER, stubborn=True)
    task = tasks.start(work(), "claim t-0")
    tasks.limit(1)
    with caplog.at_level(logging.WARNING):
        await asyncio.gather(task, *(tasks.wait() for _ in range(waits)))
        assert now() == 1 + 2.5 * REMINDER
        await asyncio.sleep(2 * REMINDER)
    assert [record.getMessage() for record in caplog.records] == [
        "g: claim t-0 was cancelled, but is still running"
    ] * 2
    assert work.cancelled == [1]


async def test_nothing_to_wait_for() -> None:
    await HandlerTasks("g").wait()
    assert now() == 0
