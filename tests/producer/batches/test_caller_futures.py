"""The futures of callers: one callback of the loop wakes all of a batch, and the rest is as with asyncio's own."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from asyncgroup import RecordMetadata
from asyncgroup.producer.batches.results import CallbackQueue, CallerFuture

pytestmark = pytest.mark.real

METADATA = RecordMetadata("t", 0, 1, 2)


def started() -> Any:
    callbacks = CallbackQueue()
    callbacks.start()
    return callbacks


async def wait(future: CallerFuture) -> RecordMetadata:
    return await future


async def tasks_of(futures: list[CallerFuture]) -> list[asyncio.Task[RecordMetadata]]:
    tasks = [asyncio.create_task(wait(future)) for future in futures]
    await asyncio.sleep(0)
    return tasks


async def test_one_callback_wakes_all_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks, woken = started(), list[int]()
    futures = [CallerFuture(loop=callbacks) for _ in range(5)]

    async def caller(number: int) -> None:
        await futures[number]
        woken.append(number)

    tasks = [asyncio.create_task(caller(number)) for number in range(5)]
    await asyncio.sleep(0)
    loop, calls = asyncio.get_running_loop(), list[object]()
    call_soon: Any = loop.call_soon
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon", lambda *a, **k: (calls.append(a[0]), call_soon(*a, **k))[1])
        for future in futures:
            future.set_result(METADATA)
    assert len(calls) == 1
    assert woken == []
    await asyncio.sleep(0)
    assert woken == list(range(5))
    await asyncio.gather(*tasks)


async def test_results_errors_and_cancellation() -> None:
    callbacks = started()
    futures = [CallerFuture(loop=callbacks) for _ in range(4)]
    tasks = await tasks_of(futures)
    tasks[0].cancel("enough")
    futures[1].set_result(METADATA)
    futures[2].set_exception(ValueError("refused"))
    await asyncio.sleep(0)
    assert futures[0].cancelled()
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await tasks[0]
    assert await tasks[1] == METADATA
    with pytest.raises(ValueError, match="refused"):
        await tasks[2]
    assert not tasks[3].done()
    futures[3].set_result(METADATA)
    assert await tasks[3] == METADATA


async def test_cancelled_after_its_result_as_with_any_future() -> None:
    callbacks = started()
    future = CallerFuture(loop=callbacks)
    (task,) = await tasks_of([future])
    future.set_result(METADATA)
    assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_time_limits_and_scopes() -> None:
    callbacks = started()
    future = CallerFuture(loop=callbacks)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await future
    with anyio.move_on_after(0.01) as scope:
        await CallerFuture(loop=callbacks)
    assert scope.cancelled_caught


async def test_callers_keep_their_context() -> None:
    callbacks, variable = started(), ContextVar[int]("variable")
    seen = []

    async def caller(number: int, future: CallerFuture) -> None:
        variable.set(number)
        await future
        seen.append(variable.get())

    futures = [CallerFuture(loop=callbacks) for _ in range(3)]
    tasks = [asyncio.create_task(caller(n, future)) for n, future in enumerate(futures)]
    await asyncio.sleep(0)
    for future in futures:
        future.set_result(METADATA)
    await asyncio.gather(*tasks)
    assert seen == [0, 1, 2]


def test_a_caller_that_ends_the_loop_leaves_the_others_waiting_for_its_next_run() -> None:
    loop = asyncio.new_event_loop()
    try:
        woken: list[int] = []

        async def caller(number: int, future: CallerFuture) -> None:
            await future
            if number == 1:
                raise SystemExit
            woken.append(number)

        tasks: list[asyncio.Task[None]] = []

        async def begin() -> None:
            callbacks = started()
            futures = [CallerFuture(loop=callbacks) for _ in range(4)]
            tasks.extend(asyncio.create_task(caller(n, future)) for n, future in enumerate(futures))
            await asyncio.sleep(0)
            for future in futures:
                future.set_result(METADATA)
            await asyncio.wait(tasks)

        with pytest.raises(SystemExit):
            loop.run_until_complete(begin())
        assert woken == [0]
        loop.run_until_complete(asyncio.sleep(0))
        assert woken == [0, 2, 3]
        assert [task.done() for task in tasks] == [True] * 4
        assert isinstance(tasks[1].exception(), SystemExit)
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


async def test_an_error_that_was_never_read_is_reported() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    future = CallerFuture(loop=started())
    future.set_exception(ValueError("lost"))
    del future
    gc.collect()
    assert [str(context["exception"]) for context in reported] == ["lost"]


async def test_it_knows_its_loop() -> None:
    callbacks = started()
    assert CallerFuture(loop=callbacks).get_loop() is asyncio.get_running_loop()
    with pytest.raises(RuntimeError, match="before the producer is open"):
        CallerFuture(loop=CallbackQueue()).get_loop()  # type: ignore[arg-type]


async def test_held_callers_are_woken_in_the_same_turn() -> None:
    callbacks, events = started(), list[object]()
    futures = [CallerFuture(loop=callbacks) for _ in range(3)]

    async def caller(number: int) -> None:
        await futures[number]
        events.append(number)

    tasks = [asyncio.create_task(caller(number)) for number in range(3)]
    await asyncio.sleep(0)

    def on_response() -> None:
        callbacks.hold()
        for future in futures:
            future.set_result(METADATA)
        events.append("handled")
        callbacks.call_held()
        events.append("woken")

    asyncio.get_running_loop().call_soon(on_response)
    await asyncio.gather(*tasks)
    assert events == ["handled", 0, 1, 2, "woken"]


async def test_a_task_cannot_wake_others_at_once() -> None:
    callbacks = started()
    futures = [CallerFuture(loop=callbacks) for _ in range(2)]
    tasks = await tasks_of(futures)
    callbacks.hold()
    for future in futures:
        future.set_result(METADATA)
    callbacks.call_held()
    assert not any(task.done() for task in tasks)
    assert await asyncio.gather(*tasks) == [METADATA, METADATA]


def test_an_exit_by_a_held_caller_leaves_the_loop_after_the_turn() -> None:
    """The connection that received the response must handle the rest of what it received."""
    loop, woken, handled = asyncio.new_event_loop(), list[int](), list[str]()

    async def caller(number: int, future: CallerFuture) -> None:
        await future
        woken.append(number)
        if number == 0:
            raise SystemExit(7)

    async def main() -> None:
        callbacks = started()
        futures = [CallerFuture(loop=callbacks) for _ in range(3)]
        tasks.extend(asyncio.create_task(caller(n, future)) for n, future in enumerate(futures))
        await asyncio.sleep(0)

        def on_response() -> None:
            callbacks.hold()
            for future in futures:
                future.set_result(METADATA)
            callbacks.call_held()
            handled.append("response")

        asyncio.get_running_loop().call_soon(on_response)
        await asyncio.gather(*tasks[1:])

    tasks: list[asyncio.Task[None]] = []
    try:
        running = loop.create_task(main())
        with pytest.raises(SystemExit):
            loop.run_until_complete(running)
        assert handled == ["response"]
        loop.run_until_complete(running)
        assert woken == [0, 1, 2]
        assert isinstance(tasks[0].exception(), SystemExit)
    finally:
        loop.close()
