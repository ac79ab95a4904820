"""Backoff: doubling delays with jitter (KIP-580)."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from asyncgroup.config import ClientConfig
from asyncgroup.net.backoff import JITTER, RetryBackoff, pause_function
from asyncgroup.workqueue import Backoff


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


def test_pauses_may_be_a_number_a_function_or_a_backoff() -> None:
    """A Backoff counts failures from 1, a function from 0."""
    assert [pause_function(0.5)(failures) for failures in range(3)] == [0.5] * 3
    assert [pause_function(lambda failures: failures * 2.0)(failures) for failures in range(3)] == [
        0.0,
        2.0,
        4.0,
    ]
    assert [pause_function(Backoff(1, 3, 5))(failures) for failures in range(3)] == [1, 3, 5]
    config = ClientConfig(metadata_retry_backoff=Backoff(1, 3, 5))
    backoff = RetryBackoff.configured(config, random.Random(1), config.metadata_retry_backoff)
    assert [backoff.next() for _ in range(3)] == [1, 3, 5]
