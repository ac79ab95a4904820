"""Topic names and Java patterns, for `test_patterns` and `test_compare_with_spark`."""

from __future__ import annotations

from typing import Final

__all__ = ["DIFFER", "NAMES", "PATTERNS"]

NAMES: Final = (
    *("orders", "old-orders-2", "Orders", "a", "b.c", "x_y", "t1", "t10", "abc.DEF_9-", "..a", "A" * 20),
    *("metrics-eu-1", "metrics.us.2"),
)

DIFFER: Final = (
    # only in Java
    *("[a-z&&[^b]]", "[a[bc]]", "[[:alpha:]]", "[a&&b]", r"\R", r"\X", r"\G", r"\v", r"\cA", r"\b{g}", r"\p{InGreek}"),
    *("(?x)a b", "(?d)a", "(?u)a", "(?U)a", "a(?i)b", "(?-i)a", "(?i)(?s)a", "(?)a", "(?<=o.*)r", r"[\P{L}]"),
    *("a{2}{3}", r"\1", r"\8", r"[\w-z]", "^*", "$+"),
    # only in Python
    *("(?P<x>a)", "(?P=x)", "(?#c)a", "(a)?(?(1)a)", "a{,3}", "a{", "{", r"\N", r"\y"),
    # in neither
    *("[a", "(a", "a)", "*a", "a**", "a{2,1}", "[z-a]", "[a--b]", "[a--]", "(?<1x>a)", "(?", "(?i", "a\\", r"\p{Foo}", r"\k<x>", "[]", "[^]"),
)  # fmt: skip
"""Patterns that are refused."""

PATTERNS: Final = (
    *DIFFER,
    *("orders", "^orders$", "orders.*", "(?i)ORDERS", r"t\d+", "t[0-9]{2}", "metrics-(eu|us)-.*", r"\p{Alpha}+", r"\p{L}"),
    *(r"\p{Lu}", r"\P{Lower}", r"[\p{Upper}\d]", r"\Qb.c\E", r"\Qb.c", r"(?<x>a)\k<x>", "a++", "(?>a|ab)c", r"\z", r"a\Z"),
    *(r"\h", r"\H", "a}", "]", "[]a]", "[^]a]", r"(a)\1", r"(a)\11", "[a-]", "[-a]", r"[a\-c]", r"[\w-]", r"\x41", r"\x{41}"),
    *(r"\u0041", r"\0101", r"\e", r"\_", r"\-", "(?i:ORD)ers", "(?is)A", "(?<=old-)orders", "(?<!old-)orders", "(?=a)a"),
    *("[+--]", "[a-b-c]", "[--a]", "[a\\--b]", "[-]", "[^-]", "[a||b]", "[~~]", "[a&b]", r"\d-\w", "a|", "|a", "()", "", "^", "$", r"\A", r"\b\w", r"\Borders", r"[\b]"),
    *(r"\p{IsAlphabetic}", r"\p{javaLowerCase}", r"\p{IsLatin}", r"\p{Digit}+", r"\pL", r"\pN", "a?+b", "x*?y", r"[\Qa-c\E]"),
    *("[!-~]", r"\.", "a{1}", "a{99999999999}", r"\p{Punct}", r"[^\d]", r"[\D]", r"[\h]", "ö", r"[a-\d]", r"\Q\E", r"a\Q*\E+"),
    *("(?<a_b>c)", "a{1,2}?", "a{1,2}+", "a+*", "a?*", "a*?+", "(?:a)", r"\t", r"[\t]", r"[\e]", "[.]", "[$^]", "#", "a b"),
)  # fmt: skip
