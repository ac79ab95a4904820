"""The output of `asyncgroup demo`: a live display on a terminal, plain lines otherwise."""

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

LIVE_INTERVAL: Final = 0.2
"""Seconds between two updates of the live display."""
PLAIN_INTERVAL: Final = 1.5
"""Seconds between two updates in plain lines."""


class View(Protocol):
    """A running activity whose progress can be shown."""

    def render(self) -> RenderableType:
        """Return the current state, for the live display."""

    def lines(self) -> Iterable[str]:
        """Return lines about what has changed since the last call."""


class Screen:
    """The console of the demo; only the JSON result is printed elsewhere."""

    def __init__(self, *, to_stderr: bool) -> None:
        terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
        self.console = Console(stderr=to_stderr, highlight=False, width=None if terminal else 80)

    @property
    def is_live(self) -> bool:
        """Whether the output is a terminal."""
        return self.console.is_terminal

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        self.console.print(Text(text, style), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(table)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show a text with a spinner while the block runs, on a terminal only."""
        return self.console.status(what) if self.is_live else nullcontext()

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Bars]:
        """Show a progress bar with one task (id 0) while the block runs, on a terminal only."""
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
                await _wait(stop, LIVE_INTERVAL)
            live.update(view.render(), refresh=True)

    async def _show_lines(self, view: View, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await _wait(stop, PLAIN_INTERVAL)
            for line in view.lines():
                self.say(f"  {line}")


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
