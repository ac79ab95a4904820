"""The syntax of RE2's regular expressions, as RE2/J reads it (com.google.re2j.Parser with the flags of `Pattern.compile`).

Captures are not kept, so a group is its content, and greedy and lazy repetition are the same. Errors have RE2/J's
descriptions, which Kafka returns to clients.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from asyncgroup.broker import re2_characters as sets

__all__ = ["Alternatives", "Anchor", "Characters", "Node", "PatternError", "Repeat", "Sequence", "parse"]

_MOST_REPEATED: Final = 1000
"""The largest number in `{n,m}`, as in RE2/J."""

_MOST_NESTED: Final = 200
"""The deepest tree: it is walked by recursion."""

_COUNTS: Final = re.compile(r"\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\}")
_NAMED: Final = re.compile(r"\(\?P?<([A-Za-z0-9_]+)>")
_UNICODE_CLASS: Final = re.compile(r"\\([pP])(?:\{(\^?)([^}]*)\}|([^{]))", re.DOTALL)
_CODE: Final = re.compile(
    r"\\(?:x\{(?P<braced>[0-9A-Fa-f]+)\}|x(?P<two>[0-9A-Fa-f]{2})|(?P<octal>0[0-7]{0,2}|[1-7][0-7]{1,2}))"
)
_LETTERS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_BOUNDS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_BAD_RANGE: Final = "invalid character class range"
_BAD_ESCAPE: Final = "invalid escape sequence"


class PatternError(ValueError):
    """The pattern is malformed, or too large; the text is what RE2/J calls the description."""


class Anchor(enum.Enum):
    """A condition on a place between two characters."""

    BEGIN = enum.auto()
    END = enum.auto()
    BEGIN_OF_LINE = enum.auto()
    END_OF_LINE = enum.auto()
    WORD_BOUNDARY = enum.auto()
    NO_WORD_BOUNDARY = enum.auto()


@dataclass(frozen=True)
class Characters:
    """One character of a set."""

    allowed: Container[str]
    depth = 1


@dataclass(frozen=True)
class Sequence:
    """One part after the other; without parts it matches the empty text."""

    parts: tuple[Node, ...]
    depth: int


@dataclass(frozen=True)
class Alternatives:
    """One of several."""

    branches: tuple[Node, ...]
    depth: int


@dataclass(frozen=True)
class Repeat:
    """A part `least` to `most` times; None is without limit."""

    part: Node
    least: int
    most: int | None
    depth: int


Node: TypeAlias = Anchor | Characters | Sequence | Alternatives | Repeat


def parse(text: str) -> Node:
    """Return the tree of a pattern. Raise PatternError if RE2/J refuses it, or if it is too deep."""
    return _Parser(text).parse()


def _deeper(*parts: Node) -> int:
    depth = 1 + max((1 if isinstance(part, Anchor) else part.depth for part in parts), default=0)
    if depth > _MOST_NESTED:
        raise PatternError("the pattern is nested too deeply")
    return depth


@dataclass
class _Group:
    """A group that is not closed."""

    flags_before: frozenset[str]
    branches: list[Node] = field(default_factory=list)
    """The alternatives before the present one."""
    parts: list[Node] = field(default_factory=list)
    """The parts of the present alternative."""

    def end_branch(self) -> None:
        parts = self.parts
        self.branches.append(parts[0] if len(parts) == 1 else Sequence(tuple(parts), _deeper(*parts)))
        self.parts = []

    def whole(self) -> Node:
        self.end_branch()
        branches = self.branches
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches), _deeper(*branches))


class _Parser:
    """Reads a pattern from left to right; groups that are not closed are on a stack, the whole pattern at its bottom."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._flags: frozenset[str] = frozenset()  # of i, m, s, U
        self._groups = [_Group(self._flags)]
        self._names: set[str] = set()
        self._after_repeat = False
        """Whether a repetition or a literal `{` was read just before: RE2/J takes both for a repetition."""

    def parse(self) -> Node:
        while self._position < len(self._text):
            character = self._text[self._position]
            _READERS.get(character, _Parser._literal)(self)
            self._after_repeat = character in "*+?{"
        if len(self._groups) > 1:
            raise PatternError("missing closing )")
        return self._groups[0].whole()

    # -- the text ----------------------------------------------------------------------------------------------

    def _skip(self, word: str) -> bool:
        found = self._text.startswith(word, self._position)
        self._position += len(word) * found
        return found

    def _next(self) -> str:
        """Read a character; "" at the end."""
        found = self._text[self._position : self._position + 1]
        self._position += len(found)
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
        return found

    # -- parts -------------------------------------------------------------------------------------------------

    def _add(self, part: Node) -> None:
        self._groups[-1].parts.append(part)

    def _add_characters(self, allowed: Container[str]) -> None:
        self._add(Characters(allowed))

    def _folded(self, allowed: Container[str]) -> Container[str]:
        return sets.Folded(allowed) if "i" in self._flags else allowed

    def _literal(self) -> None:
        self._add_characters(self._folded(frozenset(self._next())))

    def _dot(self) -> None:
        self._next()
        self._add_characters(sets.ANY if "s" in self._flags else sets.ANY_BUT_NEWLINE)

    def _circumflex(self) -> None:
        self._next()
        self._add(Anchor.BEGIN_OF_LINE if "m" in self._flags else Anchor.BEGIN)

    def _dollar(self) -> None:
        self._next()
        self._add(Anchor.END_OF_LINE if "m" in self._flags else Anchor.END)

    def _repetition(self) -> None:
        bounds = _BOUNDS.get(self._text[self._position])
        if bounds is not None:
            self._next()
        else:
            bounds = self._counts()
        if bounds is None:  # a literal brace: it begins no repetition
            self._literal()
            return
        self._skip("?")
        parts = self._groups[-1].parts
        if self._after_repeat:
            raise PatternError("invalid nested repetition operator")
        if not parts:
            raise PatternError("missing argument to repetition operator")
        parts[-1] = Repeat(parts[-1], *bounds, _deeper(parts[-1]))

    def _counts(self) -> tuple[int, int | None] | None:
        """Read `{n,m}`; return None if it is malformed."""
        found = self._match(_COUNTS)
        if found is None:
            return None
        # nine digits suffice to see that a number is too large
        numbers = [None if each is None else int(each[:9]) for each in found.group(1, 3)]
        least, most = numbers[0] or 0, numbers[1]
        if found[2] is None:
            most = least
        if max(least, most or 0) > _MOST_REPEATED or (most is not None and most < least):
            raise PatternError("invalid repeat count")
        return least, most

    # -- groups ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._text.startswith(("(?P<", "(?<"), self._position):
            found = self._match(_NAMED)
            if found is None:
                raise PatternError("invalid named capture")
            if found[1] in self._names:
                raise PatternError("duplicate capture group name")
            self._names.add(found[1])
        elif self._skip("(?"):
            self._options()
            return
        else:
            self._next()
        self._groups.append(_Group(self._flags))

    def _options(self) -> None:
        """Read `i-s)` or `i-s:` and set the flags; open a group if there is a colon."""
        flags, is_set, is_complete = self._flags, True, True
        while character := self._next():
            if character in "imsU":
                flags = flags | {character} if is_set else flags - {character}
                is_complete = True
            elif character == "-" and is_set:
                is_set = is_complete = False
            elif character in ":)" and is_complete:
                if character == ":":
                    self._groups.append(_Group(self._flags))
                self._flags = flags
                return
            else:
                break
        raise PatternError("invalid or unsupported Perl syntax")

    def _bar(self) -> None:
        self._next()
        self._groups[-1].end_branch()

    def _close(self) -> None:
        self._next()
        if len(self._groups) == 1:
            raise PatternError("regexp/syntax: internal error")
        group = self._groups.pop()
        self._flags = group.flags_before
        self._add(group.whole())

    # -- backslashes and classes -------------------------------------------------------------------------------

    def _backslash(self) -> None:
        following = self._text[self._position + 1 : self._position + 2]
        if following in _ANCHORS:
            self._position += 2
            self._add(_ANCHORS[following])
        elif self._skip(r"\Q"):
            end = self._text.find(r"\E", self._position)
            while self._position < (len(self._text) if end < 0 else end):
                self._literal()
            self._skip(r"\E")
        else:
            named = self._named_class()
            self._add_characters(self._folded(frozenset(self._escaped())) if named is None else named)

    def _named_class(self) -> Container[str] | None:
        r"""Read a class like `\d` or `\p{Greek}`; return None if there is none here."""
        letter = self._text[self._position + 1 : self._position + 2] if self._at_backslash() else ""
        if letter and letter in "pP":
            return self._unicode_class()
        perl = sets.PERL_CLASSES.get(letter.lower())
        if perl is None:
            return None
        self._position += 2
        return sets.Except(self._folded(perl)) if letter.isupper() else self._folded(perl)

    def _unicode_class(self) -> Container[str]:
        found = self._match(_UNICODE_CLASS)
        if found is None:
            raise PatternError(_BAD_RANGE)
        name = found[4] or found[3]
        allowed = sets.unicode_class(name)
        if name in sets.UNTABLED_SCRIPTS:
            raise PatternError(f"the embedded broker has no table of the script {name}")
        if allowed is None:
            raise PatternError(_BAD_RANGE)
        is_negated = (found[1] == "P") != (found[2] == "^")
        return sets.Except(self._folded(allowed)) if is_negated else self._folded(allowed)

    def _at_backslash(self) -> bool:
        return self._text.startswith("\\", self._position)

    def _escaped(self) -> str:
        """Read the escape of a single character."""
        found = self._match(_CODE)
        if found is not None:
            code_point = (
                int(found["octal"], 8) if found["octal"] else int(found["braced"] or found["two"], 16)
            )
            if code_point > 0x10FFFF:
                raise PatternError(_BAD_ESCAPE)
            return chr(code_point)
        self._next()
        letter = self._next()
        if not letter:
            raise PatternError("trailing backslash at end of expression")
        if letter.isascii() and letter.isalnum() and letter not in _LETTERS:
            raise PatternError(_BAD_ESCAPE)
        return _LETTERS.get(letter, letter)

    def _bracket(self) -> None:
        self._next()
        is_negated = self._skip("^")
        parts = [self._element()]  # a bracket that closes the set is not its first element
        while not self._skip("]"):
            parts.append(self._element())
        allowed = sets.AnyOf(parts)
        self._add_characters(sets.Except(allowed) if is_negated else allowed)

    def _element(self) -> Container[str]:
        """Read a class, a range or a character of a set."""
        begin = self._position
        if self._text.startswith("[:", begin) and (end := self._text.find(":]", begin)) >= 0:
            self._position = end + 2
            return self._posix_class(self._text[begin + 2 : end])  # empty in `[:]`, whose colon counts twice
        named = self._named_class()
        if named is not None:
            return named
        first = last = self._set_character()
        if self._text.startswith("-", self._position) and not self._text.startswith("-]", self._position):
            self._next()
            last = self._set_character()
        if last < first:
            raise PatternError(_BAD_RANGE)
        return self._folded(sets.Range(first, last))

    def _posix_class(self, name: str) -> Container[str]:
        allowed = sets.POSIX_CLASSES.get(name.removeprefix("^"))
        if allowed is None:
            raise PatternError(_BAD_RANGE)
        return sets.Except(self._folded(allowed)) if name.startswith("^") else self._folded(allowed)

    def _set_character(self) -> str:
        found = self._escaped() if self._at_backslash() else self._next()
        if not found:
            raise PatternError("missing closing ]")
        return found


_ANCHORS: Final = {
    "A": Anchor.BEGIN,
    "z": Anchor.END,
    "b": Anchor.WORD_BOUNDARY,
    "B": Anchor.NO_WORD_BOUNDARY,
}
"""By the letter after the backslash."""

_READERS: Final[dict[str, Callable[[_Parser], None]]] = {
    "(": _Parser._open,
    ")": _Parser._close,
    "|": _Parser._bar,
    "^": _Parser._circumflex,
    "$": _Parser._dollar,
    ".": _Parser._dot,
    "[": _Parser._bracket,
    "\\": _Parser._backslash,
    **dict.fromkeys("*+?{", _Parser._repetition),
}
"""How a part that begins with this character is read."""
