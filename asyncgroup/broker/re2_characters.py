"""Sets of characters in RE2's regular expressions: ranges, named classes, Unicode categories and scripts, case folding.

What belongs to a class is fixed by RE2/J, which Kafka uses (com.google.re2j: `CharGroup`, `UnicodeTables`): the classes of
Perl and POSIX contain ASCII only. Categories are those of Python's Unicode; scripts, which Python lacks, those of Unicode
6.0, as in RE2/J.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable
from functools import cache
from typing import Final

__all__ = [
    "ANY",
    "ANY_BUT_NEWLINE",
    "PERL_CLASSES",
    "POSIX_CLASSES",
    "UNTABLED_SCRIPTS",
    "AnyOf",
    "Except",
    "Folded",
    "Range",
    "unicode_class",
]

_FOLDED: Final = range(0x41, 0x10450)
"""Contains all characters that have upper and lower case, as in RE2/J."""


class Range:
    """The characters from `first` to `last`."""

    def __init__(self, first: str, last: str) -> None:
        self._first = first
        self._last = last

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and self._first <= character <= self._last


class AnyOf:
    """The characters of several sets."""

    def __init__(self, parts: Iterable[Container[str]]) -> None:
        self._parts = tuple(parts)

    def __contains__(self, character: object) -> bool:
        return any(character in part for part in self._parts)


class Except:
    """All characters but those of a set."""

    def __init__(self, left_out: Container[str]) -> None:
        self._left_out = left_out

    def __contains__(self, character: object) -> bool:
        return character not in self._left_out


class Folded:
    """The characters that are equal to one of a set but for upper and lower case."""

    def __init__(self, exact: Container[str]) -> None:
        self._exact = exact

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and any(one in self._exact for one in _equal_in_case(character))


class _Category:
    """The characters whose general category begins with `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __contains__(self, character: object) -> bool:
        if not isinstance(character, str):
            return False
        found = unicodedata.category(character)
        return found.startswith(self._name) and found != "Cn"


def _equal_in_case(character: str) -> Iterable[str]:
    folded = _fold(character)
    return _cases().get(folded, (character,)) if folded else (character,)


def _fold(character: str) -> str:
    """Return one character for all that differ in case only; "" if it has no case."""
    if ord(character) not in _FOLDED or character in "İı":  # these two are equal to `i` in Turkish only
        return ""
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else ""


@cache
def _cases() -> dict[str, list[str]]:
    """Return the characters of each fold that has several."""
    found: dict[str, list[str]] = {}
    for character in map(chr, _FOLDED):
        if character.lower() != character or character.upper() != character:
            found.setdefault(_fold(character), []).append(character)
    return found


def _ranges(text: str) -> Container[str]:
    """Return the set of ranges that are written like `09AZ`."""
    return AnyOf(Range(*pair) for pair in zip(text[::2], text[1::2], strict=True))


ANY: Final[Container[str]] = Except(())
ANY_BUT_NEWLINE: Final[Container[str]] = Except("\n")

PERL_CLASSES: Final[dict[str, Container[str]]] = {
    "d": _ranges("09"),
    "s": _ranges("\t\n\f\r  "),
    "w": _ranges("09AZ__az"),
}
"""By the letter after the backslash; the capital letter stands for all other characters."""

POSIX_CLASSES: Final[dict[str, Container[str]]] = {
    "alnum": _ranges("09AZaz"),
    "alpha": _ranges("AZaz"),
    "ascii": _ranges("\0\x7f"),
    "blank": _ranges("\t\t  "),
    "cntrl": _ranges("\0\x1f\x7f\x7f"),
    "digit": _ranges("09"),
    "graph": _ranges("!~"),
    "lower": _ranges("az"),
    "print": _ranges(" ~"),
    "punct": _ranges("!/:@[`{~"),
    "space": _ranges("\t\r  "),
    "upper": _ranges("AZ"),
    "word": _ranges("09AZ__az"),
    "xdigit": _ranges("09AFaf"),
}
"""By the name between `[:` and `:]`."""

_CATEGORIES: Final = (
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
)

