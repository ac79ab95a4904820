"""Run stories concurrently that mostly wait: each test waits for its own story, while the others continue."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Self, TypeAlias

import pytest

from asyncgroup.testing.virtual.errors import describe_tasks

__all__ = ["ConcurrentStories", "Story", "selected"]

Story: TypeAlias = Callable[[], Awaitable[None]]


class ConcurrentStories:
    """An async context manager; its end, like that of an async test, finds no task left.

    `stories` are the stories by name; they begin in order, and at most `limit` are under way.
    """

    def __init__(self, stories: Mapping[str, Story], limit: int) -> None:
        self._stories = dict(stories)
        self._slots = asyncio.Semaphore(limit)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[object]] = set()

    @classmethod
    def of(
        cls,
        request: pytest.FixtureRequest,
        names: Iterable[str],
        tell: Callable[[str], Awaitable[None]],
        limit: int,
    ) -> Self:
        """Return the stories that `tell` tells by their names, of those whose tests are selected to run."""
        return cls({name: functools.partial(tell, name) for name in selected(request, names)}, limit)

    async def __aenter__(self) -> Self:
        self._others = asyncio.all_tasks()
        self._tasks = {
            name: asyncio.create_task(self._run(story), name=name) for name, story in self._stories.items()
        }
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        left = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        assert not left, f"the stories left {len(left)} task(s) running:\n{describe_tasks(left)}"

    async def _run(self, story: Story) -> None:
        async with self._slots:
            await story()

    async def wait(self, name: str) -> None:
        """Wait until the story has ended; raises what it raised."""
        await asyncio.shield(self._tasks[name])


def selected(request: pytest.FixtureRequest, names: Iterable[str]) -> list[str]:
    """Return the names, among the parameters of the module's tests, whose tests are selected to run."""
    items = {
        item.name.partition("[")[2]
        for item in request.session.items
        if item.path == request.path and not any(mark.args[0] for mark in item.iter_markers("skipif"))
    }
    return [name for name in names if f"{name}]" in items]
