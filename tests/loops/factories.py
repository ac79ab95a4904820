"""The event loops that tests run on: those of asyncio, with eager tasks, in virtual time, and uvloop.

`pytest --loop eager` starts the tasks of every test eagerly, as a program does that sets `asyncio.eager_task_factory`, and
`pytest --loop uvloop` runs those in real time on uvloop. `test_loops.py` runs the main stories on each of them.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

import pytest

from asyncgroup.testing import VirtualTimeLoop

__all__ = ["LOOPS", "loop_factories", "reason_to_skip"]

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class EagerVirtualLoop(VirtualTimeLoop):
    """A virtual loop that runs the first step of each task at once."""

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Generator[Any, None, T] | Coroutine[Any, Any, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        return super()._new_task(loop, work, **{"eager_start": True, **options})


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


LOOPS: Final[dict[str, LoopFactory]] = {
    "asyncio": asyncio.new_event_loop,
    "eager": _eager_loop,
    "uvloop": _uvloop,
}
"""The loops in real time, by the values of the option `--loop`."""


def loop_factories(item: pytest.Item, *, in_virtual_time: bool) -> dict[str, LoopFactory]:
    """Return the event loops that a test can run on, by the names in its marker `asyncio(loop_factories=…)`."""
    chosen, marker = item.config.getoption("--loop"), item.get_closest_marker("asyncio")
    virtual = item.get_closest_marker("virtual")
    virtual_loop = functools.partial(
        EagerVirtualLoop if chosen == "eager" else VirtualTimeLoop, **(virtual.kwargs if virtual else {})
    )
    if marker is not None and "loop_factories" in marker.kwargs:
        return {"real": LOOPS[chosen], "virtual": virtual_loop, "eager": _eager_loop, "uvloop": _uvloop}
    return {"virtual": virtual_loop} if in_virtual_time or virtual is not None else {"real": LOOPS[chosen]}


def reason_to_skip(item: pytest.Function) -> str | None:
    """Return why a test cannot run on its loop here; None if it can."""
    callspec = getattr(item, "callspec", None)
    factory: Any = callspec.params.get("_asyncio_loop_factory") if callspec is not None else None
    if getattr(factory, "func", factory) in (_eager_loop, EagerVirtualLoop) and sys.version_info < (3, 12):
        return "eager tasks need Python 3.12"
    if factory is _uvloop and importlib.util.find_spec("uvloop") is None:
        return "uvloop is not installed"
    return None