_SCRIPTS: Final = {
    "Arabic": "600-603 606-60b 60d-61a 61e 620-63f 641-64a 656-65e 66a-66f 671-6dc 6de-6ff 750-77f fb50-fbc1 "
    "fbd3-fd3d fd50-fd8f fd92-fdc7 fdf0-fdfc fe70-fe74 fe76-fefc 10e60-10e7e",
    "Armenian": "531-556 559-55f 561-587 58a fb13-fb17",
    "Bengali": "981-983 985-98c 98f-990 993-9a8 9aa-9b0 9b2 9b6-9b9 9bc-9c4 9c7-9c8 9cb-9ce 9d7 9dc-9dd 9df-9e3 "
    "9e6-9fb",
    "Cyrillic": "400-484 487-527 1d2b 1d78 2de0-2dff a640-a673 a67c-a697",
    "Devanagari": "900-950 953-963 966-96f 971-977 979-97f a8e0-a8fb",
    "Georgian": "10a0-10c5 10d0-10fa 10fc 2d00-2d25",
    "Greek": "370-373 375-377 37a-37d 384 386 388-38a 38c 38e-3a1 3a3-3e1 3f0-3ff 1d26-1d2a 1d5d-1d61 1d66-1d6a "
    "1dbf 1f00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fc4 "
    "1fc6-1fd3 1fd6-1fdb 1fdd-1fef 1ff2-1ff4 1ff6-1ffe 2126 10140-1018a 1d200-1d245",
    "Han": "2e80-2e99 2e9b-2ef3 2f00-2fd5 3005 3007 3021-3029 3038-303b 3400-4db5 4e00-9fcb f900-fa2d fa30-fa6d "
    "fa70-fad9 20000-2a6d6 2a700-2b734 2b740-2b81d 2f800-2fa1d",
    "Hangul": "1100-11ff 302e-302f 3131-318e 3200-321e 3260-327e a960-a97c ac00-d7a3 d7b0-d7c6 d7cb-d7fb ffa0-ffbe "
    "ffc2-ffc7 ffca-ffcf ffd2-ffd7 ffda-ffdc",
    "Hebrew": "591-5c7 5d0-5ea 5f0-5f4 fb1d-fb36 fb38-fb3c fb3e fb40-fb41 fb43-fb44 fb46-fb4f",
    "Hiragana": "3041-3096 309d-309f 1b001 1f200",
    "Katakana": "30a1-30fa 30fd-30ff 31f0-31ff 32d0-32fe 3300-3357 ff66-ff6f ff71-ff9d 1b000",
    "Latin": "41-5a 61-7a aa ba c0-d6 d8-f6 f8-2b8 2e0-2e4 1d00-1d25 1d2c-1d5c 1d62-1d65 1d6b-1d77 1d79-1dbe "
    "1e00-1eff 2071 207f 2090-209c 212a-212b 2132 214e 2160-2188 2c60-2c7f a722-a787 a78b-a78e a790-a791 "
    "a7a0-a7a9 a7fa-a7ff fb00-fb06 ff21-ff3a ff41-ff5a",
    "Tamil": "b82-b83 b85-b8a b8e-b90 b92-b95 b99-b9a b9c b9e-b9f ba3-ba4 ba8-baa bae-bb9 bbe-bc2 bc6-bc8 bca-bcd "
    "bd0 bd7 be6-bfa",
    "Thai": "e01-e3a e40-e5b",
}
"""Ranges of code points by script."""

_WITHOUT_TABLE: Final = (
    "Avestan Balinese Bamum Batak Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Cham Cherokee "
    "Common Coptic Cuneiform Cypriot Deseret Egyptian_Hieroglyphs Ethiopic Glagolitic Gothic Gujarati Gurmukhi "
    "Hanunoo Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada "
    "Kayah_Li Kharoshthi Khmer Lao Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek "
    "Mongolian Myanmar New_Tai_Lue Nko Ogham Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya "
    "Osmanya Phags_Pa Phoenician Rejang Runic Samaritan Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac "
    "Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Telugu Thaana Tibetan Tifinagh Ugaritic Unknown Vai Yi"
)
UNTABLED_SCRIPTS: Final = frozenset(_WITHOUT_TABLE.split())
"""Scripts that Kafka knows and that have no table here."""


def unicode_class(name: str) -> Container[str] | None:
    """Return the set of a category or a script; None for an unknown name."""
    if name == "Any":
        return ANY
    if name in _CATEGORIES.split():
        return _Category(name)
    return _script(name) if name in _SCRIPTS else None


@cache
def _script(name: str) -> Container[str]:
    ranges = (part.partition("-") for part in _SCRIPTS[name].split())
    return AnyOf(Range(_character(first), _character(last or first)) for first, _, last in ranges)


def _character(code_point: str) -> str:
    return chr(int(code_point, 16))
