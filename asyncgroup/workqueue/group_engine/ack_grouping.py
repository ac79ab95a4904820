"""AckGrouping: when acknowledgements are committed, as Pulsar's `acknowledgmentGroupTime` and its 1,000 acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asyncgroup.lifecycle import wait_within

__all__ = ["AckGrouping"]


class AckGrouping:
    """Calls `commit` for acknowledgements `time` seconds after the first one, or earlier, as soon as there are `size`.

    With a time of 0 each acknowledgement is committed at once; those made during a commit share the next one. Commits at a
    revocation and at the end are made by the group.

    `is_worth(pending)` decides at `size` acknowledgements, and at each multiple of it, whether to commit before `time` has passed:
    the cost of a commit grows with its partitions.
    """

    def __init__(
        self,
        time: float,
        size: int,
        commit: Callable[[], Awaitable[None]],
        is_worth: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._time = time
        self._size = size
        self._commit = commit
        self._is_worth = is_worth
        self._pending = 0
        self._look_at = size
        self._begun = asyncio.Event()
        self._full = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AckGrouping: {self._pending} acknowledgements>"

    def note(self) -> None:
        """A record was acknowledged."""
        self._pending += 1
        if self._pending == 1:
            self._begun.set()
        if self._pending == self._look_at:
            if self._is_worth(self._pending):
                self._full.set()
            else:
                self._look_at += self._size

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self._begun.wait()
            if self._time:
                await wait_within(self._full, self._time)
            self._pending, self._look_at = 0, self._size
            self._begun.clear()
            self._full.clear()
            await self._commit()
