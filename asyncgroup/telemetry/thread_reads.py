"""Read ClientMetrics from any thread, as exporters do: the values belong to the event loop of the clients."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncgroup.telemetry.client_metrics import ClientMetrics
    from asyncgroup.telemetry.readings import Readings

__all__ = ["READ_TIMEOUT", "read_from_any_thread"]

READ_TIMEOUT: Final = 1.0
"""Seconds for which another thread waits for the event loop."""


def read_from_any_thread(metrics: ClientMetrics, timeout: float = READ_TIMEOUT) -> Readings | None:
    """Return the values now; None if the event loop is blocked for `timeout` seconds.

    In the loop's own thread, and if the loop does not run, they are read at once. Raises what `metrics.read` raises.
    """
    loop = metrics.loop
    if loop is None or not loop.is_running() or loop is _running_loop():
        return metrics.read()
    result: Future[Readings] = Future()

    def read() -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(metrics.read())
            except Exception as error:  # noqa: BLE001  raised to the caller
                result.set_exception(error)

    try:
        loop.call_soon_threadsafe(read)
        return result.result(timeout)
    except TimeoutError:
        result.cancel()
        return None
    except RuntimeError:
        if loop.is_closed():  # since the first look at it
            return metrics.read()
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
