"""Translated Java patterns match the same names, or are refused. They are compared with Java itself in
`test_compare_with_spark`."""

from __future__ import annotations

import pytest

from asyncgroup.spark.source.options.patterns import java_pattern
from tests.spark.source.java_patterns import DIFFER, NAMES


def found(pattern: str) -> list[str]:
    return [name for name in NAMES if java_pattern(pattern).search(name)]


def test_a_pattern_is_searched_anywhere_in_a_name_as_in_spark():
    assert found("orders") == ["orders", "old-orders-2"]
    assert found("^orders$") == ["orders"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?i)^ORDERS$", ["orders", "Orders"]),
        (r"^metrics[-.](?:eu|us)[-.]\d+$", ["metrics-eu-1", "metrics.us.2"]),
        (r"^(?!old-).*orders", ["orders"]),
        (r"\Qb.c\E", ["b.c"]),
        (r"^\p{Lower}\p{Digit}{1,2}\z", ["t1", "t10"]),
        (r"^(?<first>t)\k<first>?1", ["t1", "t10"]),
        (r"^[\p{Upper}_]++$", ["AAAAAAAAAAAAAAAAAAAA"]),
        (r"\x{5f}|\u0063\.|\0101{9}", ["x_y", "AAAAAAAAAAAAAAAAAAAA", "abc.DEF_9-"]),
    ],
)
def test_examples(pattern, expected):
    assert sorted(found(pattern)) == sorted(expected)


@pytest.mark.parametrize("pattern", DIFFER)
def test_patterns_with_another_meaning_in_python_are_refused(pattern):
    with pytest.raises(ValueError, match="a regular expression") as caught:
        java_pattern(pattern)
    assert type(caught.value) is ValueError
