"""Errors without a page of noise before them.

What leaves a Python data source becomes text in the JVM: the whole traceback, and the message last. Our own errors say
in their message what is to be known, so they leave without the calls inside of us that raised them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from asyncgroup.errors import AsyncGroupError

__all__ = ["batches_without_traceback", "without_traceback"]

_log = logging.getLogger("asyncgroup.spark")

P = ParamSpec("P")
T = TypeVar("T")


def without_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Let an AsyncGroupError leave a method that Spark calls without the traceback inside it; others leave as they are.

    The traceback goes to the log `asyncgroup.spark`, at the level DEBUG.
    """

    @functools.wraps(method)  # Spark looks at signatures
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except AsyncGroupError as error:
            raise _strip_traceback(error) from None

    return called


def batches_without_traceback(batches: Iterator[T]) -> Iterator[T]:
    """The same for an iterator that Spark takes the rows of a task from."""
    try:
        yield from batches
    except AsyncGroupError as error:
        raise _strip_traceback(error) from None


def _strip_traceback(error: AsyncGroupError) -> AsyncGroupError:
    _log.debug("%s", error, exc_info=error)
    return error.with_traceback(None)
