"""Errors in the words of a query's options: `kafka.linger.ms=5` where the client's errors say `linger=0.005`.

The client names keys of `ConsumerConfig` and `ProducerConfig`, in seconds. A user of Spark has set Kafka's properties with
the prefix `kafka.`, in milliseconds, and sees nothing of an error but its text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import copy_error
from asyncgroup.properties.ignored import IGNORED
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED

__all__ = ["KAFKA_PREFIX", "SINK_WORDS", "SOURCE_WORDS", "OptionWords", "in_units_of"]

E = TypeVar("E", bound=AsyncGroupError)

KAFKA_PREFIX: Final = "kafka."
"""The prefix of Kafka client properties."""

_BROKERS_OWN: Final = frozenset({"message.max.bytes"})
"""Properties of librdkafka with the name of a broker's setting, which is meant where an error names it."""

_IN_PLAIN_WORDS: Final[Mapping[str, str]] = {"transactional_id": "transactional id"}
"""Keys that no option sets: the sink makes their values."""

_SEPARATOR: Final = "_"
"""Keys without it are English words, as `linger`; they are keys only before a value."""

_CODE: Final = re.compile(r"\w\(|\w=|…|`|\b(?:pass|asyncio|function|claim|[Hh]andler|hooks)\b|\b[a-z]+_\w")
"""What names arguments, methods or objects of Python's interface."""

_FOR_PROGRAMS: Final = re.compile(
    r",? in code (?:[^\s(]|\((?:[^()]|\([^()]*\))*\))+|\. Close this producer\b"
)
"""What an error adds for programs, as `, in code security=Security(tls=Tls(…))`."""


def _property_names() -> frozenset[str]:
    tables: tuple[Iterable[str], ...] = (*PROPERTIES.values(), REST, SECURITY, UNSUPPORTED, IGNORED)
    return frozenset(name for table in tables for name in table if "." in name)


class OptionWords:
    """Translates texts for users of options; `config` is the class whose keys they set, `own` has options without property.

    Of several properties with the same meaning the one in `given` is named, otherwise Java's.
    """

    def __init__(self, config: str, own: Mapping[str, str], given: Collection[str] = ()) -> None:
        self._config = config
        self._own = own
        self.names: dict[str, str] = dict(own)
        """Property or option, without prefix, by the key of the configuration."""
        for table in (PROPERTIES[config], PROPERTIES["ClientConfig"]):
            for name, prop in table.items():
                self.names.setdefault(prop.key, name)
        for name in given:
            for table in (PROPERTIES[config], PROPERTIES["ClientConfig"]):
                if name in table:
                    self.names[table[name].key] = name
        for key in _IN_PLAIN_WORDS:
            self.names.pop(key, None)
        self._given = given

    def __repr__(self) -> str:
        return f"<OptionWords of {self._config}>"

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Compiled at the first text: options are read several times for each query, mostly without errors."""
        keys = "|".join(sorted({*self.names, *_IN_PLAIN_WORDS}, key=len, reverse=True))
        known = (_property_names() - _BROKERS_OWN) | {name for name in self._given if "." in name}
        properties = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
        # neither a part of a longer name, nor quoted: topics and groups may have any name
        return re.compile(
            rf"(?<![\w.'\"/-])(?:(?P<key>{keys})(?:=(?P<value>'[^']*'|-?[\w.+-]*\w)(?: s\b)?)?"
            rf"|(?P<name>{properties}))(?![\w'\"/-])(?!\.\w)"
        )

    def including(self, given: Collection[str]) -> OptionWords:
        """Return the same with the names of the properties that a user has set."""
        return OptionWords(self._config, self._own, given)

    def text(self, text: str) -> str:
        """Return a text with options in place of keys and of properties without prefix."""
        return self._pattern.sub(self._option, _FOR_PROGRAMS.sub("", text))

    def reason(self, reason: str) -> str:
        """Return a reason as `text` does; empty if it speaks of arguments, methods or objects of a program."""
        translated = self.text(reason)
        return "" if _CODE.search(translated) else translated

    def _option(self, found: re.Match[str]) -> str:
        key, value = found["key"], found["value"]
        if key is None:
            return KAFKA_PREFIX + found["name"]
        if key in _IN_PLAIN_WORDS:
            return _IN_PLAIN_WORDS[key] + found[0].removeprefix(key)
        if value is None:
            return KAFKA_PREFIX + self.names[key] if _SEPARATOR in key else found[0]
        name = self.names[key]
        return f"{KAFKA_PREFIX}{name}={in_units_of(name, value)}"

    def error(self, error: E) -> E:
        """Return a copy of an error whose text, notes included, names options; the error itself if it names none."""
        changed = [self.text(each) if isinstance(each, str) else each for each in error.args]
        notes = getattr(error, "__notes__", [])
        changed_notes = [self.text(each) for each in notes]
        if changed == list(error.args) and changed_notes == notes:
            return error
        copy = copy_error(error)
        copy.args = tuple(changed)
        if notes:
            copy.__notes__ = changed_notes
        return copy


def in_units_of(name: str, value: str) -> str:
    """Return a key's value, as written in Python, in the units of its property: milliseconds, `true`, texts without quotes."""
    if value in ("True", "False"):
        return value.lower()
    factor = 1000.0 if name.endswith(".ms") else 1 / 1024 if name.endswith(".kbytes") else None
    if factor is None:
        return value.strip("'")
    try:
        return f"{round(float(value) * factor, 3):.15g}"
    except (ValueError, OverflowError):
        return value


SOURCE_WORDS: Final = OptionWords("ConsumerConfig", {})
"""The words of queries that read."""

SINK_WORDS: Final = OptionWords(
    "ProducerConfig", {"chunking": "chunking", "max_chunk_size": "max.chunk.size"}
)
"""The words of queries that write."""
