"""Regular expressions from clients, matched in time linear in the text.

Kafka uses RE2 for the same reason: Python's backtracking `re` could block the loop for years on a pattern of ten
characters. Here the states of an NFA are followed in parallel (Thompson's construction). Supported is the syntax
that RE2 and Python share: characters, `.`, classes, `\\d \\w \\s` and their negations, `| * + ? {n,m}`, groups
without options. Nothing is captured, so greedy and lazy repetition are the same.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Final, TypeAlias

__all__ = ["PatternError", "Re2Pattern"]

_MOST_STATES: Final = 1000
_MOST_NESTED: Final = 100
_MOST_KEPT: Final = 100_000

_ATOM: Final = re.compile(r"\\[dDwWsS]|\\[^a-zA-Z0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()|*+?{}]", re.DOTALL)
_REPEAT: Final = re.compile(r"(?:([*+?])|\{(\d{1,4})(,)?(\d{1,4})?\})\??")
_BOUNDS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_Build: TypeAlias = Callable[[int], int]
"""Adds the states of a part of the pattern before the given state; returns the first of them."""


class PatternError(ValueError):
    """The pattern is malformed, too large, or uses unsupported syntax."""


class Re2Pattern:
    """A compiled pattern. Raise PatternError if it cannot be compiled."""

    def __init__(self, text: str) -> None:
        whole = text.removeprefix("^")  # only full matches count, so the outer anchors are redundant
        self._text = whole if whole.endswith("\\$") else whole.removesuffix("$")
        self._position = self._depth = 0
        if len(text) > 4 * _MOST_STATES:
            raise PatternError("the pattern is too long")
        # (matcher, next states): with a matcher it reads one character and has one next state, without it reads
        # nothing and has any number of next states; state 0, the end, has none
        self._states: list[tuple[re.Pattern[str] | None, list[int]]] = []
        build = self._alternatives()
        if self._position < len(self._text):
            raise PatternError(f"unexpected {self._text[self._position]!r}")
        self._first = frozenset(self._reached([build(self._add(None, []))]))
        # the steps taken before, as of a DFA that is built while it is used; at most _MOST_KEPT states in all of them
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._kept = 0

    def __repr__(self) -> str:
        return f"<Re2Pattern {self._text!r}>"

    def fullmatch(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        here = self._first
        for character in text:
            here = self._step(here, character)
            if not here:
                return False
        return 0 in here

    def _step(self, here: frozenset[int], character: str) -> frozenset[int]:
        """Return the states reached from these by reading a character."""
        known = self._steps.get((here, character))
        if known is not None:
            return known
        ways = [self._states[n] for n in here]
        found = frozenset(
            self._reached([to[0] for matcher, to in ways if matcher and matcher.match(character)])
        )
        if found == here:
            found = here  # the same object, which is compared at once
        self._kept += len(found)
        if self._kept > _MOST_KEPT:
            self._steps.clear()
            self._kept = len(found)
        self._steps[here, character] = found
        return found

    def _reached(self, begin: list[int]) -> set[int]:
        """Return the states reachable from `begin` without reading a character."""
        found, todo = set(begin), begin
        while todo:
            matcher, ways = self._states[todo.pop()]
            if matcher is None:
                new = [n for n in ways if n not in found]
                found.update(new)
                todo += new
        return found

    def _add(self, matcher: re.Pattern[str] | None, ways: list[int]) -> int:
        if len(self._states) == _MOST_STATES:
            raise PatternError("the pattern is too large")
        self._states.append((matcher, ways))
        return len(self._states) - 1

    # -- parser ----------------------------------------------------------------------------------------------

    def _take(self, word: str) -> bool:
        found = self._text.startswith(word, self._position)
        self._position += len(word) * found
        return found

    def _alternatives(self) -> _Build:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return lambda end: (
            parts[0](end) if len(parts) == 1 else self._add(None, [part(end) for part in parts])
        )

    def _sequence(self) -> _Build:
        parts: list[_Build] = []
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            parts.append(self._repeated(self._one()))

        def build(end: int) -> int:
            for part in reversed(parts):
                end = part(end)
            return end

        return build

    def _one(self) -> _Build:
        if self._take("(?:") or self._take("("):
            self._depth += 1
            if self._depth > _MOST_NESTED:
                raise PatternError("groups are nested too deeply")
            inner = self._alternatives()
            if not self._take(")"):
                raise PatternError("a group is not closed")
            self._depth -= 1
            return inner
        found = _ATOM.match(self._text, self._position)
        if found is None or found[0] in "^$":
            raise PatternError(f"{self._text[self._position]!r} is not supported here")
        self._position = found.end()
        matcher = _matcher(found[0])
        return lambda end: self._add(matcher, [end])

    def _repeated(self, part: _Build) -> _Build:
        found = _REPEAT.match(self._text, self._position)
        if found is None:
            return part
        self._position = found.end()
        sign, least_text, comma, most_text = found.groups()
        if sign:
            least, most = _BOUNDS[sign]
        else:
            least = int(least_text)
            most = int(most_text) if most_text else None if comma else least
        if max(least, most or 0) > _MOST_STATES or (most is not None and most < least):
            raise PatternError(f"{found[0]} is not a valid repetition")
        return lambda end: self._times(part, least, most, end)

    def _times(self, part: _Build, least: int, most: int | None, end: int) -> int:
        if most is None:
            again = self._add(None, [end])
            self._states[again][1].append(part(again))
            end = again
        else:
            last = end
            for _ in range(most - least):
                end = self._add(None, [last, part(end)])
        for _ in range(least):
            end = part(end)
        return end


def _matcher(atom: str) -> re.Pattern[str]:
    """Compile the pattern of a single character with Python's `re`."""
    try:
        with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # about nested sets
            return re.compile(atom)
    except re.error as error:
        raise PatternError(str(error)) from error
