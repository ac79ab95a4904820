"""What happened, one line an event, with the virtual time; what the clients log is part of it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["Story", "Violation"]


class Violation(Exception):
    """An invariant is broken: `name` is its short name, the message says who, where and by how much."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        super().__init__(f"{name}: {text}")

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return type(self), (self.name, self.text)


class Story(logging.Handler):
    """Lines and counts of a run. As a logging handler it takes what is logged at WARNING and above.

    `on_log(text)` hears of each such line and says whose it is. `names` are put in place of texts that differ from run
    to run, as the path of a temporary directory does.
    """

    def __init__(
        self, now: Callable[[], float], on_log: Callable[[str], str], names: Mapping[str, str]
    ) -> None:
        super().__init__(logging.WARNING)
        self._now, self._on_log, self._names = now, on_log, names
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self.is_over = False
        """Whether what comes now is only the clearing up after a failure."""

    def write(self, who: str, what: str) -> None:
        """One more line."""
        if not self.is_over:
            self.lines.append(f"{self._now():9.4f} {who:<12} {what}")

    def count(self, what: str, times: int = 1) -> None:
        """For the summary."""
        self.counts[what] += times

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        for said, name in self._names.items():
            text = text.replace(said, name)
        self.write(self._on_log(text), f"logs {record.levelname.lower()} {record.name}: {text}")

    @contextmanager
    def capturing_logs(self) -> Iterator[None]:
        """Take the logs of asyncgroup and asyncio, and keep them from everybody else."""
        loggers = [logging.getLogger(name) for name in ("asyncgroup", "asyncio")]
        before = [(one.propagate, one.handlers[:]) for one in loggers]
        for one in loggers:
            one.propagate, one.handlers = False, [self]
        try:
            yield
        finally:
            for one, (propagate, handlers) in zip(loggers, before, strict=True):
                one.propagate, one.handlers = propagate, handlers
