"""The loggers of the broker and their levels, by Kafka's names of levels (KIP-412, `LoggingController`).

`root` stands for the logger `asyncgroup.broker`, whose level all others inherit; these have their names in Python. Loggers
belong to the process: all nodes and clusters have the same, and levels that were altered last until their cluster ends.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

__all__ = ["LEVELS", "ROOT", "BrokerLoggers"]

ROOT: Final = "root"
"""Kafka's name of the logger that has no parent."""

_PACKAGE: Final = "asyncgroup.broker"

LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}
"""Kafka's levels (`LogLevelConfig`), with Python's."""


class _Altered:
    """A logger that clusters have altered."""

    __slots__ = ("before", "levels")

    def __init__(self, before: int) -> None:
        self.before = before
        self.levels: dict[BrokerLoggers, int] = {}  # in the order in which they were set


_lock: Final = threading.Lock()  # clusters of a process may run in different threads

_altered: Final[dict[str, _Altered]] = {}
"""The loggers that clusters of the process have altered, by name."""


class BrokerLoggers:
    """The loggers of the process. When a cluster ends, a logger has the level that another running one set last.

    When no cluster that altered the logger is left, it has the level that it had before the first one did.
    """

    def __repr__(self) -> str:
        return f"<BrokerLoggers {sum(self in altered.levels for altered in list(_altered.values()))} altered>"

    def levels(self) -> dict[str, str]:
        """Return the level in effect of each logger that exists, by name."""
        every = list(logging.root.manager.loggerDict)  # a copy: other threads create loggers
        known = sorted(name for name in every if name.startswith(f"{_PACKAGE}."))
        loggers = {name: logging.getLogger(name) for name in known if _exists(name)}
        return {
            name: _level_name(logger.getEffectiveLevel())
            for name, logger in {ROOT: logging.getLogger(_PACKAGE), **loggers}.items()
        }

    def exists(self, name: str) -> bool:
        """Return whether there is a logger of this name."""
        return name == ROOT or (name.startswith(f"{_PACKAGE}.") and _exists(name))

    def set_level(self, name: str, level: str | None) -> None:
        """Set one of `LEVELS`; None: the logger inherits the level again."""
        logger = logging.getLogger(_PACKAGE if name == ROOT else name)
        number = logging.NOTSET if level is None else LEVELS[level]
        with _lock:
            altered = _altered.setdefault(logger.name, _Altered(logger.level))
            altered.levels.pop(self, None)
            altered.levels[self] = number
            logger.setLevel(number)

    def restore(self) -> None:
        """End the levels that this cluster has set."""
        with _lock:
            for name in [name for name, altered in _altered.items() if self in altered.levels]:
                altered = _altered[name]
                was_last = next(reversed(altered.levels)) is self
                del altered.levels[self]
                if was_last:
                    left = next(reversed(altered.levels.values()), altered.before)
                    logging.getLogger(name).setLevel(left)
                if not altered.levels:
                    del _altered[name]


def _exists(name: str) -> bool:
    """Whether a logger was created; a parent that only has children is a placeholder."""
    return isinstance(logging.root.manager.loggerDict.get(name), logging.Logger)


def _level_name(level: int) -> str:
    """Return the highest of Kafka's levels that is not above this one."""
    below = [(number, name) for name, number in LEVELS.items() if number <= level]
    return max(below)[1] if below else "TRACE"
