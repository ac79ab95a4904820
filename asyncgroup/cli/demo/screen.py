"""What is seen: live pictures at a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Final, Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "View"]

LIVE: Final = 0.2
PLAIN: Final = 1.5
"""Seconds between two pictures, at a terminal and elsewhere."""


class View(Protocol):
    """Something that goes on and can be looked at."""

    def render(self) -> RenderableType:
        """How it stands now, for a terminal."""

    def lines(self) -> Iterable[str]:
        """What there is to say now that was not said before."""


class Screen:
    """Everything the demonstration prints, apart from its JSON result."""

    def __init__(self, *, to_stderr: bool) -> None:
        terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
        self.console = Console(stderr=to_stderr, highlight=False, width=None if terminal else 80)

    @property
    def is_live(self) -> bool:
        return self.console.is_terminal

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self.console.print(Text(text, style), soft_wrap=True)

    def table(self, table: Table) -> None:
        """A table."""
        self.console.print(table)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """A word about what takes its time, with a spinner that goes away at the end of the block."""
        return self.console.status(what) if self.is_live else nullcontext()

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Bars]:
        """A progress bar with one task, number 0; nothing is seen of it elsewhere than at a terminal."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=self.console, transient=True, disable=not self.is_live) as bars:
            bars.add_task(what, total=total)
            yield bars

    @asynccontextmanager
    async def watch(self, view: View) -> AsyncIterator[None]:
        """Show the view while the block runs."""
        show = self._show_live if self.is_live else self._show_lines
        stop = asyncio.Event()
        showing = asyncio.create_task(show(view, stop), name="screen")
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait([showing])
        showing.result()

    async def _show_live(self, view: View, stop: asyncio.Event) -> None:
        from rich.live import Live

        with Live(console=self.console, auto_refresh=False) as live:
            while not stop.is_set():
                live.update(view.render(), refresh=True)
                await _wait(stop, LIVE)
            live.update(view.render(), refresh=True)

    async def _show_lines(self, view: View, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await _wait(stop, PLAIN)
            for line in view.lines():
                self.say(f"  {line}")


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
