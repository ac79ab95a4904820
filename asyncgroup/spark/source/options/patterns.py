"""Translate Java's regular expressions (`subscribePattern`) to Python's `re`, for matching topic names.

Spark searches the pattern anywhere in a name (`ConsumerStrategy`: findFirstIn), so `orders` matches `old-orders-2`; `^`
and `$` anchor it.

Topic names consist of ASCII letters, digits, `.`, `_` and `-`, so many differences between the two languages do not
matter. Different syntax is translated: `(?<name>…)`, `\\Q…\\E`, `\\p{Alpha}` and similar, `\\z`, `\\h`. Refused are
patterns that Java refuses, and some features that only Java has: nested sets, `&&`, `\\G`, `\\R`, `\\X`, flags other than
i, m and s, flags in the middle of a pattern, `(?<=…)` of varying length.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

__all__ = ["java_pattern"]

_LETTERS: Final = "A-Za-z"
_PUNCTUATION: Final = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

_CLASSES: Final = {
    "Lower": "a-z", "javaLowerCase": "a-z", "Ll": "a-z", "IsLowercase": "a-z",
    "Upper": "A-Z", "javaUpperCase": "A-Z", "Lu": "A-Z", "IsUppercase": "A-Z",
    "Alpha": _LETTERS, "L": _LETTERS, "IsL": _LETTERS, "IsAlphabetic": _LETTERS, "IsLatin": _LETTERS,
    "Digit": "0-9", "Nd": "0-9", "N": "0-9", "IsDigit": "0-9",
    "Alnum": _LETTERS + "0-9", "XDigit": "0-9A-Fa-f", "ASCII": r"\x00-\x7f",
    "Punct": _PUNCTUATION, "Graph": "!-~", "Print": " -~", "Blank": r" \t", "Space": r"\s", "Cntrl": r"\x00-\x1f\x7f",
}  # fmt: skip
"""The ASCII characters of `\\p{…}`."""

_ESCAPES: Final = {"z": r"\Z", "Z": r"\Z", "e": r"\x1b"}
_SAME: Final = frozenset("dDsSwWbBAtnrfa")
_HORIZONTAL: Final = r" \t\xa0"
_OPENINGS: Final = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_FLAGS: Final = re.compile(r"\(\?([ims]*)(-[ims]+)?([:)])")
_NAMED: Final = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_REPEAT: Final = re.compile(r"\{[0-9]+(,[0-9]*)?\}", re.ASCII)
_PROPERTY: Final = re.compile(r"\\([pP])(?:\{(?:Is)?(\w+)\}|(\w))", re.ASCII)
_HEX: Final = re.compile(
    r"\\(?:x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|0([0-3]?[0-7]{1,2}))"
)


def java_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern whose `search` finds the same as Java's `Matcher.find` in a topic name.

    Raises ValueError saying what is wrong or not supported.
    """
    translated = _Translator(text).translated()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python warns about syntax whose meaning will change
        try:
            return re.compile(translated, re.ASCII)
        except (re.error, OverflowError, RecursionError, Warning) as error:
            raise ValueError(f"a regular expression that can be translated: {error}") from None


