"""Blocking handlers of a work queue: run a plain function for each delivery in a worker thread."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
import anyio.to_thread

from asyncgroup.checks import is_async
from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import start_task, wait_shielded
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.workers import DeliveryHandler, signature_error

__all__ = ["in_thread"]


def in_thread(function: Callable[[Delivery], object]) -> DeliveryHandler:
    """Return a handler for `WorkQueue.run` that runs the plain function `function(delivery)` in a thread.

    There are as many threads as the queue has handlers (`concurrency`). A thread cannot be cancelled: after an ack timeout and
    at the close the function is waited for. It may read the delivery; to call a method of it that waits, use
    `anyio.from_thread.run(delivery.reject, "reason")`. Raises ConfigError for an async function, which needs no thread, and for
    one with other arguments.
    """
    if not callable(function) or is_async(function):
        raise ConfigError("in_thread", function, "a plain function (delivery)")
    if (error := signature_error(function)) is not None:
        allowed = f"a plain function that is called with one argument, the delivery ({error})"
        raise ConfigError("in_thread", function, allowed)
    limiter = anyio.CapacityLimiter(math.inf)  # `concurrency` limits them

    async def handle(delivery: Delivery) -> None:
        work = anyio.to_thread.run_sync(function, delivery, limiter=limiter)
        await wait_shielded(start_task(work))

    return handle
