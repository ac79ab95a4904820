"""The end of an engine's partitions: their deliveries have some time to end, then their handlers are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from asyncgroup.workqueue.delivery import Work
from asyncgroup.workqueue.engine import OpenQueue

__all__ = ["ClosingPartition", "end_partitions"]


class ClosingPartition(Protocol):
    """A partition whose queue begins no more deliveries of it."""

    work: Work

    async def wait_idle(self) -> None:
        """Wait until the deliveries and their handlers have ended."""
        ...


async def end_partitions(
    queue: OpenQueue, partitions: Sequence[ClosingPartition], close_timeout: float
) -> None:
    """Wait until the deliveries of closed partitions have ended, or cancel their handlers after `close_timeout`; then remove them.

    They are removed also if the caller is cancelled.
    """
    try:
        async with asyncio.timeout(close_timeout):
            for each in partitions:
                await each.wait_idle()
    except TimeoutError:
        for each in partitions:
            queue.lose(each.work)
            queue.interrupt_all(each.work)
        for each in partitions:
            await each.wait_idle()
    finally:
        for each in partitions:
            queue.remove(each.work)
            queue.became_inactive(each.work.tp)