class _Translator:
    """Translates a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # the next character
        self._out = list[str]()  # the translation so far

    def translated(self) -> str:
        while self._at < len(self._text):
            self._step()
        return "".join(self._out)

    def _step(self) -> None:
        char = self._text[self._at]
        if char == "\\":
            self._escape(within=False)
        elif char == "[":
            self._set()
        elif char == "(":
            self._group()
        elif char == "{":
            self._repeat()
        else:
            self._take(char)

    def _take(self, chars: str, written: str | None = None) -> None:
        self._at += len(chars)
        self._out.append(chars if written is None else written)

    def _refuse(self, what: str) -> ValueError:
        return ValueError(f"a regular expression without {what} (at {self._at})")

    def _rest(self) -> str:
        return self._text[self._at :]

    # --- escapes ---

    def _escape(self, *, within: bool) -> None:
        """Translate an escape; `within` a set, the translation must not open another set."""
        rest = self._rest()
        kind = rest[1:2]
        if found := _HEX.match(rest):
            digits, base = (found[4], 8) if found[4] else (found[1] or found[2] or found[3], 16)
            self._take(found[0], _literal(int(digits, base)))
        elif found := _PROPERTY.match(rest):
            self._property(found, within=within)
        elif kind == "Q":
            quoted, end, _ = rest[2:].partition("\\E")
            self._take(rest[: 2 + len(quoted) + len(end)], "".join(_literal(ord(char)) for char in quoted))
        elif kind in ("h", "H"):
            self._ranges("\\" + kind, _HORIZONTAL, negated=kind == "H", within=within)
        elif kind == "k" and not within and (found := re.match(r"\\k<(\w+)>", rest)):
            self._take(found[0], f"(?P={found[1]})")
        elif kind in _ESCAPES and (kind == "e" or not within):
            self._take(rest[:2], _ESCAPES[kind])
        elif kind in _SAME and not (within and kind in "bBA"):
            self._take(rest[:2])
        elif kind and kind in "123456789" and not within:
            self._take(rest[:2], f"(?:\\{kind})")  # a digit after the back reference does not belong to it
        elif kind and not kind.isalnum():
            self._take(rest[:2], _literal(ord(kind)))
        else:
            raise self._refuse(rest[:2] if kind else "a single backslash at its end")

    def _property(self, found: re.Match[str], *, within: bool) -> None:
        name = found[2] or found[3]
        ranges = _CLASSES.get(name) or _CLASSES.get(f"Is{name}")
        if ranges is None:
            raise self._refuse(found[0])
        self._ranges(found[0], ranges, negated=found[1] == "P", within=within)

    def _ranges(self, taken: str, ranges: str, *, negated: bool, within: bool) -> None:
        if within and negated:
            raise self._refuse(f"{taken} within a set")
        self._take(taken, ranges if within else f"[{'^' if negated else ''}{ranges}]")

    # --- sets, groups, repetitions ---

    def _set(self) -> None:
        self._take("[^" if self._rest().startswith("[^") else "[")
        first = True
        while (rest := self._rest()) and (first or rest[0] != "]"):
            first = False
            if rest[0] == "[" or rest.startswith("&&"):
                raise self._refuse("nested sets")
            if rest[0] == "\\":
                self._escape(within=True)
            elif rest[0] == "-":
                self._take("-", "-" if self._is_range() else r"\-")
            else:
                self._take(rest[0], rest[0] if rest[0].isalnum() else _literal(ord(rest[0])))
        if not rest:
            raise self._refuse("an unterminated set")
        self._take("]")

    def _is_range(self) -> bool:
        """Return whether the hyphen here is between two characters of a set."""
        return self._out[-1] not in ("[", "[^", "-") and self._rest()[1:2] not in ("]", "")

    def _group(self) -> None:
        rest = self._rest()
        if not rest.startswith("(?"):
            self._take("(")
        elif found := _NAMED.match(rest):
            self._take(found[0], f"(?P<{found[1]}>")
        elif opening := next((each for each in _OPENINGS if rest.startswith(each)), None):
            self._take(opening)
        elif found := _FLAGS.match(rest):
            if found[3] == ")" and (self._at or found[2]):
                raise self._refuse(f"{found[0]} after its beginning")
            self._take(found[0])
        else:
            raise self._refuse(rest[:4])

    def _repeat(self) -> None:
        found = _REPEAT.match(self._rest())
        if found is None:
            raise self._refuse("a brace outside a repetition")
        self._take(found[0])


def _literal(code: int) -> str:
    """Return a pattern that matches the character itself in any context."""
    try:
        char = chr(code)
    except (ValueError, OverflowError):
        raise ValueError(
            f"a regular expression without the code {code:#x}, which is not a character"
        ) from None
    return re.escape(char) if char.isascii() and not char.isalnum() else char
