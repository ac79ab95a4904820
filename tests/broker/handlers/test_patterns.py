"""Patterns sent by clients: the same results as RE2/J's, in time linear in the text."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import assume, given, strategies as st

from asyncgroup.broker.re2_characters import UNTABLED_SCRIPTS, unicode_class
from asyncgroup.broker.re2_pattern import PatternError, Re2Pattern
from tests.broker.handlers.re2_table import MATCHED, NAMES, REFUSED

PIECES = [
    r"a",
    r"b",
    r"c",
    r".",
    r"*",
    r"+",
    r"?",
    r"(",
    r")",
    r"(?:",
    r"|",
    r"[ab]",
    r"[^a]",
    r"[a-c.]",
    r"[[]",
    r"[\]]",
    r"\d",
    r"\W",
    r"\.",
    r"\\",
    r"{2}",
    r"{1,}",
    r"{0,2}",
    r"*?",
    r"-",
    r"{",
    r"}",
    r"]",
    r"[",
    r"^",
    r"$",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.text("abc1.-[]\\ ", max_size=8))
def test_supported_patterns_match_like_those_of_python(pattern: str, text: str) -> None:
    try:
        ours = Re2Pattern(pattern)
    except PatternError:
        assume(False)
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):
        try:
            theirs = re.compile(pattern)
        except re.error:  # what only RE2 allows, as `^*`
            assume(False)
    assert ours.fullmatch(text) is (theirs.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("pattern", "match", "mismatch"),
    [
        ("", "", "a"),
        ("orders-.*", "orders-7", "my-orders-7"),
        (r"^(in|out)\.\d{2,3}$", "out.123", "out.1234"),
        ("[^a-z]+é?", "ABCé", "abc"),
        ("(a|b){3}", "aba", "ab"),
        ("a{2,}", "aaaa", "a"),
        ("(|a)*b", "aab", "aa"),
        (r"a\$", "a$", "a"),
    ],
)
def test_patterns(pattern: str, match: str, mismatch: str) -> None:
    assert Re2Pattern(pattern).fullmatch(match)
    assert not Re2Pattern(pattern).fullmatch(mismatch)


@pytest.mark.parametrize("pattern", ["(a+)+", "(a|aa)+", ".*.*.*.*.*b", "((((a*)*)*)*)*", "(a?){40}a{40}b"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    assert not Re2Pattern(pattern).fullmatch("a" * 2000 + "!")


def test_steps_are_taken_once_for_all_texts_and_not_all_are_kept() -> None:
    """A pattern of many states is matched with each of a cluster's topics, on the event loop."""
    pattern = Re2Pattern("((a?){490})*")
    assert pattern.fullmatch("a" * 249)
    steps = len(pattern._steps)
    assert steps <= 2
    assert pattern.fullmatch("a" * 100)
    assert len(pattern._steps) == steps
    many = Re2Pattern("(a|b)*a(a|b){200}")
    for number in range(4):
        text = f"{number:02b}".replace("0", "a").replace("1", "b") * 150
        assert many.fullmatch(text) is (text[-201] == "a")
    assert many._kept <= 100_000


@pytest.mark.parametrize(
    "pattern", ["((((a+)+)+)+)+" * 20, "(" * 1000 + "a" + ")" * 1000, "|".join("abc" * 300)]
)
def test_large_patterns(pattern: str) -> None:
    assert Re2Pattern(pattern).fullmatch("a" * 20) is ("+" in pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * 4001,
        "(a{30}){70}",
        "((a{1000}){1000}){1000}",
        "(?:b" * 300 + ")*" * 300,
        "a" + "*(?i)" * 300,
    ],
)
def test_patterns_that_are_too_large(pattern: str) -> None:
    """Kafka compiles them if its memory suffices."""
    with pytest.raises(PatternError, match=r"too l(ong|arge)|too deeply"):
        Re2Pattern(pattern)


def test_the_names_that_patterns_match() -> None:
    assert len(MATCHED) > 300
    wrong = {}
    for text, expected in MATCHED.items():
        pattern = Re2Pattern(text)
        found = {name for name in NAMES if pattern.fullmatch(name)}
        if found != expected:
            wrong[text] = found
    assert wrong == {}


def test_the_errors_of_patterns_that_are_refused() -> None:
    errors = {}
    for text in REFUSED:
        try:
            Re2Pattern(text)
        except PatternError as error:
            errors[text] = str(error)
    assert len(errors) > 150
    assert errors == REFUSED


def test_scripts_without_a_table_are_refused_by_name() -> None:
    for script in UNTABLED_SCRIPTS:
        assert unicode_class(script) is None
        with pytest.raises(PatternError, match=f"^the embedded broker has no table of the script {script}$"):
            Re2Pattern(rf"[\p{{{script}}}]")
