"""Arguments that embedded brokers of both protocols take: names and kinds of options, keys and values of seeded records."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import TypeAlias

from asyncgroup.checks import timedelta_hint
from asyncgroup.errors import ConfigError

__all__ = ["Content", "SeedRecord", "check_kind", "check_names", "key_and_value"]

Content: TypeAlias = bytes | str | None
"""A key or a value; text is encoded as UTF-8."""

SeedRecord: TypeAlias = Content | Sequence[Content]
"""A record to append: its value, or a pair of key and value."""


def check_names(
    options: Mapping[str, object],
    known: Collection[str],
    whose: str,
    meant: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise ConfigError for an option that is not among `known`; it suggests what is `meant` by a name, or a similar one."""
    for name, value in options.items():
        if name not in known:
            near = [meant[name]] if name in meant else get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(known))}"
            raise ConfigError(name, value, f"{whose} has no such option; {hint}")


def check_kind(name: str, value: object, default: object) -> None:
    """Raise ConfigError for a value of another kind than the default: a flag, a whole number or a number."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(name, value, "True or False")
    elif isinstance(default, int | float):
        whole = isinstance(default, int)
        wrong = isinstance(value, bool) or not isinstance(value, int if whole else int | float)
        # `not >` is true for NaN too
        if wrong or (isinstance(value, float) and not value > -math.inf):
            what = (
                f"a whole number, such as {default}" if whole else f"a number of seconds, such as {default:g}"
            )
            raise ConfigError(name, value, what + timedelta_hint(value, what))


def key_and_value(record: object) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value of a record to append. Raise ConfigError unless they are bytes, text or None."""
    if isinstance(record, tuple | list):
        if len(record) != 2:
            raise ConfigError("record", record, "a value, or a pair of key and value")
        return _encode_content("key", record[0]), _encode_content("value", record[1])
    return None, _encode_content("value", record)


def _encode_content(name: str, content: object) -> bytes | None:
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(name, content, "text without unpaired surrogates") from error
    if content is None or isinstance(content, bytes):
        return content
    raise ConfigError(name, content, "bytes, text or None")
