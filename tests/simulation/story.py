"""The story of a run: one line per event, with the virtual time, including the clients' log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["Story", "Violation"]


class Violation(Exception):
    """A violated invariant: its short name, and a text with the values."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        super().__init__(f"{name}: {text}")

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return type(self), (self.name, self.text)


class Story(logging.Handler):
    """Lines and counts of a run. As a logging handler it adds what is logged at WARNING and above.

    `on_log(text)` is called for each such line and returns the name of its client. `names` replace texts that differ from
    run to run, such as the path of a temporary directory.
    """

    def __init__(
        self, now: Callable[[], float], on_log: Callable[[str], str], names: Mapping[str, str]
    ) -> None:
        super().__init__(logging.WARNING)
        self._now = now
        self._on_log = on_log
        self._names = names
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self.is_over = False
        """Whether the run has failed and only cleanup follows; no more lines are added."""

    def write(self, who: str, what: str) -> None:
        """Add a line."""
        if not self.is_over:
            self.lines.append(f"{self._now():9.4f} {who:<12} {what}")

    def count(self, what: str, times: int = 1) -> None:
        """Add to a count of the summary."""
        self.counts[what] += times

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        for varying, name in self._names.items():
            text = text.replace(varying, name)
        self.write(self._on_log(text), f"logs {record.levelname.lower()} {record.name}: {text}")

    @contextmanager
    def capturing_logs(self) -> Iterator[None]:
        """Capture the logs of asyncgroup and asyncio, instead of their other handlers."""
        loggers = [logging.getLogger(name) for name in ("asyncgroup", "asyncio")]
        before = [(one.propagate, one.handlers[:]) for one in loggers]
        for one in loggers:
            one.propagate, one.handlers = False, [self]
        try:
            yield
        finally:
            for one, (propagate, handlers) in zip(loggers, before, strict=True):
                one.propagate, one.handlers = propagate, handlers
