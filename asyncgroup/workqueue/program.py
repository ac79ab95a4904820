"""`run_queue`: run a work queue as a program, with signal handling and an exit code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncgroup.checks import wrong_type
from asyncgroup.group.program import Program, check_no_loop

if TYPE_CHECKING:
    from asyncgroup.workqueue.work_queue import WorkQueue
    from asyncgroup.workqueue.workers import DeliveryHandler

__all__ = ["run_queue"]


def run_queue(queue: WorkQueue, handle: DeliveryHandler) -> int:
    """Handle deliveries until Ctrl-C or SIGTERM. Call it instead of `asyncio.run(main())`.

        sys.exit(run_queue(WorkQueue("localhost:9092", "billing", "orders"), handle))

    It enters the queue in a new event loop and runs `WorkQueue.run(handle)`. Signals as for `asyncgroup.run`: the first one
    closes the queue, so that handlers have their time, acknowledgements are committed and the member leaves; the second one
    cancels the handlers. Returns the exit code: 128 + the number of the first signal, 0 without one.

    Raises ConfigError for a handler that cannot be called with a delivery, before it connects; what entering the queue and `WorkQueue.run` raise; ConfigError if `queue` is not a WorkQueue; UsageError if an event loop
    is running already.
    """
    from asyncgroup.workqueue.work_queue import WorkQueue
    from asyncgroup.workqueue.workers import check_handler

    if not isinstance(queue, WorkQueue):
        raise wrong_type(
            "queue", queue, "a WorkQueue: run_queue(WorkQueue(servers, group_id, topics), handle)"
        )
    check_handler(handle)
    check_no_loop("run_queue", "`async with queue` and `await queue.run(handle)`")
    return asyncio.run(Program(queue, lambda: queue.run(handle)).run())
