"""What the options `kafka.*` of queries that read and of queries that write have in common: names, and errors about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from asyncgroup.errors import ConfigError
from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, UNSUPPORTED
from asyncgroup.properties.reader import is_secret
from asyncgroup.security import HIDDEN
from asyncgroup.spark.option_words import (
    KAFKA_PREFIX,
    SINK_WORDS,
    SOURCE_WORDS,
    OptionWords,
    in_units_of,
)
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.values import ALL_OPTIONS, milliseconds

__all__ = [
    "OptionReader",
    "Separated",
    "api_timeout",
    "as_option_error",
    "refuse_other_names",
    "separate",
]

_PUBLIC_SUFFIXES: Final = (".mechanism", ".mechanisms", ".type", ".location", ".algorithm")
"""Suffixes of property names whose values are not secret, so that an error message may show them."""

_UNKNOWN: Final = "there is no such property of Kafka's client"

_SUGGESTED: Final = re.compile(r"did you mean ([\w.]+(?:(?:, | or )[\w.]+)*)\?")
_NAMES_AT_END: Final = re.compile(r" \(([\w.]+(?:, [\w.]+)*)\)\Z")
"""The properties that `from_properties` adds to a rule about several keys."""


# --- names ------------------------------------------------------------------------------------------------------------


def refuse_other_names(properties: Mapping[str, str], words: OptionWords) -> None:
    """Raise OptionError for options that are written with the prefix `kafka.`, and for names of the Python configuration."""
    for name, value in properties.items():
        if name in ALL_OPTIONS:
            allowed = f"leave out {KAFKA_PREFIX}: the option is {ALL_OPTIONS[name]}"
        elif name not in words.names.values() and (meant := _meant_by(name, words)) not in (None, name):
            allowed = f"{_UNKNOWN}; did you mean {KAFKA_PREFIX}{meant}?"
        else:
            continue
        raise OptionError(KAFKA_PREFIX + name, HIDDEN if is_secret(name) else value, allowed)


def _meant_by(key: str, words: OptionWords) -> str | None:
    """Return the property for a key of the Python configuration."""
    return next((each.names[key] for each in (words, SOURCE_WORDS, SINK_WORDS) if key in each.names), None)


class Separated(NamedTuple):
    """Properties that have an effect, and warnings about the others."""

    properties: dict[str, str]
    warnings: tuple[str, ...]


class OptionReader(NamedTuple):
    """Who reads properties: the source or the sink."""

    name: str
    words: OptionWords
    others: frozenset[str]
    """Properties of the client that it is not: options are often shared by source and sink."""
    kind: str
    """The kind of that client."""
    instead: Mapping[str, str] = {}
    """What to use instead of some properties."""


def separate(properties: Mapping[str, str], who: OptionReader) -> Separated:
    """Separate the properties that have no effect, as in Java each with a warning."""
    kept, of_others, ignored = {}, [], []
    for name, value in properties.items():
        if name in who.others:
            of_others.append(f"{KAFKA_PREFIX}{name} is a {who.kind} property, ignored by the {who.name}")
        elif (reason := _reason_ignored(name, who)) is not None:
            why = f": {reason}" if reason else ""
            ignored.append(f"{KAFKA_PREFIX}{name} has no effect on the {who.name}{why}")
        else:
            kept[name] = value
    return Separated(kept, (*sorted(of_others), *sorted(ignored)))


def _reason_ignored(name: str, who: OptionReader) -> str | None:
    """Return why a property has no effect, an empty text if only programs could use the reason; None if it has one."""
    if name in who.instead:
        return who.instead[name]
    reason = IGNORED.get(name)
    if reason is None:
        reason = next((why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)), None)
    return None if reason is None else who.words.reason(reason)


LEAST_TIMEOUT: Final = 10
"""Milliseconds; settings of requests are derived from it, and each has its limit."""


def api_timeout(properties: dict[str, str], *names: str) -> float | None:
    """Remove these properties, times in milliseconds; return that of the first one that is set in seconds, None without.

    Raises OptionError.
    """
    found: list[float] = []
    for name in names:
        if (text := properties.pop(name, None)) is not None:
            try:
                found.append(milliseconds(text.strip(), least=LEAST_TIMEOUT))
            except ValueError as error:
                raise OptionError(KAFKA_PREFIX + name, text, str(error)) from None
    return next(iter(found), None)


# --- errors -----------------------------------------------------------------------------------------------------------


def as_option_error(error: ConfigError, properties: Mapping[str, str], words: OptionWords) -> OptionError:
    """Convert an error about the configuration to one that names the option, in its units; secrets are hidden."""
    if error.allowed is None:
        return OptionError(words.text(f"{KAFKA_PREFIX}* options: {error}"))
    name, value = error.key, error.value
    if "." not in name and name not in properties and name in words.names:
        # the rule is about a key that the user has not set
        name, value = words.names[name], in_units_of(words.names[name], str(value))
    is_hidden = is_secret(name) and not name.endswith(_PUBLIC_SUFFIXES)
    shown = HIDDEN if is_hidden and value else value
    return OptionError(KAFKA_PREFIX + name, shown, _allowed(error, name, words))


def _allowed(error: ConfigError, name: str, words: OptionWords) -> str:
    """Return what is allowed without what only programs can use."""
    allowed = error.allowed or ""
    if name in UNSUPPORTED:
        values, _, reason = allowed.partition(": ")
        values = "leave it out" if values == "nothing" else values
        return ": ".join(filter(None, (values, words.reason(reason))))
    if allowed.startswith("there is no such key"):
        found = _SUGGESTED.search(allowed)
        return words.text(f"{_UNKNOWN}; did you mean {_prefixed(found[1])}?") if found else _UNKNOWN
    allowed = _NAMES_AT_END.sub("", allowed.removeprefix(_converted(error, name)))
    allowed = re.sub(r"\ANone,? or ", "", allowed)
    allowed = re.sub(r"\ANone without\b", "only with", allowed)
    allowed = re.sub(r"\ANone, ", "leave it out: ", allowed)
    allowed = re.sub(r"\b(?<!=)(?:True|False)\b", lambda found: found[0].lower(), allowed)
    if name.endswith(".ms"):
        allowed = allowed.replace("number of seconds", "number of milliseconds")
        allowed = re.sub(r"\bat most (\d+)\b", r"at most \g<1>000", allowed)
    first, *advice = allowed.split("; ")
    return "; ".join([words.text(first), *filter(None, map(words.reason, advice))])


def _prefixed(names: str) -> str:
    return re.sub(r"(?<![\w.])(?!or\b)[\w.]+", lambda found: KAFKA_PREFIX + found[0], names)


def _converted(error: ConfigError, name: str) -> str:
    """Return how `from_properties` begins a rule about a key: with its value, as converted from the property's."""
    prop = next((table[name] for table in PROPERTIES.values() if name in table), None)
    if prop is None:
        return ""
    try:
        value: Any = prop.read(error.value)
    except ValueError:
        return ""
    return f"{prop.key}={value!r}; "
