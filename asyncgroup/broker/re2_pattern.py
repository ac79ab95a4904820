"""Regular expressions from clients, matched in time linear in the text.

Kafka uses RE2/J (com.google.re2j) for the same reason: Python's backtracking `re` could block the loop for years on a
pattern of ten characters. Here the states of an NFA are followed in parallel (Thompson's construction). The syntax is that
of RE2/J, which `re2_syntax` reads; `re2_characters` has its classes. Patterns are limited in length and in states, so that
a step remains short; RE2/J has no such limits.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple

from asyncgroup.broker.re2_syntax import (
    Alternatives,
    Anchor,
    Characters,
    Node,
    PatternError,
    Repeat,
    Sequence,
    parse,
)

__all__ = ["PatternError", "Re2Pattern"]

_LONGEST: Final = 4000
_MOST_REPEATED_STATES: Final = 2000
"""How many states repetitions may add to those of the pattern's characters."""
_MOST_KEPT: Final = 100_000

_WORD: Final = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
"""Characters of words, as in RE2/J: ASCII only."""

_HOLDS: Final[dict[Anchor, Callable[[str, str], bool]]] = {
    Anchor.BEGIN: lambda before, _: not before,
    Anchor.END: lambda _, after: not after,
    Anchor.BEGIN_OF_LINE: lambda before, _: before in ("", "\n"),
    Anchor.END_OF_LINE: lambda _, after: after in ("", "\n"),
    Anchor.WORD_BOUNDARY: lambda before, after: (before in _WORD) != (after in _WORD),
    Anchor.NO_WORD_BOUNDARY: lambda before, after: (before in _WORD) == (after in _WORD),
}
"""Whether a condition holds between two characters; "" is the end of the text."""


class _State(NamedTuple):
    """A step that consumes one of `characters`. Without `characters` it consumes nothing, and `anchor` must hold."""

    characters: Container[str] | None
    anchor: Anchor | None
    ways: list[int]
    """The next states: one if it reads a character."""


class Re2Pattern:
    """A compiled pattern. Raise PatternError if it cannot be compiled."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _LONGEST:
            raise PatternError("the pattern is too long")
        self._most_states = _MOST_REPEATED_STATES + 2 * len(text)
        self._states: list[_State] = []
        self._has_anchors = False
        end = self._add(None, [])  # state 0
        self._first = frozenset([self._build(parse(text), end)])
        # the steps taken before, as of a DFA that is built while it is used; at most _MOST_KEPT states in all of them
        self._steps: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self._ends: dict[tuple[frozenset[int], str], bool] = {}
        self._kept = 0

    def __repr__(self) -> str:
        return f"<Re2Pattern {self._text!r}>"

    def fullmatch(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        here, before = self._first, ""
        for character in text:
            here = self._step(here, before, character)
            if not here:
                return False
            if self._has_anchors:
                before = character if character == "\n" else "a" if character in _WORD else "-"
        return self._is_end(here, before)

    def _step(self, here: frozenset[int], before: str, character: str) -> frozenset[int]:
        """Return the states after reading a character in one of these.

        `before` stands for the character before it: all of words are alike, and all others but the end of a line.
        """
        known = self._steps.get((here, before, character))
        if known is not None:
            return known
        ways = [self._states[n] for n in self._reached(here, before, character)]
        found = frozenset(
            to[0] for characters, _, to in ways if characters is not None and character in characters
        )
        if found == here:
            found = here  # the same object, which is compared at once
        self._keep(1 + len(found))
        self._steps[here, before, character] = found
        return found

    def _is_end(self, here: frozenset[int], before: str) -> bool:
        """Return whether the text may end in one of these states."""
        known = self._ends.get((here, before))
        if known is not None:
            return known
        found = 0 in self._reached(here, before, "")
        self._keep(1)
        self._ends[here, before] = found
        return found

    def _keep(self, count: int) -> None:
        self._kept += count
        if self._kept > _MOST_KEPT:
            self._steps.clear()
            self._ends.clear()
            self._kept = count

    def _reached(self, begin: Iterable[int], before: str, after: str) -> set[int]:
        """Return the states reachable from `begin` without reading a character, between these two characters."""
        found = set(begin)
        todo = list(found)
        while todo:
            characters, anchor, ways = self._states[todo.pop()]
            if characters is None and (anchor is None or _HOLDS[anchor](before, after)):
                new = [n for n in ways if n not in found]
                found.update(new)
                todo += new
        return found

    # -- states ------------------------------------------------------------------------------------------------

    def _add(self, characters: Container[str] | None, ways: list[int], anchor: Anchor | None = None) -> int:
        if len(self._states) >= self._most_states:
            raise PatternError("the pattern is too large")
        self._states.append(_State(characters, anchor, ways))
        return len(self._states) - 1

    def _build(self, node: Node, end: int) -> int:
        """Add the states of a part of the pattern before the state `end`; return the first of them."""
        match node:
            case Characters(allowed):
                return self._add(allowed, [end])
            case Sequence(parts):
                for part in reversed(parts):
                    end = self._build(part, end)
                return end
            case Alternatives(branches):
                return self._add(None, [self._build(branch, end) for branch in branches])
            case Repeat(part, least, most):
                return self._build_repeat(part, least, most, end)
            case Anchor():
                self._has_anchors = True
                return self._add(None, [end], node)

    def _build_repeat(self, part: Node, least: int, most: int | None, end: int) -> int:
        if most is None:
            again = self._add(None, [end])
            first = self._build(part, again)
            self._states[again].ways.append(first)
            end = first if least else again
            least = max(least - 1, 0)
        else:
            last = end
            for _ in range(most - least):
                end = self._add(None, [last, self._build(part, end)])
        for _ in range(least):
            end = self._build(part, end)
        return end
