"""BackgroundTasks and wait_shielded: every task is awaited, whichever task is cancelled and when."""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial

import anyio
import pytest

from asyncgroup.errors import BrokerError, ClosedError, CommitFailedError, ConfigError, ErrorCode
from asyncgroup.lifecycle import (
    BackgroundTasks,
    await_shared,
    cancel_and_wait,
    copy_error,
    mark_retrieved,
    run_until,
    start_task,
    wait_shielded,
    wait_within,
)

pytestmark = pytest.mark.virtual


class Work:
    """A function to spawn; counts how often it started and ended."""

    def __init__(self, seconds: float = 3600.0, error: Exception | None = None) -> None:
        self.seconds = seconds
        self.error = error
        self.started = self.ended = 0

    async def __call__(self) -> None:
        self.started += 1
        try:
            await asyncio.sleep(self.seconds)
            if self.error:
                raise self.error
        finally:
            self.ended += 1


async def test_stop_ends_all_tasks() -> None:
    tasks, work = BackgroundTasks("Test"), Work()
    await tasks.start()
    assert tasks.is_open
    for _ in range(3):
        tasks.spawn(work, name="work")
    await asyncio.sleep(1)
    await tasks.stop()
    assert (work.started, work.ended) == (3, 3)
    assert not tasks.is_open
    await tasks.stop()


async def test_a_function_spawned_just_before_stop_still_starts_and_ends() -> None:
    """A future that the function would resolve must not stay pending because the function never started."""
    tasks, work = BackgroundTasks("Test"), Work()
    await tasks.start()
    tasks.spawn(work, name="work")
    await tasks.stop()
    assert (work.started, work.ended) == (1, 1)


async def test_nothing_is_spawned_before_the_start_and_after_the_stop() -> None:
    tasks = BackgroundTasks("Test")
    with pytest.raises(ClosedError, match="Test is closed"):
        tasks.spawn(Work(), name="work")
    await tasks.start()
    await tasks.stop()
    with pytest.raises(ClosedError):
        tasks.spawn(Work(), name="work")
    with pytest.raises(ClosedError, match="create a new one"):
        await tasks.start()


async def test_stop_without_start() -> None:
    await BackgroundTasks("Test").stop()


async def test_task_names_begin_with_the_objects_name() -> None:
    tasks = BackgroundTasks("Test")
    await tasks.start()
    tasks.spawn(Work(), name="work")
    await asyncio.sleep(0)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert {"Test: owner", "Test: work"} <= names
    await tasks.stop()


async def test_a_failure_ends_the_siblings_and_leaves_stop_as_itself() -> None:
    tasks, sibling = BackgroundTasks("Test"), Work()
    await tasks.start()
    tasks.spawn(sibling, name="sibling")
    tasks.spawn(Work(1.0, ValueError("first")), name="one")
    tasks.spawn(Work(1.0, KeyError("second")), name="two")
    await asyncio.sleep(2)
    assert not tasks.is_open
    assert sibling.ended == 1
    with pytest.raises(ValueError, match="first") as caught:
        await tasks.stop()
    assert any("second" in note for note in caught.value.__notes__)


