"""The loggers of the broker and their levels, by Kafka's names of levels (KIP-412, `LoggingController`).

`root` stands for the logger `asyncgroup.broker`, whose level all others inherit; these have their names in Python. Loggers
belong to the process: all nodes have the same, and levels that were altered last until the cluster ends.
"""

from __future__ import annotations

import logging
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


class BrokerLoggers:
    """The loggers of the process, and the levels that they had before this cluster altered them."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<BrokerLoggers {len(self._before)} altered>"

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
        self._before.setdefault(logger.name, logger.level)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])

    def restore(self) -> None:
        """Set all levels to what they were before."""
        while self._before:
            name, level = self._before.popitem()
            logging.getLogger(name).setLevel(level)


def _exists(name: str) -> bool:
    """Whether a logger was created; a parent that only has children is a placeholder."""
    return isinstance(logging.root.manager.loggerDict.get(name), logging.Logger)


def _level_name(level: int) -> str:
    """Return the highest of Kafka's levels that is not above this one."""
    below = [(number, name) for name, number in LEVELS.items() if number <= level]
    return max(below)[1] if below else "TRACE"
