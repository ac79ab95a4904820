"""Text from the network, made fit for logs, exceptions and terminals.

Hosts, client ids, member ids and error messages come from other programs on the network. A newline among them would
forge a line of the log, an escape sequence would be obeyed by the terminal that shows it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

__all__ = ["LONGEST_TEXT", "escaping_logger", "printable"]

LONGEST_TEXT: Final = 1000
"""Characters kept of a message that another program has written."""


def printable(text: str, limit: int | None = None) -> str:
    r"""Return `text` with every character that is not printable as an escape (`\n`, `\x1b`, `\u202e`).

    At most `limit` characters and an ellipsis remain. Backslashes stay as they are, so a second call changes nothing.
    """
    longer = limit is not None and len(text) > limit
    if longer:
        text = text[:limit]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
    if limit is not None and len(text) > limit:
        text, longer = text[:limit], True
    return f"{text}…" if longer else text


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def escaping_logger(name: str) -> logging.Logger:
    """Return the logger of that name; text among the arguments of its calls is escaped and bounded."""
    logger = logging.getLogger(name)
    if _escape_arguments not in logger.filters:
        logger.addFilter(_escape_arguments)
    return logger


def _escape_arguments(record: logging.LogRecord) -> bool:
    arguments = record.args
    if isinstance(arguments, tuple):
        record.args = tuple(_shown(argument) for argument in arguments)
    elif arguments is not None:
        record.args = {name: _shown(argument) for name, argument in arguments.items()}
    return True


def _shown(argument: Any) -> Any:
    return printable(argument, LONGEST_TEXT) if isinstance(argument, str) else argument
