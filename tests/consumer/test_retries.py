"""Retries: pauses after consecutive failures, and RetriesExhausted."""

from __future__ import annotations

import logging
import math
import random

import pytest

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_state import FetchFailures
from asyncgroup.consumer.retries import Retries
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff

TP = TopicPartition("orders", 3)
ERROR = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "fetch")


def made(**config) -> Retries:
    return Retries(ConsumerConfig(**config), lambda: RetryBackoff(0.1, 2.0, random.Random(1)))


def pauses(retries: Retries, count: int) -> list[float]:
    failures, found = FetchFailures(), []
    for _ in range(count):
        retries.record_failure(TP, failures, ERROR, 0.0)
        found.append(retries.pause(failures))
    return found


def test_by_default_retries_are_endless_with_growing_pauses() -> None:
    retries, failures = made(), FetchFailures()
    assert all(retries.record_failure(TP, failures, ERROR, 0.0) is None for _ in range(1000))
    for pause, plain in zip(pauses(made(), 8), [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0], strict=True):
        assert plain * 0.8 <= pause <= plain * 1.2


def test_pauses_do_not_grow_during_an_election() -> None:
    """Unless their number is limited: the limit would then be reached in a shorter time."""
    for config, longest in (({}, 0.12), ({"fetch_retry_max": 20}, 2.4)):
        retries, failures = made(**config), FetchFailures()
        found = []
        for _ in range(8):
            retries.record_failure(TP, failures, ERROR, 0.0)
            found.append(retries.pause(failures, in_election=True))
        assert longest / 2 < max(found) <= longest


def test_the_first_pauses_during_an_election_are_short() -> None:
    retries, failures = made(), FetchFailures()
    failures.count = failures.before_new_leader = 7  # at the former leader
    for longest in (0.02, 0.04, 0.08, 0.1, 0.1):
        retries.record_failure(TP, failures, ERROR, 0.0)
        assert longest * 0.8 <= retries.pause(failures, in_election=True) <= longest * 1.2
    failures.count = 10_000
    assert retries.pause(failures, in_election=True) <= 0.12


@pytest.mark.parametrize("most", [0, 1, 3])
def test_retries_exhausted_is_returned_once_and_the_count_starts_again(most: int) -> None:
    retries, failures = made(fetch_retry_max=most), FetchFailures()
    for _ in range(3):
        assert [retries.record_failure(TP, failures, ERROR, 0.0) for _ in range(most)] == [None] * most
        reported = retries.record_failure(TP, failures, ERROR, 0.0)
        assert reported is not None
        assert (reported.tp, reported.tries, reported.__cause__) == (TP, most + 1, ERROR)
        assert (
            str(reported)
            == f"partition orders-3: {most + 1} fetch attempts failed, the last one with: {ERROR}"
        )
    assert failures.count == 3 * (most + 1), "the pauses keep growing"


def test_a_success_clears_the_count() -> None:
    retries, failures = made(fetch_retry_max=2), FetchFailures()
    for _ in range(10):
        assert retries.record_failure(TP, failures, ERROR, 0.0) is None
        assert retries.record_failure(TP, failures, ERROR, 0.0) is None
        failures.clear()


def test_fetch_retry_backoff_returns_the_pauses() -> None:
    assert pauses(made(fetch_retry_backoff=lambda n: n * 0.5), 4) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, "2", True, 1j])
def test_a_bad_return_value_of_fetch_retry_backoff_is_logged_once(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    found = pauses(made(fetch_retry_backoff=lambda _: value), 3)
    assert found == pauses(made(), 3)
    assert len(caplog.records) == 1
    assert repr(value) in caplog.text


def test_an_exception_of_fetch_retry_backoff_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: int) -> float:
        raise ZeroDivisionError("no pause")

    assert pauses(made(fetch_retry_backoff=broken), 3) == pauses(made(), 3)
    assert len(caplog.records) == 1
    assert "no pause" in caplog.text


def test_every_tenth_failure_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    retries, failures = made(), FetchFailures()
    for number in range(39):
        retries.record_failure(TP, failures, ERROR, 2.0 * number)
    assert [record.message for record in caplog.records] == [
        f"orders-3: {count} failures in a row, the last one: {ERROR}" for count in (10, 20, 30)
    ]


def test_warnings_about_many_partitions_have_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand partitions of one dead broker, tried ten times a second; and one with another error."""
    caplog.set_level(logging.WARNING)
    retries = made()
    many = [(TopicPartition("orders", number), FetchFailures()) for number in range(1000)]
    other, refused = FetchFailures(), BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fetch")
    for step in range(200):
        for tp, failures in many:
            retries.record_failure(tp, failures, ERROR, 0.1 * step)
        retries.record_failure(TP, other, refused, 0.1 * step)
    assert [record.message for record in caplog.records] == [
        f"orders-0: 10 failures in a row, the last one: {ERROR}",
        f"orders-3: 10 failures in a row, the last one: {refused}",
        f"orders-0: 110 failures in a row, the last one: {ERROR}; the same kind of error: orders-1, orders-2, orders-3 and 996 more",
        f"orders-3: 110 failures in a row, the last one: {refused}",
    ]


def test_a_warning_does_not_name_partitions_of_an_outage_that_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    retries, failures = made(), [FetchFailures() for _ in range(3)]
    for at, numbers in ((0.0, (0, 1)), (86400.0, (2,))):
        for number in numbers:
            for _ in range(10):
                retries.record_failure(TopicPartition("orders", number), failures[number], ERROR, at)
    assert [record.message for record in caplog.records] == [
        f"orders-{number}: 10 failures in a row, the last one: {ERROR}" for number in (0, 2)
    ]
