"""One request for many keys: a part to each node at the same time, results by key, further attempts for the keys that need them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from typing import Any, TypeAlias, TypeVar

from asyncgroup.cluster.requests.actions import ERRORS, ErrorTable, RequestAction, action_of
from asyncgroup.cluster.requests.repeat import repeat
from asyncgroup.cluster.requests.results import Progress, Results
from asyncgroup.cluster.requests.routes import Located, RequestRoute, Shard, Target
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, ClosedError
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.net.backoff import RetryLoop

__all__ = ["Ask", "fan_out", "request_apart", "request_each", "request_one", "run_together"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

Ask: TypeAlias = Callable[[Target, list[K]], Awaitable[Results[K, V]]]
"""Sends one request to a target and returns the results of these keys. An error that it raises is that of all of them."""


async def request_each(
    keys: Iterable[K],
    route: RequestRoute[K],
    ask: Ask[K, V],
    *,
    api: str,
    retry: RetryLoop | None = None,
    table: ErrorTable = ERRORS,
    is_cut: bool = False,
    fails_fast: bool = False,
) -> Results[K, V]:
    """Return a value or an error for each key. `api` names the request in messages.

    Keys whose error another attempt may mend are requested again, alone, as long as `retry` allows it; without one there is
    one attempt. With `is_cut`, or if `retry` cuts attempts, no part takes longer than until its deadline: the keys of a node that
    has not answered have RequestTimedOut then, those of the others their values. With `fails_fast` the first final error ends
    the request. `table` says what codes mean for this request where that differs from `ERRORS`. Raises ClosedError.
    """
    progress: Progress[K, V] = Progress(keys, table, fails_fast=fails_fast)
    deadline = float("inf")
    if retry is not None:
        deadline = retry.deadline if is_cut else retry.cut_at

    async def attempt() -> RequestAction:
        left = progress.left
        located = await _locate(route, left, deadline, api, progress.last_error(left))
        found: Results[K, V] = Results({}, located.errors)
        for shard, part in await fan_out(located.shards, ask, api, deadline, progress.last_error):
            for key, error in part.errors.items():
                if action_of(error, table) is RequestAction.LOOK_UP:
                    route.forget(shard, key)
            found.values |= part.values
            found.errors |= part.errors
        return progress.apply(found)

    if progress.left:
        await repeat(attempt, lambda action: action, lambda _: retry)
    return progress.results()


async def request_apart(
    keys: Iterable[K],
    route: RequestRoute[K],
    ask: Ask[K, V],
    *,
    api: str,
    retry: RetryLoop | None = None,
    table: ErrorTable = ERRORS,
) -> Results[K, V]:
    """As `request_each`, but each node's part is repeated by itself, within the same limits.

    So a node that does not answer does not keep the keys of others from being repeated in time.
    """
    wanted = list(dict.fromkeys(keys))
    if retry is None or len(wanted) < 2:
        return await request_each(wanted, route, ask, api=api, retry=retry, table=table)
    located = await _locate(route, wanted, retry.cut_at, api)
    parts = [shard.keys for shard in located.shards]
    if located.errors:
        parts.append(list(located.errors))
    works = [
        (f"{api} for {part[0]}", request_each(part, route, ask, api=api, retry=retry.fork(), table=table))
        for part in parts
    ]
    found: Results[K, V] = Results()
    for results in await run_together(works):
        found.values |= results.values
        found.errors |= results.errors
    return found.in_order(wanted)


async def request_one(
    route: RequestRoute[None],
    ask: Callable[[Target], Awaitable[V]],
    *,
    api: str,
    retry: RetryLoop | None = None,
    table: ErrorTable = ERRORS,
) -> V:
    """Return the value of a request without keys, which one node answers. Raises its last error; the arguments are those of `request_each`."""

    async def ask_node(target: Target, _: list[None]) -> Results[None, V]:
        return Results({None: await ask(target)})

    return (await request_each([None], route, ask_node, api=api, retry=retry, table=table)).require()[None]


async def _locate(
    route: RequestRoute[K],
    keys: list[K],
    deadline: float,
    api: str,
    before: AsyncGroupError | None = None,
) -> Located[K]:
    try:
        return await within(deadline, route.locate(keys), before, f"lookup of the node for {api}")
    except ClosedError:
        raise
    except AsyncGroupError as error:
        return Located([], dict.fromkeys(keys, error))


async def fan_out(
    shards: list[Shard[K]],
    ask: Ask[K, V],
    api: str,
    deadline: float = float("inf"),
    before: Callable[[list[K]], AsyncGroupError | None] = lambda _: None,
) -> list[tuple[Shard[K], Results[K, V]]]:
    """Ask all targets at the same time, once; return each part with its results, which name every key of the part.

    One that fails is an error of its keys only. `before(keys)` is the error that a timeout at the `deadline` mentions. Raises
    ClosedError, after the other parts were cancelled.
    """

    async def one(shard: Shard[K]) -> Results[K, V]:
        what = f"{api} to {shard.target}"
        try:
            results = await within(deadline, ask(shard.target, shard.keys), before(shard.keys), what)
        except ClosedError:
            raise
        except AsyncGroupError as error:
            return Results.failed(shard.keys, error)
        return results.completed(shard.keys, f"the response to {api} of {shard.target}")

    results = await run_together([(f"{api} to {shard.target}", one(shard)) for shard in shards])
    return list(zip(shards, results, strict=True))


async def run_together(works: list[tuple[str, Coroutine[Any, Any, T]]]) -> list[T]:
    """Run the coroutines, each with the name of its task, at the same time; return their results in this order.

    Raises the first error, after the others were cancelled.
    """
    if len(works) == 1:  # needs no task
        return [await works[0][1]]
    tasks = [start_task(work, name=name) for name, work in works]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel_and_wait(*tasks)
    return [task.result() for task in tasks]
