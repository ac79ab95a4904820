"""Remove internal tracebacks from errors that Spark shows to users.

Spark turns an exception of a Python data source into text in the JVM: the whole traceback first, the message last. The
message of an AsyncGroupError is sufficient by itself, so its traceback inside this package is removed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from asyncgroup.errors import AsyncGroupError

__all__ = ["strip_batch_tracebacks", "strip_traceback"]

_log = logging.getLogger("asyncgroup.spark")

P = ParamSpec("P")
T = TypeVar("T")


def strip_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls: an AsyncGroupError leaves it without traceback, other exceptions unchanged.

    The traceback is logged by the logger `asyncgroup.spark` at level DEBUG.
    """

    @functools.wraps(method)  # Spark inspects the signature
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except AsyncGroupError as error:
            raise _stripped(error) from None

    return called


def strip_batch_tracebacks(batches: Iterator[T]) -> Iterator[T]:
    """Do the same for the iterator from which Spark reads the rows of a task."""
    try:
        yield from batches
    except AsyncGroupError as error:
        raise _stripped(error) from None


def _stripped(error: AsyncGroupError) -> AsyncGroupError:
    _log.debug("%s", error, exc_info=error)
    return error.with_traceback(None)
