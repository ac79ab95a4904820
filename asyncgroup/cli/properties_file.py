"""Read a properties file such as Kafka's `client.properties`, in the format of `java.util.Properties.load`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from asyncgroup.errors import ConfigError

__all__ = ["read_properties"]

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_NAME: Final = re.compile(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", re.DOTALL)


def read_properties(file: Path) -> dict[str, str]:
    """Return the properties of a UTF-8 file; if a name occurs twice, its last value counts.

    Lines are `name=value`, `name: value` or `name value`; `#` and `!` begin comments, a backslash at the end of a line
    continues it, and other backslashes escape the next character. Raises ConfigError if the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "--config", str(file), f"a UTF-8 text file: byte {error.start} is not valid"
        ) from None
    except OSError as error:
        raise ConfigError("--config", str(file), f"a file that can be read: {error.strerror}") from None
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        matched = _NAME.fullmatch(line)
        assert matched is not None
        found[_unescaped(matched[1])] = _unescaped(matched[2])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments and leading blanks, and join continued ones."""
    pending = ""
    for line in re.split(r"\r\n|\r|\n", text):
        rest = line.lstrip(" \t\f")
        if not pending and (not rest or rest[0] in "#!"):
            continue
        pending += rest
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        if pending:
            yield pending
        pending = ""
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_unescape_match, text)


def _unescape_match(escape: re.Match[str]) -> str:
    escaped = escape[1]
    if len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _CONTROLS.get(escaped, escaped)
