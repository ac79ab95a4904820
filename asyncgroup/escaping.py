"""Escape text from the network for logs, exceptions and terminals.

Hosts, client ids, member ids and error messages come from other programs on the network. A newline in them could forge
a log line, and a terminal that shows them would execute their escape sequences.
"""

from __future__ import annotations

import logging
from typing import Any, Final

__all__ = ["MAX_TEXT_LENGTH", "escaping_logger", "printable"]

MAX_TEXT_LENGTH: Final = 1000
"""The longest text of another program that is shown, in characters; the rest is replaced by an ellipsis."""


def printable(text: str, limit: int | None = None) -> str:
    r"""Return `text` with every non-printable character escaped (`\n`, `\x1b`, `\u202e`).

    The result has at most `limit` characters and an ellipsis. Backslashes are not escaped, so a second call changes
    nothing.
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
    """Return the logger `name`; string arguments of its messages are escaped and limited to `MAX_TEXT_LENGTH`."""
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
    return printable(argument, MAX_TEXT_LENGTH) if isinstance(argument, str) else argument
