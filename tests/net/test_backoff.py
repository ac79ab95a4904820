"""Backoff: doubling delays with jitter (KIP-580)."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from asyncgroup.net.backoff import JITTER, RetryBackoff


@given(st.floats(0.001, 10), st.floats(1, 50), st.integers(0, 2**32), st.integers(1, 60))
def test_delays_double_up_to_the_limit(base: float, factor: float, seed: int, failures: int) -> None:
    limit = base * factor
    backoff = RetryBackoff(base, limit, random.Random(seed))
    for number in range(failures):
        middle = min(base * 2.0**number, limit)
        assert (1 - JITTER) * middle <= backoff.next() <= (1 + JITTER) * middle
    assert backoff.failures == failures
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next() <= (1 + JITTER) * base


def test_a_zero_backoff_stays_zero() -> None:
    backoff = RetryBackoff(0.0, 0.0, random.Random(1))
    assert [backoff.next() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_ten_thousand_failures_do_not_overflow() -> None:
    backoff = RetryBackoff(0.1, 2.0, random.Random(1))
    assert max(backoff.next() for _ in range(10_000)) <= 2.0 * (1 + JITTER)


def test_delays_of_different_clients_differ() -> None:
    pauses = {round(RetryBackoff(0.1, 2.0, random.Random(seed)).next(), 6) for seed in range(100)}
    assert len(pauses) > 90
