"""Spark's Python processes: event loops that run only during calls, errors that become text in the JVM, a heap to freeze.

Spark calls a source or sink in a process beside the driver, and in the Python workers of the executors, which run many short
tasks one after another. Between the calls no loop runs: connections are not watched, and time passes that no wait includes.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from asyncgroup.errors import AsyncGroupError
from asyncgroup.spark.option_words import OptionWords
from asyncgroup.spark.quiet_daemon import silence_closed_sockets

__all__ = [
    "freeze_heap",
    "notice_closed_connections",
    "strip_batch_tracebacks",
    "strip_traceback",
]

_log = logging.getLogger("asyncgroup.spark")

P = ParamSpec("P")
T = TypeVar("T")

LOOP_TURNS: Final = 3
"""Iterations of the loop: one polls sockets and timers, one reads end-of-file, one closes the transports."""

THAW_EVERY: Final = 1000
"""Tasks after which frozen objects are also collected."""

_frozen_pid = 0
"""Id of the process in which `freeze_heap` has run; a forked child has another id and begins again."""

_frozen_tasks = 0
"""Tasks of this process after which `freeze_heap` has run."""

# --- event loops that run only during calls ---------------------------------------------------------------------------


async def notice_closed_connections() -> None:
    """Let the loop process what happened while it was not running: connections closed by brokers, or idle for too long.

    Call this before the connections are used again.
    """
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)


# --- errors -----------------------------------------------------------------------------------------------------------


def strip_traceback(words: OptionWords) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method that Spark calls: an AsyncGroupError leaves it without traceback, other exceptions unchanged.

    Spark turns an exception into text in the JVM: the whole traceback first, the message last, which is sufficient by
    itself: with the options of the user in place of keys, by `words`. The error as it was is logged with its traceback by the
    logger `asyncgroup.spark` at level DEBUG. Nor does pyspark's daemon print one if Spark closes the process's socket.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(method)  # Spark inspects the signature
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            silence_closed_sockets()
            try:
                return method(*args, **kwargs)
            except AsyncGroupError as error:
                raise _stripped(error, words) from None

        return called

    return decorate


def strip_batch_tracebacks(batches: Iterator[T], words: OptionWords) -> Iterator[T]:
    """Do the same for the iterator from which Spark reads the rows of a task."""
    silence_closed_sockets()
    try:
        yield from batches
    except AsyncGroupError as error:
        raise _stripped(error, words) from None


def _stripped(error: AsyncGroupError, words: OptionWords) -> AsyncGroupError:
    _log.debug("%s", error, exc_info=error)
    return words.error(error).with_traceback(None)


# --- memory -----------------------------------------------------------------------------------------------------------


def freeze_heap() -> None:
    """Exclude the objects that exist after a task from garbage collection (`gc.freeze`).

    Spark collects all generations after each task (`pyspark/daemon.py`). With pyarrow loaded this takes 15 ms and more, as long
    as reading thousands of rows, and delays the worker's next task; so do the records and states of a thousand partitions that
    are kept for later tasks. Frozen objects are still freed when their reference count drops to zero, and those in cycles after
    THAW_EVERY tasks. Does nothing outside a Spark task.
    """
    global _frozen_pid, _frozen_tasks
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    if _frozen_pid != os.getpid():
        _frozen_pid, _frozen_tasks = os.getpid(), 0
    if _frozen_tasks % THAW_EVERY == 0:
        gc.unfreeze()
    _frozen_tasks += 1
    gc.collect()  # otherwise existing garbage would also be frozen
    gc.freeze()