async def test_on_failure_is_called_at_once(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[tuple[float, Exception]] = []
    tasks = BackgroundTasks("Test", lambda error: failures.append((asyncio.get_running_loop().time(), error)))
    await tasks.start()
    tasks.spawn(Work(1.0, ValueError("a bug")), name="work")
    await asyncio.sleep(5)
    assert [(at, str(error)) for at, error in failures] == [(1.0, "a bug")]
    assert "Test: work failed" in caplog.text
    with pytest.raises(ValueError, match="a bug"):
        await tasks.stop()


async def test_on_failure_is_called_although_a_log_filter_raises() -> None:
    """Regression test: an object waited forever for its tasks, which had ended."""

    def refuse(record: logging.LogRecord) -> bool:
        raise OSError("the disk of the log is full")

    failures: list[str] = []
    tasks = BackgroundTasks("Test", lambda error: failures.append(str(error)))
    await tasks.start()
    log = logging.getLogger("asyncgroup")
    log.addFilter(refuse)
    try:
        tasks.spawn(Work(1.0, ValueError("a bug")), name="work")
        await asyncio.sleep(5)
    finally:
        log.removeFilter(refuse)
    assert failures == ["a bug"]
    with pytest.raises(OSError, match="disk"):
        await tasks.stop()


@pytest.mark.parametrize("moment", [0, 1])
async def test_a_start_that_is_cancelled_leaves_nothing(moment: int) -> None:
    tasks = BackgroundTasks("Test")
    task = asyncio.create_task(tasks.start())
    for _ in range(moment):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not tasks.is_open


async def test_stop_is_carried_to_its_end_when_the_caller_is_cancelled() -> None:
    tasks, slow = BackgroundTasks("Test"), Stubborn()
    await tasks.start()
    tasks.spawn(slow, name="slow")
    await asyncio.sleep(1)
    stopping = asyncio.create_task(tasks.stop())
    await asyncio.sleep(1)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert slow.ended
    assert asyncio.get_running_loop().time() == pytest.approx(6.0)


class Stubborn:
    """Takes five seconds to end, even when cancelled."""

    ended = False

    async def __call__(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(5)
            self.ended = True


async def test_stop_under_a_cancelled_anyio_scope_waits_without_spinning() -> None:
    """anyio cancels again at every loop iteration: without a shield the loop would spin until the end."""
    tasks, slow = BackgroundTasks("Test"), Stubborn()
    await tasks.start()
    tasks.spawn(slow, name="slow")
    with anyio.move_on_after(1):
        try:
            await asyncio.sleep(3600)
        finally:
            await tasks.stop()
    assert slow.ended


async def test_a_spawned_function_may_call_stop() -> None:
    tasks, sibling = BackgroundTasks("Test"), Work()
    await tasks.start()
    reached = []

    async def closer() -> None:
        await tasks.stop()
        reached.append("after stop")
        await asyncio.sleep(3600)

    tasks.spawn(sibling, name="sibling")
    tasks.spawn(closer)
    async with asyncio.timeout(10):
        while tasks.is_open:
            await asyncio.sleep(0.1)
        await tasks.stop()
    assert reached == ["after stop"]
    assert sibling.ended == 1


async def test_enter_and_exit_may_run_in_different_tasks() -> None:
    """Fixtures and exit stacks do that; a task group held open across the two would raise an error."""
    tasks, work = BackgroundTasks("Test"), Work()
    await asyncio.create_task(tasks.start())
    tasks.spawn(work, name="work")
    await asyncio.create_task(tasks.stop())
    assert work.started == work.ended


async def test_a_function_is_spawned_in_a_callback() -> None:
    """Regression test: anyio's task group refused it if sniffio was installed, which knows no library there."""
    tasks, work = BackgroundTasks("Test"), Work()
    await tasks.start()
    asyncio.get_running_loop().call_soon(partial(tasks.spawn, work, name="work"))
    await asyncio.sleep(1)
    await tasks.stop()
    assert (work.started, work.ended) == (1, 1)


async def test_a_function_that_another_one_spawns_at_its_end_is_awaited() -> None:
    tasks, last = BackgroundTasks("Test"), Work()
    await tasks.start()

    async def first() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            tasks.spawn(last, name="last")

    tasks.spawn(first)
    await asyncio.sleep(1)
    await tasks.stop()
    assert (last.started, last.ended) == (1, 1)


async def test_a_cancelled_owner_task_waits_for_the_others() -> None:
    """As at the end of `asyncio.run`, which cancels all tasks."""
    tasks, slow = BackgroundTasks("Test"), Stubborn()
    await tasks.start()
    tasks.spawn(slow, name="slow")
    await asyncio.sleep(1)
    (owner,) = (task for task in asyncio.all_tasks() if task.get_name() == "Test: owner")
    owner.cancel()
    await asyncio.wait([owner])
    assert slow.ended
    assert not tasks.is_open


# --- start_task -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio(loop_factories=["virtual", "eager"])
async def test_a_task_does_not_begin_before_its_creator_goes_on() -> None:
    """This also holds with `asyncio.eager_task_factory`: the creator records the task first."""
    begun: list[bool] = []

    async def work() -> str:
        begun.append(True)
        return "done"

    task = start_task(work(), name="work")
    assert (begun, task.done(), task.get_name()) == ([], False, "work")
    assert await task == "done"


@pytest.mark.asyncio(loop_factories=["virtual", "eager"])
async def test_a_task_that_is_cancelled_at_once_never_begins() -> None:
    work = Work()
    task = start_task(work())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()  # no warning about a coroutine that was never awaited
    assert work.started == 0


# --- wait_shielded --------------------------------------------------------------------------------------------------


async def test_wait_shielded_gives_result_and_error() -> None:
    assert await wait_shielded(asyncio.create_task(asyncio.sleep(1, "done"))) == "done"
    with pytest.raises(ValueError, match="it failed"):
        await wait_shielded(asyncio.create_task(Work(1.0, ValueError("it failed"))()))


async def test_wait_shielded_waits_through_many_cancellations_and_raises_at_the_end() -> None:
    work = Work(10.0)
    waiting = asyncio.create_task(wait_shielded(asyncio.create_task(work())))
    for _ in range(3):
        await asyncio.sleep(1)
        waiting.cancel()
    assert not waiting.done()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.ended
    assert asyncio.get_running_loop().time() == pytest.approx(10.0)


@pytest.mark.parametrize("turns", range(3))
async def test_a_cancellation_just_after_the_end_is_not_lost(turns: int) -> None:
    """The waiter resumes some loop iterations after the end of the task; a cancellation in between must count."""
    gate = asyncio.Event()
    waiting = asyncio.create_task(wait_shielded(asyncio.create_task(gate.wait())))
    await asyncio.sleep(1)
    gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    assert waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_wait_shielded_does_not_break_a_timeout_around_it() -> None:
    work = Work(10.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await wait_shielded(asyncio.create_task(work()))
    assert work.ended


async def test_wait_shielded_of_a_cancelled_task_is_a_cancellation() -> None:
    task = asyncio.create_task(Work()())
    asyncio.get_running_loop().call_later(1, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await wait_shielded(task)


async def test_a_failure_during_a_cancelled_wait_shielded_gives_no_warning() -> None:
    waiting = asyncio.create_task(wait_shielded(asyncio.create_task(Work(5.0, ValueError("lost"))())))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def answer(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_work_that_ends_before_its_stop() -> None:
    stop = asyncio.Event()
    task = await run_until(stop.wait(), answer(5.0), "work")
    assert (task.result(), asyncio.get_running_loop().time()) == ("done", 5.0)


async def test_work_is_cancelled_when_its_stop_comes_first() -> None:
    work = Work()
    task = await run_until(asyncio.sleep(2.0), work(), "work")
    assert (task.cancelled(), work.ended, asyncio.get_running_loop().time()) == (True, 1, 2.0)


async def test_work_that_fails_keeps_its_error() -> None:
    task = await run_until(asyncio.sleep(2.0), Work(1.0, ValueError("no"))(), "work")
    assert isinstance(task.exception(), ValueError)


async def test_run_until_cancels_its_work_with_the_caller() -> None:
    work = Work()
    caller = asyncio.create_task(run_until(asyncio.Event().wait(), work(), "work"))
    await asyncio.sleep(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended == 1


async def test_cancelling_waits_for_the_ends_and_drops_the_errors() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(3)

    failed = asyncio.create_task(Work(0.0, ValueError("no"))())
    slow = asyncio.create_task(stubborn())
    await asyncio.sleep(1)
    await cancel_and_wait(failed, slow)
    assert (slow.cancelled(), asyncio.get_running_loop().time()) == (True, 4.0)
    await cancel_and_wait()


async def test_tasks_that_are_cancelled_together_with_their_owner() -> None:
    """`asyncio.run` does that when it ends; on 3.12 and later the owner looped without a pause, as they were done already."""
    tasks = BackgroundTasks("test")
    await tasks.start()
    for _ in range(3):
        tasks.spawn(asyncio.Event().wait)
    await asyncio.sleep(0.01)
    ours = asyncio.current_task()
    ended = [task for task in asyncio.all_tasks() if task is not ours]
    assert len(ended) == 4
    for task in sorted(ended, key=lambda task: "owner" in task.get_name()):
        task.cancel()
    await asyncio.wait(ended)
    assert not tasks.is_open


async def test_waiting_for_an_event_within_a_time() -> None:
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    assert not await wait_within(event, 2.0)
    loop.call_later(1.0, event.set)
    assert await wait_within(event, 5.0)
    assert await wait_within(event, None)
    assert loop.time() == 3.0


async def test_a_retrieved_exception_is_not_reported() -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    for how in (lambda f: f.set_exception(ValueError("no")), lambda f: f.cancel()):
        future: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(mark_retrieved)
        how(future)
        await asyncio.sleep(0)
        del future
    gc.collect()
    assert complaints == []


class Odd(Exception):  # a constructor that cannot be called with `args`
    def __init__(self, *, what: str) -> None:
        super().__init__(f"odd: {what}", what)


async def test_a_copy_of_an_error_has_all_but_its_identity() -> None:
    error = BrokerError(ErrorCode.NOT_COORDINATOR, "group 'g'", "moved")
    error.add_note("a note")
    try:
        raise error from OSError(111, "refused")
    except BrokerError:
        made = copy_error(error)
    assert made is not error
    assert (str(made), made.code, made.what, made.args) == (str(error), error.code, error.what, error.args)
    assert made.__cause__ is error.__cause__
    assert made.__suppress_context__
    assert made.__traceback__ is error.__traceback__
    made.add_note("its own")
    assert error.__notes__ == ["a note"]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "refused"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        ConfigError("linger", -1, "0 or more"),
        CommitFailedError("g", {}),
    ],
)
async def test_copies_of_errors_that_are_made_of_several_values(error: Exception) -> None:
    made = copy_error(error)
    assert made is not error
    assert (type(made), str(made), vars(made)) == (type(error), str(error), vars(error))


class Coded(Exception):
    def __init__(self, code: object) -> None:
        super().__init__(f"code {code}")
        self.code = code


async def test_the_text_of_a_foreign_error_is_kept() -> None:
    made = copy_error(Coded(5))
    assert (str(made), made.code) == ("code 5", 5)


async def test_an_error_that_cannot_be_copied_is_returned_itself() -> None:
    error = Odd(what="x")
    assert copy_error(error) is error


async def test_a_shared_future_gives_result_error_and_cancellation() -> None:
    loop = asyncio.get_running_loop()
    result: asyncio.Future[int] = loop.create_future()
    waiting = [asyncio.create_task(await_shared(result)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert waiting[0].cancelled()
    assert not result.cancelled()
    result.set_result(7)
    assert await asyncio.gather(*waiting[1:]) == [7, 7]
    gone: asyncio.Future[int] = loop.create_future()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await await_shared(gone)
