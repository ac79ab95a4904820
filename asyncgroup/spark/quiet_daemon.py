"""Keep pyspark's daemon from printing a traceback for each Python worker whose socket Spark has closed.

Spark closes the socket of a task that it needs no longer: after `limit` and `first`, when a query is stopped, when a session
ends. The worker's last flush then raises BrokenPipeError, and the daemon prints its traceback to stderr of the driver or the
executor (`worker` and `manager` in `pyspark/daemon.py`). Nothing is lost, as the rows are not wanted.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import Any, Final

__all__ = ["silence_closed_sockets"]

DAEMON: Final = "pyspark.daemon"


class _QuietTraceback:
    """The module `traceback`, whose `print_exc` prints nothing if Spark has closed the socket."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self, *args: Any, **kwargs: Any) -> None:
        """Print the exception that is being handled, unless the flush of the daemon itself has raised it."""
        error = sys.exception()
        if not (isinstance(error, BrokenPipeError) and _is_raised_by_daemon(error)):
            traceback.print_exc(*args, **kwargs)


def _is_raised_by_daemon(error: BaseException) -> bool:
    """Return whether the error comes from the daemon's own code, and not from a function that a worker has run."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("traceback").__class__ is _QuietTraceback


def silence_closed_sockets() -> None:
    """Do so in this process, if it is a worker of pyspark's daemon; may be called for each task."""
    module = _daemon_module()
    if module is not None and getattr(module, "traceback", None) is traceback:
        module.traceback = _QuietTraceback()  # type: ignore[attr-defined]


def _daemon_module() -> ModuleType | None:
    """Return the daemon's module: that of `python -m pyspark.daemon` is `__main__`."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == DAEMON:
        return main
    return sys.modules.get(DAEMON)
