"""Java's regular expressions in Python's: the same names are found, or the pattern is refused; Java itself is asked in
`test_beside_spark`."""

from __future__ import annotations

import pytest

from asyncgroup.spark.source.patterns import java_pattern
from tests.spark.source.java_patterns import DIFFER, NAMES


def found(pattern: str) -> list[str]:
    return [name for name in NAMES if java_pattern(pattern).search(name)]


def test_a_pattern_is_looked_for_anywhere_as_spark_does():
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
def test_what_python_would_read_otherwise_is_refused(pattern):
    with pytest.raises(ValueError, match="a regular expression") as caught:
        java_pattern(pattern)
    assert type(caught.value) is ValueError
