"""Policies: Pulsar's defaults, delays that stay monotone and finite, and values that are refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from asyncgroup import WorkQueue
from asyncgroup.errors import ConfigError
from asyncgroup.testing import MemorySource
from asyncgroup.workqueue.batch_receive import has_room, is_full
from asyncgroup.workqueue.policies import (
    MAX_SECONDS,
    Backoff,
    BatchPolicy,
    Breaker,
    DeadLetter,
    RetryTopic,
    as_backoff,
)

SECONDS = st.floats(0, MAX_SECONDS) | st.integers(0, 10**9).filter(lambda value: value < 1000 or value % 1000)
FACTORS = st.floats(1, 1e300) | st.integers(1, 10**400) | st.just(math.nextafter(1.0, 2.0))
FAILURES = st.integers(1, 50) | st.integers(1, 10**9) | st.integers(1, 10**400)


def test_defaults_are_those_of_pulsar() -> None:
    assert [Backoff().delay(failures) for failures in range(1, 9)] == [10, 20, 40, 80, 160, 320, 600, 600]
    assert DeadLetter().max_redeliveries == 16
    assert BatchPolicy() == BatchPolicy(max_records=None, max_bytes=10 * 1024 * 1024, timeout=0.1)
    assert Breaker() == Breaker(share=0.5, minimum=100, window=60.0)


@given(SECONDS, SECONDS, FACTORS, FAILURES, FAILURES)
@example(1, 600, 2, 10**9, 10**9 + 1)
@example(0, 0, 10**400, 10**400, 10**400)
@example(1.0, 1e9, math.nextafter(1.0, 2.0), 3, 4)
def test_delays_are_monotone_finite_and_at_most_the_maximum(
    a: float, b: float, factor: float, failures: int, more: int
) -> None:
    initial, maximum = sorted((a, b))
    backoff = Backoff(initial, factor, maximum)
    first, second = (backoff.delay(count) for count in sorted((failures, more)))
    assert initial <= first <= second <= maximum
    assert math.isfinite(second)


@given(st.floats(0.001, 1e3), st.floats(1, 10), st.integers(1, 60))
def test_the_delay_is_initial_times_factor_to_the_power_of_the_earlier_failures(
    initial: float, factor: float, failures: int
) -> None:
    exact = min(Fraction(initial) * Fraction(factor) ** (failures - 1), Fraction(10**6))
    assert Backoff(initial, factor, 1e6).delay(failures) == pytest.approx(float(exact))


def test_counts_below_one_are_the_first_failure() -> None:
    assert Backoff(1, 2, 60).delay(0) == Backoff(1, 2, 60).delay(-5) == 1


@given(SECONDS, FAILURES)
def test_a_fixed_backoff_has_one_delay(seconds: float, failures: int) -> None:
    assert Backoff.fixed(seconds).delay(failures) == as_backoff("key", seconds).delay(failures) == seconds


def test_a_backoff_stays_as_it_is() -> None:
    backoff = Backoff(1, 3, 9)
    assert as_backoff("key", backoff) is backoff


@given(st.lists(st.integers(0, 300), min_size=1), st.integers(1, 10), st.integers(1, 500))
def test_a_batch_keeps_its_limits_and_has_its_first_record_in_any_case(
    sizes: list[int], max_records: int, max_bytes: int
) -> None:
    policy = BatchPolicy(max_records=max_records, max_bytes=max_bytes)
    taken: list[int] = []
    for size in sizes:
        if is_full(policy, len(taken), sum(taken)) or (taken and not has_room(policy, sum(taken) + size)):
            break
        taken.append(size)
    assert taken
    assert len(taken) <= max_records
    assert sum(taken) <= max_bytes or len(taken) == 1
    if len(taken) < len(sizes):  # as many as fit
        full = len(taken) == max_records or sum(taken) >= max_bytes
        assert full or sum(taken) + sizes[len(taken)] > max_bytes


def test_limits_that_are_none_never_end_a_batch() -> None:
    policy = BatchPolicy(max_bytes=None, timeout=1)
    assert not is_full(policy, 10**9, 10**12)
    assert has_room(policy, 10**12)


@pytest.mark.parametrize("seconds", [1000.0, 60_000.0, 999, 1500, 18_000, 72_000, 86_400, 432_000])
def test_durations_that_are_no_milliseconds(seconds: float) -> None:
    assert as_backoff("nack_backoff", seconds) == Backoff.fixed(seconds) == Backoff(seconds, 1, seconds)
    assert BatchPolicy(timeout=seconds).timeout == Breaker(window=seconds).window == seconds


NAN = math.nan
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    *((Backoff, {"initial": value}, "initial=") for value in (-1, NAN, math.inf, "1", None, True, 10**400)),
    *((Backoff, {"maximum": value}, "maximum=") for value in (-0.1, NAN, math.inf, 1e10)),
    *((Backoff, {"factor": value}, "factor=") for value in (0.5, 0, -1, NAN, math.inf, "2", True)),
    *(
        (
            Backoff,
            {"initial": value, "maximum": 1e9},
            rf"initial={value} .*seconds: {value / 1000}\? \(for {value} s",
        )
        for value in (1000, 5000, 60_000, 90_000, 180_000, 3_600_000)
    ),
    (Backoff, {"maximum": 60_000}, r"maximum=60000 .*durations are seconds: 60\.0\?"),
    (Backoff.fixed, {"seconds": 60_000}, r"seconds=60000 .*durations are seconds: 60\.0\?"),
    (as_backoff, {"key": "nack_backoff", "value": 60_000}, r"nack_backoff=60000 .*seconds: 60\.0\?"),
    (BatchPolicy, {"timeout": 5000}, r"timeout=5000 .*durations are seconds: 5\.0\?"),
    (Breaker, {"window": 60_000}, r"window=60000 .*durations are seconds: 60\.0\?"),
    (Backoff, {"initial": 1000}, r"at most maximum=600; durations are seconds: 1\.0\?"),
    (Backoff, {"maximum": 6e9}, r"durations are seconds: 6000000\.0\?"),
    *((Backoff.fixed, {"seconds": value}, "seconds=") for value in (-1, NAN, math.inf, "1", True)),
    *(
        (as_backoff, {"key": "nack_backoff", "value": value}, "nack_backoff=")
        for value in (-1, NAN, None, "60")
    ),
    *((Breaker, {"share": value}, "share=") for value in (-0.1, 1, 1.5, NAN, None)),
    (Breaker, {"share": 30}, r"not percent: 0\.3\?"),
    *((Breaker, {"minimum": value}, "minimum=") for value in (0, -1, 1.5, True)),
    *((Breaker, {"window": value}, "window=") for value in (0, -1, NAN, math.inf, "60")),
    *(
        (DeadLetter, {"max_redeliveries": value}, "max_redeliveries=")
        for value in (-1, 1.0, None, True, 2**31)
    ),
    (DeadLetter, {"breaker": 0.5}, "breaker="),
    *(
        (policy, {key: value}, f"{key}=")
        for policy, (key, values) in itertools.product(
            (RetryTopic, DeadLetter),
            {
                "topic": ("", "a b", "x" * 250, ".", 7),
                "names": ("Pulsar", None, 3),
                "partitions": (0, -1, 1.5, True),
                "replication_factor": (0, -1, 2**15, "3"),
            }.items(),
        )
        for value in values
    ),
    *((BatchPolicy, {"max_records": value}, "max_records=") for value in (0, -1, 1.5, True)),
    *((BatchPolicy, {"max_bytes": value}, "max_bytes=") for value in (0, -1, 1.5)),
    *((BatchPolicy, {"timeout": value}, "timeout=") for value in (0, -1, NAN, math.inf)),
    (BatchPolicy, {"max_bytes": None, "timeout": None}, "at least one of max_records, max_bytes and timeout"),
]


@pytest.mark.parametrize(
    ("policy", "given", "message"), REFUSED, ids=[f"{p.__qualname__} {str(g)[:60]}" for p, g, _ in REFUSED]
)
def test_refused_values(policy: Callable[..., Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(**given)


def test_the_most_frequent_arguments_are_positional_and_the_others_are_not() -> None:
    assert RetryTopic("again").topic == "again"
    assert DeadLetter(5).max_redeliveries == 5
    assert Backoff(1, 3, 9) == Backoff(initial=1, factor=3, maximum=9)
    with pytest.raises(TypeError):
        DeadLetter(5, "dead")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        DeadLetter().topic = "dead"  # type: ignore[misc]


@pytest.mark.parametrize("policy", [RetryTopic("persistent://t/n/x"), DeadLetter(3, topic="t/n/x")])
def test_names_of_pulsar_are_refused_by_a_consumer_group(policy: RetryTopic | DeadLetter) -> None:
    settings: dict[str, Any] = {"retry" if isinstance(policy, RetryTopic) else "dead_letter": policy}
    with pytest.raises(ConfigError, match=r"topic=.*1 to 249 of the characters"):
        WorkQueue("localhost:9092", "billing", "orders", **settings)
    with pytest.raises(ConfigError, match=r"topic=.*1 to 249 of the characters"):
        WorkQueue(MemorySource([b"a"]), **settings)
